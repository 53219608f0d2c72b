//! This node's lease, and its knowledge of other nodes' leases (ownership.md §1.6).
use super::effect::{DeliveryCommand, MembershipCommand, PartEffect};
use super::takeover::CHECKS_APART;
use super::{Switchboard, Timer};
use std::collections::BTreeSet;
use std::time::Duration;
use turnway_core::id::{Holder, LeaseId, NodeId};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::rng::Rng;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::{Mono, Now};
use turnway_wire::peer::PeerMessage;

/// A live node has renewed its lease within this time: [`limits::LEASE_RENEW`], its jitter, and a slow reply.
const LEASE_STALE_AFTER: Duration = Duration::from_millis(650);
/// After a break in contact with the store of this length, leases of live nodes may have expired too.
const CONTACT_BREAK: Duration = Duration::from_millis(2000);
/// A request for a first lease without a reply is given up after this time, and another lease id is requested. The
/// shell answers every op, so this covers only a lost reply.
const GRANT_WITHIN: Duration = limits::LEASE.saturating_mul(3);

/// Delay of a renewal that need not wait for its regular time.
const RENEW_AT_ONCE: Duration = Duration::from_millis(10);

/// This node's lease.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) holder: Holder,
    is_held: bool,
    until: Mono,
    /// Time of the unanswered request for a lease. No other request is sent until its reply: with a round trip of
    /// more than [`limits::LEASE_RENEW`], every reply would be for a lease id that was given up.
    requested_at: Option<Mono>,
    /// Start of the present contact with the store without a significant break.
    contact_since: Option<Mono>,
    last_reply: Mono,
    era: Option<u64>,
}

/// A node that a message did not reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    probes: u32,
    failed_probes: u32,
    /// Time of the first check and the remaining lease then.
    first_check: Option<(Mono, Option<Duration>)>,
    /// The lease is too fresh to decide: one more check follows.
    needs_another_check: bool,
}

impl Lease {
    pub(super) fn new(node: NodeId, rng: &mut Rng) -> Self {
        let holder = Holder { node, life: LeaseId(rng.next_u128()) };
        Self {
            holder,
            is_held: false,
            until: Mono::default(),
            requested_at: None,
            contact_since: None,
            last_reply: Mono::default(),
            era: None,
        }
    }
}

impl Switchboard {
    /// Returns whether this node may act as an owner, by its own clock.
    pub(super) fn may_own(&self, now: Now) -> bool {
        self.lease.is_held && (now.mono < self.lease.until || planted(Mutant::NoSelfFence))
    }

    /// Returns whether this node holds a lease, as far as it knows; for readiness.
    pub fn is_leased(&self, now: Now) -> bool {
        self.may_own(now)
    }

    pub(super) fn renew_lease(&mut self, now: Now) {
        let tenth = limits::LEASE_RENEW / 10;
        let spread = Duration::from_millis(self.sink.rng.below(u64::try_from(tenth.as_millis() * 2).unwrap_or(1)));
        self.sink.timers.set(Timer::Renew, now.mono + (limits::LEASE_RENEW - tenth) + spread);
        // A lease id is requested once: a late copy of an older request would grant a lease without a holder.
        if !self.lease.is_held && !planted(Mutant::GrantRepeats) {
            let waits = self.lease.requested_at.is_some_and(|requested_at| now.mono < requested_at + GRANT_WITHIN);
            if waits && !planted(Mutant::GrantAnew) {
                return;
            }
            self.lease.holder.life = LeaseId(self.sink.rng.next_u128());
            self.lease.requested_at = Some(now.mono);
        }
        let holder = self.lease.holder;
        let fresh = !self.lease.is_held;
        self.sink.store(Op::Renew { holder, ttl: limits::LEASE, fresh, sent: now.mono });
    }

    pub(super) fn handle_renewed(
        &mut self,
        now: Now,
        holder: Holder,
        fresh: bool,
        sent: Mono,
        result: Result<Reply, StoreError>,
    ) {
        if fresh && holder == self.lease.holder {
            self.lease.requested_at = None;
        }
        match result {
            Err(StoreError::Unavailable) => self.lease.contact_since = None,
            Ok(Reply::Renewed { era, .. }) if holder == self.lease.holder => {
                self.record_contact(now);
                let lapsed = self.lease.until <= now.mono;
                self.lease.until = self.lease.until.max(Mono((sent + limits::LEASE) - Mono(limits::LEASE_MARGIN)));
                let new = !self.lease.is_held && fresh;
                self.lease.is_held = true;
                let forgot = self.lease.era.replace(era).is_some_and(|before| before != era);
                let forgot = forgot && !planted(Mutant::EraIgnored);
                if forgot || (new && !planted(Mutant::NoRelisten)) {
                    self.sink.push(DeliveryCommand::RegisterAllAgain);
                }
                if forgot {
                    // The store may have lost leases too, so live nodes get time to renew.
                    self.lease.contact_since = Some(now.mono);
                    self.verify_owned_sessions();
                }
                if self.may_own(now) {
                    for (key, mine) in std::mem::take(&mut self.unclaimed_ownership) {
                        self.reclaim(now, &key, mine);
                    }
                }
                if new && !self.may_own(now) {
                    // The reply took so long that the lease has expired here. The store still has the lease: a
                    // renewal takes one round trip, a first lease two.
                    self.sink.timers.set(Timer::Renew, now.mono + RENEW_AT_ONCE);
                }
                if lapsed {
                    for key in self.owned_sessions.keys().cloned().collect::<Vec<_>>() {
                        self.drive_runtime(now, &key);
                    }
                }
            }
            Ok(Reply::LeaseLost) if holder == self.lease.holder && !fresh => {
                self.sink.stats.leases_lost += 1;
                self.record_contact(now);
                self.handle_lease_lost();
                self.lease.is_held = false;
                self.lease.until = Mono::default();
                self.sink.timers.set(Timer::Renew, now.mono + RENEW_AT_ONCE);
            }
            Ok(_) | Err(StoreError::Unknown) => {}
        }
    }

    /// Records a reply of the store.
    fn record_contact(&mut self, now: Now) {
        if self.lease.last_reply + CONTACT_BREAK <= now.mono {
            self.lease.contact_since = None;
        }
        self.lease.last_reply = now.mono;
        self.lease.contact_since.get_or_insert(now.mono);
    }

    /// Returns whether this node has been in contact with the store long enough that a missing lease proves a dead
    /// node.
    pub(super) fn has_stable_contact(&self, now: Now) -> bool {
        self.lease.contact_since.is_some_and(|since| since + limits::LEASE_CONTACT <= now.mono)
    }

    /// Returns whether a node with `left` remaining has renewed its lease since this node's contact with the store
    /// began. Then the store was available to both, so a node that stops renewing is gone and not merely
    /// disconnected.
    fn has_seen_renewal(&self, sent: Mono, left: Option<Duration>) -> bool {
        let Some((since, left)) = self.lease.contact_since.zip(left) else { return false };
        !planted(Mutant::ContactOnly) && since + limits::LEASE <= sent + left
    }

    // === other nodes ===

    /// Records whether an awaited owner's node has a lease. Without a lease at two checks the node is dead, even if
    /// its inbox accepts messages: a suspended process keeps its connections.
    fn record_lease_check(&mut self, now: Now, node: NodeId, gone: bool) {
        if !gone {
            self.without_lease.remove(&node);
            return;
        }
        let first = *self.without_lease.entry(node).or_insert(now.mono);
        if self.has_stable_contact(now) && first + CHECKS_APART <= now.mono {
            self.without_lease.remove(&node);
            self.sink.push(PartEffect::NodeDied(node));
            self.sink.push(MembershipCommand::ScheduleSweep(None));
        } else {
            self.sink.timers.set_earlier(Timer::Probe, now.mono + CHECKS_APART);
        }
    }

    /// Handles an undeliverable message: probes the node again before suspecting it.
    pub(super) fn handle_publish_failed(&mut self, now: Now, to: NodeId) {
        if planted(Mutant::PruneUnheard) {
            self.remove_subscriber(now, to, now.mono);
        }
        if let Some(suspect) = self.suspects.get_mut(&to) {
            suspect.failed_probes = suspect.probes;
            if suspect.probes == 2 {
                suspect.probes = 3;
                self.sink.timers.set(Timer::Suspect(to), now.mono + limits::LEASE_RENEW * 2);
                self.check_lease(now, to);
            }
            return;
        }
        self.suspects
            .insert(to, Suspect { probes: 0, failed_probes: 0, first_check: None, needs_another_check: false });
        self.sink.timers.set(Timer::Suspect(to), now.mono + Duration::from_millis(100));
        self.check_lease(now, to);
    }

    pub(super) fn probe_suspect(&mut self, now: Now, node: NodeId) {
        let Some(suspect) = self.suspects.get_mut(&node) else { return };
        if std::mem::take(&mut suspect.needs_another_check) {
            self.sink.timers.set(Timer::Suspect(node), now.mono + limits::LEASE_RENEW * 2);
            return self.check_lease(now, node);
        }
        if suspect.failed_probes < suspect.probes || suspect.probes >= 3 {
            // A probe was delivered, or the last lease check never got a reply.
            return self.clear_suspect(node);
        }
        suspect.probes += 1;
        self.sink.timers.set(Timer::Suspect(node), now.mono + Duration::from_millis(100) * suspect.probes);
        self.sink.send_peer(node, PeerMessage::Probe);
    }

    pub(super) fn clear_suspect(&mut self, node: NodeId) {
        self.suspects.remove(&node);
        self.sink.timers.clear(&Timer::Suspect(node));
    }

    /// Handles a lease check. A lease that is missing, or not renewed since the first check nor recently, proves a
    /// dead node.
    pub(super) fn handle_lease_check(&mut self, now: Now, node: NodeId, sent: Mono, left: Option<Duration>) {
        if left.is_none() {
            self.remove_subscriber(now, node, sent);
        }
        self.record_lease_check(now, node, left.is_none());
        let Some(suspect) = self.suspects.get_mut(&node) else { return };
        match suspect.first_check {
            None => suspect.first_check = Some((now.mono, left)),
            Some(_) if suspect.probes < 3 => {}
            Some((since, before)) => {
                let passed = now.mono - since;
                let slack = Duration::from_millis(50);
                let renewed = match (before, left) {
                    (_, None) => false,
                    (None, Some(_)) => true,
                    (Some(before), Some(left)) => left + passed > before + slack,
                };
                let spare = (left.unwrap_or_default() + LEASE_STALE_AFTER).saturating_sub(limits::LEASE);
                if !renewed && !spare.is_zero() {
                    suspect.needs_another_check = true;
                    return self.sink.timers.set(Timer::Suspect(node), now.mono + spare);
                }
                self.clear_suspect(node);
                if !renewed && (self.has_stable_contact(now) || self.has_seen_renewal(sent, left)) {
                    self.sink.push(PartEffect::NodeDied(node));
                    self.sink.push(MembershipCommand::ScheduleSweep(left));
                }
            }
        }
    }

    /// Probes each node that owns a session with an open turn or request here, and checks its lease: the probe
    /// detects a process that is gone, the lease one that is suspended.
    pub(super) fn probe_owners(&mut self, now: Now) {
        let me = self.me;
        let shown = self.delivery.owners_of_open_turns();
        let requested = self.router.owners();
        let owners: BTreeSet<NodeId> =
            shown.chain(requested).map(|holder| holder.node).filter(|node| *node != me).collect();
        self.without_lease.retain(|node, _| owners.contains(node));
        if !owners.is_empty() {
            self.sink.timers.set(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        }
        for node in owners {
            self.sink.store(Op::Lease { node, sent: now.mono });
            if !self.suspects.contains_key(&node) {
                self.sink.send_peer(node, PeerMessage::Probe);
            }
        }
    }
}
