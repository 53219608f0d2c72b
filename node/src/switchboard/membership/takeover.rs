//! Takeover of sessions without a live owner (ownership.md §1.6): an occasional sweep while no dead node is known, and page
//! after page without a pause after a node has died; nodes share the pages. Asks `Ownership` to claim, and claims nothing
//! itself. Called by the switchboard and by `Membership`.
use crate::switchboard::effect::OwnershipCommand;
use crate::switchboard::ownership::Ownership;
use crate::switchboard::sink::{EffectSink, Timer};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use turnway_core::id::{Holder, NodeId, Nonce, OwnershipSnapshot, SessionKey};
use turnway_core::limits;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::{Mono, Now};

/// Delay before a session without a live owner is checked again.
const RETRY_AFTER: Duration = Duration::from_millis(250);
/// Minimum time between two checks of a lost lease or of a lost input.
pub(in crate::switchboard) const CHECKS_APART: Duration = Duration::from_millis(200);
/// Extra wait for each node that has precedence over this node in claiming a session.
const STAGGER: Duration = Duration::from_millis(50);
/// Maximum number of nodes to wait for: together they delay a claim by at most half a second.
const OTHERS_MAX: usize = 10;
/// The next page is requested once one in so many of a page's claims is answered: then the store has performed the
/// others or is about to, and prepares the next page meanwhile.
const CLAIMS_PER_PAGE_TRIGGER: usize = 4;
/// Maximum number of claims in flight: those of two pages, so that a lost reply does not delay the next page.
const CLAIMS_MAX: usize = 2 * limits::SWEEP_SESSIONS_MAX as usize;

/// This node's standing at the time of a sweep.
#[derive(Clone, Copy, Debug)]
pub(in crate::switchboard) struct Standing {
    pub(in crate::switchboard) me: NodeId,
    /// No other node can share the store.
    pub(in crate::switchboard) single_node: bool,
    pub(in crate::switchboard) has_stable_contact: bool,
    /// The node has a lease and is not leaving.
    pub(in crate::switchboard) may_claim: bool,
}

/// The progress of this node's takeovers. Bounded by two pages.
#[derive(Debug, Default)]
pub(in crate::switchboard) struct TakeoverState {
    /// Holders seen without a lease, and since when. A holder never returns, so two checks suffice for all its
    /// sessions.
    holders_without_lease: BTreeMap<Holder, Mono>,
    /// The sessions of the last page, and the time since which pages contain them unchanged.
    listed: BTreeMap<(SessionKey, OwnershipSnapshot), Mono>,
    /// Unanswered claims of listed sessions; at most [`CLAIMS_MAX`].
    claims: BTreeSet<Nonce>,
    /// The last page was full, so more sessions follow.
    more: bool,
    /// Number of replies until the next page is requested.
    replies_until_next_page: usize,
    /// A claim has won since the last page was requested.
    has_won_claim: bool,
    /// Other nodes that are taking over the same pages and were faster than this node.
    faster_nodes: BTreeSet<NodeId>,
}

impl TakeoverState {
    fn record_page(&mut self, now: Now, page: &[(SessionKey, OwnershipSnapshot)]) {
        let mut before = std::mem::take(&mut self.listed);
        for listed in page {
            let since = before.remove(listed).unwrap_or(now.mono);
            self.listed.insert(listed.clone(), since);
        }
        let holders: BTreeSet<Holder> = page.iter().filter_map(|(_, seen)| seen.holder).collect();
        self.holders_without_lease.retain(|holder, _| holders.contains(holder));
        for holder in holders {
            self.holders_without_lease.entry(holder).or_insert(now.mono);
        }
        self.more = page.len() >= limits::SWEEP_SESSIONS_MAX as usize;
        if !self.more {
            self.faster_nodes.clear();
        }
    }

    /// Returns the time at which this node may claim a session: if other nodes take part, after those with
    /// precedence.
    fn claim_time(&self, now: Now, me: NodeId, listed: &(SessionKey, OwnershipSnapshot)) -> Mono {
        let (key, seen) = listed;
        let first = self.listed.get(listed).copied().unwrap_or(now.mono);
        // Another node may be about to claim a free session, so each session is checked twice.
        let gone = seen.holder.and_then(|holder| self.holders_without_lease.get(&holder)).copied().unwrap_or(first);
        let mine = rendezvous_weight(me, key);
        let sooner = self.faster_nodes.iter().filter(|other| rendezvous_weight(**other, key) > mine).count();
        (gone + CHECKS_APART).max(first + STAGGER * u32::try_from(sooner).unwrap_or(u32::MAX))
    }

    /// Removes the nodes with precedence for a session that this node now claims, because they did not claim it in
    /// time.
    fn drop_nodes_before(&mut self, me: NodeId, key: &SessionKey) {
        let mine = rendezvous_weight(me, key);
        self.faster_nodes.retain(|other| rendezvous_weight(*other, key) < mine);
    }

    /// Records that another node takes over sessions of the same pages.
    pub(in crate::switchboard) fn add_node(&mut self, node: NodeId) {
        if self.more && self.faster_nodes.len() < OTHERS_MAX {
            self.faster_nodes.insert(node);
        }
    }
}

/// Returns a node's weight for a session. The node with the greatest weight has precedence, so that nodes that know
/// of each other claim different parts of a page (rendezvous hashing; FNV-1a with its bits mixed).
fn rendezvous_weight(node: NodeId, key: &SessionKey) -> u64 {
    let parts = [key.tenant.as_str(), "/", key.session.as_str()];
    let bytes = node.0.to_be_bytes().into_iter().chain(parts.into_iter().flat_map(str::bytes));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

impl TakeoverState {
    /// Requests a page of sessions without an owner.
    pub(in crate::switchboard) fn start_sweep(&self, now: Now, sink: &mut EffectSink) {
        let wait = sink.jitter(limits::SWEEP_INTERVAL);
        sink.timers.set(Timer::Sweep, now.mono + wait);
        sink.store(Op::Sweep { limit: limits::SWEEP_SESSIONS_MAX });
    }

    /// Schedules a sweep for the sessions of a dead node, once its lease has expired.
    pub(in crate::switchboard) fn schedule_sweep(&self, now: Now, left: Option<Duration>, sink: &mut EffectSink) {
        let apart = sink.jitter(STAGGER) - STAGGER;
        sink.timers.set_earlier(Timer::Sweep, now.mono + left.unwrap_or_default() + apart);
    }

    /// Handles a page of sessions without an owner; after an error the sweep is repeated soon if more sessions are
    /// expected.
    pub(in crate::switchboard) fn handle_sweep(
        &mut self,
        now: Now,
        result: Result<Reply, StoreError>,
        standing: Standing,
        ownership: &Ownership,
        sink: &mut EffectSink,
    ) {
        if let Ok(Reply::Unowned { sessions }) = result {
            self.claim_page(now, &sessions, standing, ownership, sink);
        } else if self.more {
            let again = sink.jitter(RETRY_AFTER);
            sink.timers.set_earlier(Timer::Sweep, now.mono + again);
        }
    }

    /// Claims sessions that were seen without an owner twice, and those of a holder whose lease was missing twice
    /// while this node had stable contact with the store; one page at a time.
    fn claim_page(
        &mut self,
        now: Now,
        page: &[(SessionKey, OwnershipSnapshot)],
        standing: Standing,
        ownership: &Ownership,
        sink: &mut EffectSink,
    ) {
        self.record_page(now, page);
        let Standing { me, single_node, has_stable_contact, may_claim } = standing;
        let mut soonest = None::<Mono>;
        for listed in page {
            let (key, seen) = listed;
            // With a store of a single process, any other holder was an earlier process and is dead.
            let dead = single_node && seen.holder.is_none_or(|holder| holder.node != me);
            let due = if dead { now.mono } else { self.claim_time(now, me, listed) };
            if !dead && (!has_stable_contact || due > now.mono) {
                let due = if has_stable_contact { due } else { now.mono + RETRY_AFTER };
                soonest = Some(soonest.map_or(due, |soonest| soonest.min(due)));
            } else if self.claims.len() < CLAIMS_MAX {
                self.drop_nodes_before(me, key);
                if may_claim && ownership.is_claimable(key) {
                    let nonce = Nonce(sink.rng.next_u128());
                    self.claims.insert(nonce);
                    sink.push(OwnershipCommand::ClaimAs { key: key.clone(), expect: *seen, nonce });
                } else {
                    self.claims.extend(ownership.claim_nonce(key));
                }
            }
        }
        let under_way = self.claims.len();
        self.replies_until_next_page = under_way.div_ceil(CLAIMS_PER_PAGE_TRIGGER);
        if let Some(soonest) = soonest {
            // Spread, so that nodes do not sweep at the same moment.
            let apart = sink.jitter(STAGGER) - STAGGER;
            sink.timers.set_earlier(Timer::Sweep, soonest + apart);
        } else if under_way == 0 && self.more {
            let again = sink.jitter(RETRY_AFTER);
            sink.timers.set_earlier(Timer::Sweep, now.mono + again);
        }
    }

    /// Handles an answered claim, and requests the next page once enough claims of the page are answered.
    pub(in crate::switchboard) fn handle_claim_answered(
        &mut self,
        now: Now,
        nonce: Nonce,
        won: bool,
        sink: &mut EffectSink,
    ) {
        if !self.claims.remove(&nonce) {
            return;
        }
        self.has_won_claim |= won;
        let last = self.replies_until_next_page == 1;
        self.replies_until_next_page = self.replies_until_next_page.saturating_sub(1);
        if !(last && self.more) {
            return;
        }
        if std::mem::take(&mut self.has_won_claim) {
            self.start_sweep(now, sink);
        } else {
            // Other nodes are faster; the sessions that they leave are found soon.
            sink.timers.set_earlier(Timer::Sweep, now.mono + STAGGER);
        }
    }
}
