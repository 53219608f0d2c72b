//! What this process has written into indexes, so that it need not do it again.
//!
//! Forgetting any of it costs a repeated call; believing in what is no longer there is found out by the
//! functions, which look at the age of a registration.
use crate::store::redis::key::NOBODY;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{Holder, SessionKey, TenantId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;

/// Registrations remembered: one for each session this node owns or has just accepted for. One that is
/// not remembered is made again.
const REGISTERED_MAX: usize = 65_536;
/// Incarnations remembered: this node's own, and a few that sessions were handed to.
const ENROLLED_MAX: usize = 64;
/// Fewer registrations than this are not worth passing over.
const SETTLED_MIN: usize = 64;
/// Sweeps in a row that do not look again at what was settled: where there is something to do …
const SETTLED_SWEEPS: u32 = 32;
/// … and where there is nothing, a few seconds' worth: a node that took over many sessions a moment ago would look at
/// all of them each time, until their old registrations are cleared away.
const SETTLED_IDLE_SWEEPS: u32 = 4;
/// What is claimed meanwhile: as much as these find.
const CLAIMED_MAX: usize = SETTLED_SWEEPS as usize * limits::SWEEP_SESSIONS_MAX as usize;
/// Registrations of what was released are cleared away when nothing that is on its way can lean on them any more: a
/// minute after they were made, and a little.
const LEFT_FOR: Duration = Duration::from_secs(61);
/// Tenants remembered.
const TENANTS_MAX: usize = 16_384;

/// A session under an incarnation's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) stamp: u64,
    /// Through which connection, in which era: what was written before either changed may be lost.
    written: u64,
    /// Whether the session is known to be held by that incarnation.
    held: bool,
}

/// What was released: when, by this process's clock, whose registration is left of it, and when that was made.
pub(super) type Left = (Mono, Holder, SessionKey, u64);

/// See the module.
#[derive(Debug)]
pub(super) struct Book {
    /// Under which name this node registers what it accepts for.
    me: Holder,
    era: Option<u64>,
    turn: Option<u64>,
    /// Counts eras and connections.
    written: u64,
    lines: BTreeMap<(SessionKey, Holder), Line>,
    /// What this node is claiming at the moment, and from whom: a sweep leaves it alone until that has an answer. One for each such op
    /// under way, of which the store takes no more than [`limits::STORE_QUEUE_MAX`].
    claiming: BTreeSet<(SessionKey, Holder)>,
    enrolled: BTreeSet<Holder>,
    tenants: BTreeSet<TenantId>,
    /// What was released, and when, by this process's clock; the first first. What finds no room stays until this
    /// incarnation is dead, and is cleared away then.
    left: VecDeque<Left>,
    walk: Walk,
    settled: Settled,
}

/// The oldest registrations of dead incarnations that need nobody, as sweeps that follow each other find
/// them: without this, whoever takes over many sessions looks at those it has already again each time.
#[derive(Clone, Debug, Default)]
struct Settled {
    upto: BTreeMap<Holder, Upto>,
    sweeps: u32,
    /// Of these, those in a row that found nothing due.
    idle: u32,
    /// How often it turned out that there may be something to do after all.
    doubts: u64,
    /// What claims were answered meanwhile: sessions, and which incarnation held them before, for it never holds them again.
    /// What nobody held is not among them, for that may be so again.
    claimed: BTreeSet<(SessionKey, Holder)>,
}

/// So many registrations of a moment, and all that are older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Upto {
    pub(super) stamp: u64,
    pub(super) count: usize,
    /// All of them.
    total: usize,
}

/// How far the slow walk through all sessions has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Walk {
    /// Those still to come; the last is the one being walked through.
    pub(super) tenants: Vec<TenantId>,
    /// The line it came to, if it is on its way.
    pub(super) line: Option<String>,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            me: NOBODY,
            era: None,
            turn: None,
            written: 0,
            lines: BTreeMap::new(),
            claiming: BTreeSet::new(),
            enrolled: BTreeSet::new(),
            tenants: BTreeSet::new(),
            left: VecDeque::new(),
            walk: Walk::default(),
            settled: Settled::default(),
        }
    }
}

impl Settled {
    /// The last sweep found something to do.
    fn is_busy(&self) -> bool {
        self.sweeps > 0 && self.idle == 0
    }
}

impl Upto {
    /// One more, made at this moment.
    pub(super) fn and(self, stamp: u64) -> Self {
        let count = if stamp == self.stamp { self.count + 1 } else { 1 };
        Self { stamp, count, total: self.total + 1 }
    }
}

impl Book {
    pub(super) fn me(&self) -> Holder {
        self.me
    }

    /// The connection is this one now. A server that was restarted may have lost its last writes.
    pub(super) fn turn(&mut self, turn: Option<u64>) {
        if turn.is_some() && self.turn != turn && !planted(Planted::RedisTrustsNewServer) {
            self.turn = turn;
            self.doubt();
        }
    }

    /// This node lives under this name, in this era of the store.
    pub(super) fn live(&mut self, me: Holder, era: u64) {
        self.me = me;
        if self.era != Some(era) {
            self.era = Some(era);
            self.doubt();
        }
    }

    /// What was written may not be there any more. What was not owned is looked after all the same.
    fn doubt(&mut self) {
        self.written += 1;
        self.unsettle();
        self.enrolled.clear();
        self.tenants.clear();
    }

    /// That life is over. What it registered is swept by whoever finds it dead.
    pub(super) fn die(&mut self, me: Holder) {
        if self.me == me {
            self.me = NOBODY;
        }
        self.lines.retain(|(_, holder), _| *holder != me);
    }

    // === sessions ===

    /// When a session was registered under a name, if that is remembered and not in doubt.
    pub(super) fn stamp(&self, session: &SessionKey, holder: Holder) -> Option<u64> {
        let line = self.lines.get(&(session.clone(), holder))?;
        (line.written == self.written).then_some(line.stamp)
    }

    pub(super) fn register(&mut self, session: &SessionKey, holder: Holder, stamp: u64) {
        let (full, written) = (self.lines.len() >= REGISTERED_MAX, self.written);
        let key = (session.clone(), holder);
        self.settled.claimed.remove(&key);
        if let Some(line) = self.lines.get_mut(&key) {
            (line.stamp, line.written) = (stamp, written);
        } else if !full {
            self.lines.insert(key, Line { stamp, written, held: false });
        }
    }

    /// This node sets out to claim a session from whoever holds it.
    pub(super) fn claim(&mut self, session: &SessionKey, from: Holder) {
        self.claiming.insert((session.clone(), from));
    }

    /// It knows that this is somebody else's now, or it does not: then sweeps look at all again.
    pub(super) fn claimed(&mut self, session: &SessionKey, from: Holder, is_known: bool) {
        let claim = (session.clone(), from);
        self.claiming.remove(&claim);
        if !is_known {
            self.unsettle();
        } else if self.is_dead(from) && self.settled.is_busy() && self.settled.claimed.len() < CLAIMED_MAX {
            // Whoever wants it under that name again has to register it anew.
            self.lines.remove(&claim);
            self.settled.claimed.insert(claim);
        }
    }

    /// What lives under this name here registers under it, and may have what it registered to look after.
    fn is_dead(&self, from: Holder) -> bool {
        from != NOBODY && from != self.me
    }

    /// Whether a sweep need not look at a session where this incarnation registered it: it is being claimed from that, or
    /// was since all was looked at last.
    pub(super) fn is_claimed(&self, session: &SessionKey, from: Holder) -> bool {
        if self.claiming.is_empty() && self.settled.claimed.is_empty() {
            return false;
        }
        let claim = (session.clone(), from);
        self.claiming.contains(&claim) || self.settled.claimed.contains(&claim)
    }

    /// The session is held by that incarnation.
    pub(super) fn hold(&mut self, session: &SessionKey, holder: Holder) {
        if let Some(line) = self.lines.get_mut(&(session.clone(), holder)) {
            line.held = true;
        }
    }

    /// Takes out all that is remembered of a session.
    pub(super) fn take(&mut self, session: &SessionKey) -> Vec<(Holder, Line)> {
        let first = (session.clone(), Holder::default());
        let of = |key: &(SessionKey, Holder)| key.0 == *session;
        let keys: Vec<_> = self.lines.range(first..).map(|(key, _)| key.clone()).take_while(of).collect();
        keys.into_iter().filter_map(|key| self.lines.remove(&key).map(|line| (key.1, line))).collect()
    }

    /// Puts back what was taken out for a release that did not happen, for a sweep to look at: nobody else looks after
    /// what lives here registered. What was registered anew meanwhile stays.
    pub(super) fn put_back(&mut self, session: &SessionKey, lines: Vec<(Holder, Line)>) {
        if planted(Planted::RedisFencedReleaseForgets) {
            return;
        }
        for (holder, line) in lines {
            let line = Line { held: false, ..line };
            if self.lines.len() < REGISTERED_MAX {
                self.lines.entry((session.clone(), holder)).or_insert(line);
            }
        }
    }

    /// A session was released, and nothing was left in it.
    pub(super) fn leave(&mut self, now: Mono, session: &SessionKey, holder: Holder, stamp: u64) {
        if self.left.len() < REGISTERED_MAX {
            self.left.push_back((now, holder, session.clone(), stamp));
        }
    }

    /// Takes out what was released long enough ago.
    pub(super) fn left(&mut self, now: Mono, max: usize) -> Vec<Left> {
        let old = |at: Mono| now - at >= LEFT_FOR && !planted(Planted::RedisLeftNeverCleared);
        let count = self.left.iter().take(max).take_while(|(at, ..)| old(*at)).count();
        self.left.drain(..count).collect()
    }

    /// Puts it back: it could not be looked at.
    pub(super) fn leave_again(&mut self, left: Vec<Left>) {
        left.into_iter().rev().for_each(|left| self.left.push_front(left));
    }

    /// Takes out one registration, unless it was made anew.
    pub(super) fn strike(&mut self, session: &SessionKey, holder: Holder, stamp: u64) {
        let key = (session.clone(), holder);
        if self.lines.get(&key).is_some_and(|line| line.stamp == stamp) {
            self.lines.remove(&key);
        }
    }

    /// What was registered and is not known to be held by who registered it.
    pub(super) fn unheld(&self, max: usize) -> Vec<(Holder, SessionKey, u64)> {
        let unheld = self.lines.iter().filter(|(_, line)| !line.held);
        unheld.take(max).map(|((key, holder), line)| (*holder, key.clone(), line.stamp)).collect()
    }

    // === the rest ===

    pub(super) fn is_enrolled(&self, holder: Holder) -> bool {
        // Nobody is looked at anyway.
        holder == NOBODY || self.enrolled.contains(&holder)
    }

    pub(super) fn enroll(&mut self, holder: Holder) {
        if self.enrolled.len() >= ENROLLED_MAX {
            self.enrolled.clear();
        }
        self.enrolled.insert(holder);
    }

    pub(super) fn is_settled(&self, tenant: &TenantId) -> bool {
        self.tenants.contains(tenant)
    }

    pub(super) fn settle(&mut self, tenant: &TenantId) {
        if self.tenants.len() >= TENANTS_MAX {
            self.tenants.clear();
        }
        self.tenants.insert(tenant.clone());
    }

    pub(super) fn walk(&mut self) -> &mut Walk {
        &mut self.walk
    }

    /// After what a look at an incarnation's registrations begins. A few are looked at again rather than
    /// passed over.
    pub(super) fn settled(&self, holder: Holder) -> Upto {
        let upto = self.settled.upto.get(&holder).copied();
        upto.filter(|upto| upto.total >= SETTLED_MIN).unwrap_or_default()
    }

    fn unsettle(&mut self) {
        self.settled = Settled { doubts: self.settled.doubts + 1, ..Settled::default() };
    }

    pub(super) fn doubts(&self) -> u64 {
        self.settled.doubts
    }

    /// What needs nobody of what it registered, unless that was doubted meanwhile.
    pub(super) fn settle_upto(&mut self, holder: Holder, upto: Upto, doubts: u64) {
        if self.settled.doubts == doubts {
            self.settled.upto.insert(holder, upto);
        }
    }

    /// A sweep is over. All is looked at again now and then, and sooner where nothing is due any more: a call that was
    /// long on its way may still change what was settled.
    pub(super) fn swept(&mut self, due: bool) {
        let settled = &mut self.settled;
        settled.sweeps += 1;
        settled.idle = if due { 0 } else { settled.idle + 1 };
        if settled.sweeps >= SETTLED_SWEEPS || settled.idle >= SETTLED_IDLE_SWEEPS {
            *settled = Settled { doubts: settled.doubts, ..Settled::default() };
        }
    }
}

#[cfg(test)]
mod tests;
