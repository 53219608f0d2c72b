//! Taking on what nobody owns that lives (ownership.md §1.6): one look now and then while there is nothing;
//! page after page, without a pause, where somebody died.
use super::seat::Seat;
use super::{Switchboard, Timer};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use turnway_core::id::{Holder, NodeId, Nonce, Seen, SessionKey};
use turnway_core::limits;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::{Mono, Now};

/// What was seen without a lease is looked at again after this.
const AGAIN: Duration = Duration::from_millis(250);
/// Two looks at a lost lease or at a lost input are at least this far apart.
pub(super) const TWICE: Duration = Duration::from_millis(200);
/// What is another's to take is waited for so long, for each node that it is sooner than this one's.
const STAGGER: Duration = Duration::from_millis(50);
/// Nodes that are waited for: nobody may stand in the way for longer than half a second.
const OTHERS_MAX: usize = 10;
/// The next page is asked for when one in so many of a page's claims is answered: then the store has performed the
/// others too, or is about to, and looks for what comes next meanwhile.
const ANSWERED: usize = 4;
/// Claims of pages that may be under way: those of two, so that an answer that is lost does not hold up the next one.
const CLAIMS_MAX: usize = 2 * limits::SWEEP_SESSIONS_MAX as usize;

/// How far this node is with what the dead have left. All of it is bounded by two pages.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    /// Holders that were seen without a lease, and since when. A holder never comes back to life, so two
    /// looks at it do for all that it held.
    gone: BTreeMap<Holder, Mono>,
    /// What the last page showed, and since when pages have shown it so.
    listed: BTreeMap<(SessionKey, Seen), Mono>,
    /// Claims that were made of pages and have no answer: [`CLAIMS_MAX`] at most.
    claims: BTreeSet<Nonce>,
    /// The last page was full, so there is more.
    more: bool,
    /// So many more answers, and the next page is asked for.
    missing: usize,
    /// A claim has won since the last page was asked for.
    gained: bool,
    /// Who else takes on now what is on these pages: nodes that were sooner than this one.
    others: BTreeSet<NodeId>,
}

impl Takeover {
    fn list(&mut self, now: Now, page: &[(SessionKey, Seen)]) {
        let mut before = std::mem::take(&mut self.listed);
        for listed in page {
            let since = before.remove(listed).unwrap_or(now.mono);
            self.listed.insert(listed.clone(), since);
        }
        let holders: BTreeSet<Holder> = page.iter().filter_map(|(_, seen)| seen.holder).collect();
        self.gone.retain(|holder, _| holders.contains(holder));
        for holder in holders {
            self.gone.entry(holder).or_insert(now.mono);
        }
        self.more = page.len() >= limits::SWEEP_SESSIONS_MAX as usize;
        if !self.more {
            self.others.clear();
        }
    }

    /// When this node may claim what it has seen so: where others are at it, after whoever comes first.
    fn due(&self, now: Now, me: NodeId, listed: &(SessionKey, Seen)) -> Mono {
        let (key, seen) = listed;
        let first = self.listed.get(listed).copied().unwrap_or(now.mono);
        // Somebody may be about to claim what lies free, so each is looked at twice.
        let gone = seen.holder.and_then(|holder| self.gone.get(&holder)).copied().unwrap_or(first);
        let mine = weight(me, key);
        let sooner = self.others.iter().filter(|other| weight(**other, key) > mine).count();
        (gone + TWICE).max(first + STAGGER * u32::try_from(sooner).unwrap_or(u32::MAX))
    }

    /// This node claims what others should have: they are not at it, or not any more.
    fn pass_over(&mut self, me: NodeId, key: &SessionKey) {
        let mine = weight(me, key);
        self.others.retain(|other| weight(*other, key) < mine);
    }

    /// Somebody else takes on what this node has on its pages.
    pub(super) fn joined_by(&mut self, node: NodeId) {
        if self.more && self.others.len() < OTHERS_MAX {
            self.others.insert(node);
        }
    }
}

/// Whoever has the greatest takes the session, so that nodes that know of each other take each another part
/// of a page (rendezvous hashing; FNV-1a, and its bits mixed).
fn weight(node: NodeId, key: &SessionKey) -> u64 {
    let parts = [key.tenant.as_str(), "/", key.session.as_str()];
    let bytes = node.0.to_be_bytes().into_iter().chain(parts.into_iter().flat_map(str::bytes));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

impl Switchboard {
    pub(super) fn sweep(&mut self, now: Now) {
        let wait = self.jitter(limits::SWEEP);
        self.timers.set(Timer::Sweep, now.mono + wait);
        self.store(Op::Sweep { limit: limits::SWEEP_SESSIONS_MAX });
    }

    /// A node is dead: what it held is looked for as soon as its lease is gone.
    pub(super) fn sweep_after(&mut self, now: Now, left: Option<Duration>) {
        let apart = self.jitter(STAGGER) - STAGGER;
        self.timers.set_earlier(Timer::Sweep, now.mono + left.unwrap_or_default() + apart);
    }

    /// A page came, or could not be had: where there is something to do, it is asked for again soon.
    pub(super) fn swept(&mut self, now: Now, result: Result<Reply, StoreError>) {
        if let Ok(Reply::Work { sessions }) = result {
            self.take_on(now, &sessions);
        } else if self.takeover.more {
            let again = self.jitter(AGAIN);
            self.timers.set_earlier(Timer::Sweep, now.mono + again);
        }
    }

    /// Claims what was seen unowned twice, and what belongs to a holder whose lease was seen gone twice, in
    /// sound contact; one page at a time.
    fn take_on(&mut self, now: Now, page: &[(SessionKey, Seen)]) {
        self.takeover.list(now, page);
        let (sound, alone, me) = (self.is_sound(now), self.alone, self.me);
        let mut soonest = None::<Mono>;
        for listed in page {
            let (key, seen) = listed;
            // Whoever else held it on a store of one process is dead: that process was another.
            let dead = alone && seen.holder.is_none_or(|holder| holder.node != me);
            let due = if dead { now.mono } else { self.takeover.due(now, me, listed) };
            if !dead && (!sound || due > now.mono) {
                let due = if sound { due } else { now.mono + AGAIN };
                soonest = Some(soonest.map_or(due, |soonest| soonest.min(due)));
            } else if self.takeover.claims.len() < CLAIMS_MAX {
                self.takeover.pass_over(me, key);
                self.claim(now, key, *seen);
                if let Some(Seat::Claiming { nonce, .. }) = self.seats.get(key) {
                    self.takeover.claims.insert(*nonce);
                }
            }
        }
        let under_way = self.takeover.claims.len();
        self.takeover.missing = under_way.div_ceil(ANSWERED);
        if let Some(soonest) = soonest {
            // Not all nodes at the same moment.
            let apart = self.jitter(STAGGER) - STAGGER;
            self.timers.set_earlier(Timer::Sweep, soonest + apart);
        } else if under_way == 0 && self.takeover.more {
            let again = self.jitter(AGAIN);
            self.timers.set_earlier(Timer::Sweep, now.mono + again);
        }
    }

    /// A claim was answered. Of a page's claims enough: the next page.
    pub(super) fn claim_answered(&mut self, now: Now, nonce: Nonce, won: bool) {
        let takeover = &mut self.takeover;
        if !takeover.claims.remove(&nonce) {
            return;
        }
        takeover.gained |= won;
        let last = takeover.missing == 1;
        takeover.missing = takeover.missing.saturating_sub(1);
        if !(last && takeover.more) {
            return;
        }
        if std::mem::take(&mut takeover.gained) {
            self.sweep(now);
        } else {
            // Others are faster. What they leave is soon found.
            self.timers.set_earlier(Timer::Sweep, now.mono + STAGGER);
        }
    }

    /// A node that meant to take this on says that it is this one's.
    pub(super) fn adopt(&mut self, now: Now, from: NodeId, key: &SessionKey, free: Seen) {
        self.takeover.joined_by(from);
        self.claim(now, key, free);
    }
}
