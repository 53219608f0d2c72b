//! A cache of what this process has written to the sweep indexes, so that writes are not repeated. A forgotten entry
//! costs a repeated call; an entry that Redis has lost is detected by the functions, which check a registration's
//! age. Used by claims, inputs, releases and sweeps.
use crate::store::redis::key::NOBODY;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{Holder, SessionKey, TenantId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;

/// Maximum cached registrations: one for each session that this node owns or has just accepted an input for. A
/// registration that is not cached is made again.
const REGISTERED_MAX: usize = 65_536;
/// Maximum cached incarnations: this node's own, and a few to which sessions were transferred.
const ENROLLED_MAX: usize = 64;
/// Minimum number of registrations for which a sweep skips a prefix of them.
const SETTLED_MIN: usize = 64;
/// Consecutive sweeps that skip the settled registrations while sweeps find sessions that are due.
const SETTLED_SWEEPS: u32 = 32;
/// Consecutive sweeps that skip them while sweeps find nothing, a few seconds' worth: a node that took over many
/// sessions a moment ago would otherwise check all of them each time, until their old registrations are removed.
const SETTLED_IDLE_SWEEPS: u32 = 4;
/// Maximum claims remembered between full sweeps: as many as those sweeps find.
const CLAIMED_MAX: usize = SETTLED_SWEEPS as usize * limits::SWEEP_SESSIONS_MAX as usize;
/// Age at which registrations of released sessions are removed: no call in flight relies on a registration that is
/// older than a minute, with a small margin.
const LEFT_FOR: Duration = Duration::from_secs(61);
/// Maximum cached tenants.
const TENANTS_MAX: usize = 16_384;

/// The registration of a session under an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) stamp: u64,
    /// Number of the connection and era at the time of writing: a write before either changed may be lost.
    written: u64,
    /// Whether the session is known to be owned by that incarnation.
    held: bool,
}

/// A released session: time of release by this process's clock, holder and session of the remaining registration, and
/// the registration's stamp.
pub(super) type Left = (Mono, Holder, SessionKey, u64);

/// The cached registrations and the state of this node's sweeps.
#[derive(Debug)]
pub(super) struct Book {
    /// The holder under which this node registers the sessions that it accepts inputs for.
    me: Holder,
    era: Option<u64>,
    turn: Option<u64>,
    /// Number of changes of era and connection so far.
    written: u64,
    lines: BTreeMap<(SessionKey, Holder), Line>,
    /// The claims in flight, with the previous holder: a sweep skips these sessions until the claim is answered. One
    /// for each claim op in flight, of which the store takes no more than [`limits::STORE_QUEUE_MAX`].
    claiming: BTreeSet<(SessionKey, Holder)>,
    enrolled: BTreeSet<Holder>,
    tenants: BTreeSet<TenantId>,
    /// The released sessions, the earliest first. A release that finds no room keeps its registration until this
    /// incarnation is dead, and is removed then.
    left: VecDeque<Left>,
    walk: Walk,
    settled: Settled,
}

/// The oldest registrations of dead incarnations that need no new owner, as found by consecutive sweeps. Without this
/// state a node that takes over many sessions would check those that it already has in every sweep.
#[derive(Clone, Debug, Default)]
struct Settled {
    upto: BTreeMap<Holder, Upto>,
    sweeps: u32,
    /// Consecutive sweeps that found nothing due.
    idle: u32,
    /// Number of resets, each because a settled registration may need a new owner after all.
    doubts: u64,
    /// The claims answered since the last full sweep: sessions and the incarnation that held them before, which never
    /// holds them again. Claims of sessions without a holder are left out, because a session can lose its holder
    /// again.
    claimed: BTreeSet<(SessionKey, Holder)>,
}

/// A position in an incarnation's registrations: the stamp, and the number of registrations with that stamp up to
/// here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Upto {
    pub(super) stamp: u64,
    pub(super) count: usize,
    /// Number of registrations up to here.
    total: usize,
}

/// The position of the slow walk through all sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Walk {
    /// Tenants still to walk through; the last one is the current one.
    pub(super) tenants: Vec<TenantId>,
    /// The last list entry seen of the current tenant, if its walk has begun.
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
    /// Returns whether the last sweep found sessions that are due.
    fn is_busy(&self) -> bool {
        self.sweeps > 0 && self.idle == 0
    }
}

impl Upto {
    /// Returns the position after one more registration with this stamp.
    pub(super) fn and(self, stamp: u64) -> Self {
        let count = if stamp == self.stamp { self.count + 1 } else { 1 };
        Self { stamp, count, total: self.total + 1 }
    }
}

impl Book {
    pub(super) fn me(&self) -> Holder {
        self.me
    }

    /// Sets the current connection. A restarted server may have lost its last writes, so a new connection invalidates
    /// the cache.
    pub(super) fn turn(&mut self, turn: Option<u64>) {
        if turn.is_some() && self.turn != turn && !planted(Planted::RedisTrustsNewServer) {
            self.turn = turn;
            self.doubt();
        }
    }

    /// Sets the holder under which this node has a lease, and the store's era. A new era invalidates the cache.
    pub(super) fn live(&mut self, me: Holder, era: u64) {
        self.me = me;
        if self.era != Some(era) {
            self.era = Some(era);
            self.doubt();
        }
    }

    /// Marks all earlier writes as possibly lost. Registrations of sessions that are not owned are still checked.
    fn doubt(&mut self) {
        self.written += 1;
        self.unsettle();
        self.enrolled.clear();
        self.tenants.clear();
    }

    /// Removes the registrations of an incarnation whose lease ended. Other nodes sweep them once they find it dead.
    pub(super) fn die(&mut self, me: Holder) {
        if self.me == me {
            self.me = NOBODY;
        }
        self.lines.retain(|(_, holder), _| *holder != me);
    }

    // === sessions ===

    /// Returns the stamp of a registration, if it is cached and its write is not in doubt.
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

    /// Records that this node claims a session from its holder.
    pub(super) fn claim(&mut self, session: &SessionKey, from: Holder) {
        self.claiming.insert((session.clone(), from));
    }

    /// Records the answer to a claim. If the new owner is not known, the next sweep checks all registrations again.
    pub(super) fn claimed(&mut self, session: &SessionKey, from: Holder, is_known: bool) {
        let claim = (session.clone(), from);
        self.claiming.remove(&claim);
        if !is_known {
            self.unsettle();
        } else if self.is_dead(from) && self.settled.is_busy() && self.settled.claimed.len() < CLAIMED_MAX {
            // A node that needs the session under the old holder again has to register it anew.
            self.lines.remove(&claim);
            self.settled.claimed.insert(claim);
        }
    }

    /// Returns whether a holder is neither this node, which looks after its own registrations, nor the placeholder
    /// for unowned sessions.
    fn is_dead(&self, from: Holder) -> bool {
        from != NOBODY && from != self.me
    }

    /// Returns whether a sweep can skip a session registered by this incarnation: a claim from it is in flight, or
    /// was answered since the last full sweep.
    pub(super) fn is_claimed(&self, session: &SessionKey, from: Holder) -> bool {
        if self.claiming.is_empty() && self.settled.claimed.is_empty() {
            return false;
        }
        let claim = (session.clone(), from);
        self.claiming.contains(&claim) || self.settled.claimed.contains(&claim)
    }

    /// Marks a registration as owned by its incarnation.
    pub(super) fn hold(&mut self, session: &SessionKey, holder: Holder) {
        if let Some(line) = self.lines.get_mut(&(session.clone(), holder)) {
            line.held = true;
        }
    }

    /// Removes and returns all registrations of a session.
    pub(super) fn take(&mut self, session: &SessionKey) -> Vec<(Holder, Line)> {
        let first = (session.clone(), Holder::default());
        let of = |key: &(SessionKey, Holder)| key.0 == *session;
        let keys: Vec<_> = self.lines.range(first..).map(|(key, _)| key.clone()).take_while(of).collect();
        keys.into_iter().filter_map(|key| self.lines.remove(&key).map(|line| (key.1, line))).collect()
    }

    /// Restores registrations that were removed for a release that did not happen, so that a sweep checks them: only
    /// this process looks after its own registrations. Registrations made meanwhile stay.
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

    /// Records that a session was released with nothing waiting in it.
    pub(super) fn leave(&mut self, now: Mono, session: &SessionKey, holder: Holder, stamp: u64) {
        if self.left.len() < REGISTERED_MAX {
            self.left.push_back((now, holder, session.clone(), stamp));
        }
    }

    /// Removes and returns the sessions that were released long enough ago.
    pub(super) fn left(&mut self, now: Mono, max: usize) -> Vec<Left> {
        let old = |at: Mono| now - at >= LEFT_FOR && !planted(Planted::RedisLeftNeverCleared);
        let count = self.left.iter().take(max).take_while(|(at, ..)| old(*at)).count();
        self.left.drain(..count).collect()
    }

    /// Restores released sessions that could not be checked.
    pub(super) fn leave_again(&mut self, left: Vec<Left>) {
        left.into_iter().rev().for_each(|left| self.left.push_front(left));
    }

    /// Removes a registration, unless it was made anew.
    pub(super) fn strike(&mut self, session: &SessionKey, holder: Holder, stamp: u64) {
        let key = (session.clone(), holder);
        if self.lines.get(&key).is_some_and(|line| line.stamp == stamp) {
            self.lines.remove(&key);
        }
    }

    /// Returns registrations whose session is not known to be owned by the registering incarnation.
    pub(super) fn unheld(&self, max: usize) -> Vec<(Holder, SessionKey, u64)> {
        let unheld = self.lines.iter().filter(|(_, line)| !line.held);
        unheld.take(max).map(|((key, holder), line)| (*holder, key.clone(), line.stamp)).collect()
    }

    // === tenants, incarnations, and sweeps ===

    pub(super) fn is_enrolled(&self, holder: Holder) -> bool {
        // Sweeps always check the registrations without a holder.
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

    /// Returns the position at which a check of an incarnation's registrations begins. A few settled registrations
    /// are checked again rather than skipped.
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

    /// Records how far an incarnation's registrations are settled, unless the state was reset meanwhile.
    pub(super) fn settle_upto(&mut self, holder: Holder, upto: Upto, doubts: u64) {
        if self.settled.doubts == doubts {
            self.settled.upto.insert(holder, upto);
        }
    }

    /// Records the end of a sweep. Now and then all registrations are checked again, and sooner when nothing is due:
    /// a call that was in flight for long may still change a settled registration.
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
