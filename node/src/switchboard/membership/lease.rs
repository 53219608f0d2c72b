//! This node's lease (ownership.md §1.6).
use crate::switchboard::effect::{DeliveryCommand, OwnershipCommand};
use crate::switchboard::sink::{EffectSink, Timer};
use std::time::Duration;
use turnway_core::id::{Holder, LeaseId, NodeId};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::rng::Rng;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::{Mono, Now};

/// After a break in contact with the store of this length, leases of live nodes may have expired too.
const CONTACT_BREAK: Duration = Duration::from_millis(2000);
/// A request for a first lease without a reply is given up after this time, and another lease id is requested. The
/// shell answers every op, so this covers only a lost reply.
const GRANT_WITHIN: Duration = limits::LEASE.saturating_mul(3);

/// Delay of a renewal that need not wait for its regular time.
const RENEW_AT_ONCE: Duration = Duration::from_millis(10);

/// This node's lease.
#[derive(Debug)]
pub(in crate::switchboard) struct Lease {
    holder: Holder,
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

impl Lease {
    pub(in crate::switchboard) fn new(node: NodeId, rng: &mut Rng) -> Self {
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

    pub(in crate::switchboard) fn holder(&self) -> Holder {
        self.holder
    }

    /// Returns whether this node may act as an owner, by its own clock.
    pub(in crate::switchboard) fn may_own(&self, now: Now) -> bool {
        self.is_held && (now.mono < self.until || planted(Mutant::NoSelfFence))
    }

    /// Renews the lease, or requests a first one.
    pub(in crate::switchboard) fn renew(&mut self, now: Now, sink: &mut EffectSink) {
        let tenth = limits::LEASE_RENEW / 10;
        let spread = Duration::from_millis(sink.rng.below(u64::try_from(tenth.as_millis() * 2).unwrap_or(1)));
        sink.timers.set(Timer::Renew, now.mono + (limits::LEASE_RENEW - tenth) + spread);
        // A lease id is requested once: a late copy of an older request would grant a lease without a holder.
        if !self.is_held && !planted(Mutant::GrantRepeats) {
            let waits = self.requested_at.is_some_and(|requested_at| now.mono < requested_at + GRANT_WITHIN);
            if waits && !planted(Mutant::GrantAnew) {
                return;
            }
            self.holder.life = LeaseId(sink.rng.next_u128());
            self.requested_at = Some(now.mono);
        }
        let holder = self.holder;
        let fresh = !self.is_held;
        sink.store(Op::Renew { holder, ttl: limits::LEASE, fresh, sent: now.mono });
    }

    /// Handles the store's reply to a renewal.
    pub(in crate::switchboard) fn handle_renewed(
        &mut self,
        now: Now,
        holder: Holder,
        fresh: bool,
        sent: Mono,
        result: Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) {
        if fresh && holder == self.holder {
            self.requested_at = None;
        }
        match result {
            Err(StoreError::Unavailable) => self.contact_since = None,
            Ok(Reply::Renewed { era, .. }) if holder == self.holder => {
                self.record_contact(now);
                let lapsed = self.until <= now.mono;
                self.until = self.until.max(Mono((sent + limits::LEASE) - Mono(limits::LEASE_MARGIN)));
                let new = !self.is_held && fresh;
                self.is_held = true;
                let forgot = self.era.replace(era).is_some_and(|before| before != era);
                let forgot = forgot && !planted(Mutant::EraIgnored);
                if forgot || (new && !planted(Mutant::NoRelisten)) {
                    sink.push(DeliveryCommand::RegisterAllAgain);
                }
                if forgot {
                    // The store may have lost leases too, so live nodes get time to renew.
                    self.contact_since = Some(now.mono);
                    sink.push(OwnershipCommand::VerifyAll);
                }
                if self.may_own(now) {
                    sink.push(OwnershipCommand::ReclaimAll);
                }
                if new && !self.may_own(now) {
                    // The reply took so long that the lease has expired here. The store still has the lease: a
                    // renewal takes one round trip, a first lease two.
                    sink.timers.set(Timer::Renew, now.mono + RENEW_AT_ONCE);
                }
                if lapsed {
                    sink.push(OwnershipCommand::DriveAll);
                }
            }
            Ok(Reply::LeaseLost) if holder == self.holder && !fresh => {
                sink.stats.leases_lost += 1;
                self.record_contact(now);
                sink.push(OwnershipCommand::LoseLease);
                self.is_held = false;
                self.until = Mono::default();
                sink.timers.set(Timer::Renew, now.mono + RENEW_AT_ONCE);
            }
            Ok(_) | Err(StoreError::Unknown) => {}
        }
    }

    /// Records a reply of the store.
    fn record_contact(&mut self, now: Now) {
        if self.last_reply + CONTACT_BREAK <= now.mono {
            self.contact_since = None;
        }
        self.last_reply = now.mono;
        self.contact_since.get_or_insert(now.mono);
    }

    /// Returns whether this node has been in contact with the store long enough that a missing lease proves a dead
    /// node.
    pub(in crate::switchboard) fn has_stable_contact(&self, now: Now) -> bool {
        self.contact_since.is_some_and(|since| since + limits::LEASE_CONTACT <= now.mono)
    }

    /// Returns whether a node with `left` remaining has renewed its lease since this node's contact with the store
    /// began. Then the store was available to both, so a node that stops renewing is gone and not merely
    /// disconnected.
    pub(in crate::switchboard) fn has_seen_renewal(&self, sent: Mono, left: Option<Duration>) -> bool {
        let Some((since, left)) = self.contact_since.zip(left) else { return false };
        !planted(Mutant::ContactOnly) && since + limits::LEASE <= sent + left
    }
}
