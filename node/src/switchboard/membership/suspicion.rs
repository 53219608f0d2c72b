//! Other nodes' leases and reachability: a node that messages do not reach, or whose lease is missing, is checked
//! before it counts as dead (ownership.md §1.6).
use super::lease::Lease;
use super::takeover::CHECKS_APART;
use crate::switchboard::effect::{MembershipCommand, OwnershipCommand, PartEffect};
use crate::switchboard::sink::{EffectSink, Timer};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use turnway_core::id::NodeId;
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::store::Op;
use turnway_core::time::{Mono, Now};
use turnway_wire::peer::PeerMessage;

/// A live node has renewed its lease within this time: [`limits::LEASE_RENEW`], its jitter, and a slow reply.
const LEASE_STALE_AFTER: Duration = Duration::from_millis(650);

/// The nodes that may be dead.
#[derive(Debug, Default)]
pub(in crate::switchboard) struct Suspicions {
    suspects: BTreeMap<NodeId, Suspect>,
    /// Owner nodes without a lease at the last check, and the time of the first such check.
    without_lease: BTreeMap<NodeId, Mono>,
}

/// A node that a message did not reach.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    probes: u32,
    failed_probes: u32,
    /// Time of the first check and the remaining lease then.
    first_check: Option<(Mono, Option<Duration>)>,
    /// The lease is too fresh to decide: one more check follows.
    needs_another_check: bool,
}

impl Suspicions {
    /// Probes each node that owns a session with an open turn or request here, and checks its lease: the probe
    /// detects a process that is gone, the lease one that is suspended.
    pub(in crate::switchboard) fn probe_owners(&mut self, now: Now, owners: BTreeSet<NodeId>, sink: &mut EffectSink) {
        self.without_lease.retain(|node, _| owners.contains(node));
        if !owners.is_empty() {
            sink.timers.set(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        }
        for node in owners {
            sink.store(Op::Lease { node, sent: now.mono });
            if !self.suspects.contains_key(&node) {
                sink.send_peer(node, PeerMessage::Probe);
            }
        }
    }

    /// Records whether an awaited owner's node has a lease. Without a lease at two checks the node is dead, even if
    /// its inbox accepts messages: a suspended process keeps its connections.
    fn record_lease_check(&mut self, now: Now, node: NodeId, gone: bool, lease: &Lease, sink: &mut EffectSink) {
        if !gone {
            self.without_lease.remove(&node);
            return;
        }
        let first = *self.without_lease.entry(node).or_insert(now.mono);
        if lease.has_stable_contact(now) && first + CHECKS_APART <= now.mono {
            self.without_lease.remove(&node);
            sink.push(PartEffect::NodeDied(node));
            sink.push(MembershipCommand::ScheduleSweep(None));
        } else {
            sink.timers.set_earlier(Timer::Probe, now.mono + CHECKS_APART);
        }
    }

    /// Handles an undeliverable message: probes the node again before suspecting it.
    pub(in crate::switchboard) fn suspect(&mut self, now: Now, to: NodeId, sink: &mut EffectSink) {
        if planted(Mutant::PruneUnheard) {
            sink.push(OwnershipCommand::RemoveSubscriber { node: to, sent: now.mono });
        }
        if let Some(suspect) = self.suspects.get_mut(&to) {
            suspect.failed_probes = suspect.probes;
            if suspect.probes == 2 {
                suspect.probes = 3;
                sink.timers.set(Timer::Suspect(to), now.mono + limits::LEASE_RENEW * 2);
                sink.push(OwnershipCommand::CheckLease(to));
            }
            return;
        }
        self.suspects
            .insert(to, Suspect { probes: 0, failed_probes: 0, first_check: None, needs_another_check: false });
        sink.timers.set(Timer::Suspect(to), now.mono + Duration::from_millis(100));
        sink.push(OwnershipCommand::CheckLease(to));
    }

    /// Sends the next probe to a suspect, or clears it.
    pub(in crate::switchboard) fn probe_suspect(&mut self, now: Now, node: NodeId, sink: &mut EffectSink) {
        let Some(suspect) = self.suspects.get_mut(&node) else { return };
        if std::mem::take(&mut suspect.needs_another_check) {
            sink.timers.set(Timer::Suspect(node), now.mono + limits::LEASE_RENEW * 2);
            return sink.push(OwnershipCommand::CheckLease(node));
        }
        if suspect.failed_probes < suspect.probes || suspect.probes >= 3 {
            // A probe was delivered, or the last lease check never got a reply.
            return self.clear_suspect(node, sink);
        }
        suspect.probes += 1;
        sink.timers.set(Timer::Suspect(node), now.mono + Duration::from_millis(100) * suspect.probes);
        sink.send_peer(node, PeerMessage::Probe);
    }

    /// Ends the suspicion of a node.
    pub(in crate::switchboard) fn clear_suspect(&mut self, node: NodeId, sink: &mut EffectSink) {
        self.suspects.remove(&node);
        sink.timers.clear(&Timer::Suspect(node));
    }

    /// Handles a lease check. A lease that is missing, or not renewed since the first check nor recently, proves a
    /// dead node.
    pub(in crate::switchboard) fn handle_lease_check(
        &mut self,
        now: Now,
        node: NodeId,
        sent: Mono,
        left: Option<Duration>,
        lease: &Lease,
        sink: &mut EffectSink,
    ) {
        if left.is_none() {
            sink.push(OwnershipCommand::RemoveSubscriber { node, sent });
        }
        self.record_lease_check(now, node, left.is_none(), lease, sink);
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
                    return sink.timers.set(Timer::Suspect(node), now.mono + spare);
                }
                self.clear_suspect(node, sink);
                if !renewed && (lease.has_stable_contact(now) || lease.has_seen_renewal(sent, left)) {
                    sink.push(PartEffect::NodeDied(node));
                    sink.push(MembershipCommand::ScheduleSweep(left));
                }
            }
        }
    }
}
