//! This node's lease, and its knowledge of other nodes' leases (ownership.md §1.6).
use super::takeover::TWICE;
use super::{Switchboard, Timer};
use crate::peer::Words;
use std::time::Duration;
use turnway_core::id::{Holder, Life, NodeId};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::rng::Rng;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::{Mono, Now};

/// A live node has renewed its lease within this time: [`limits::LEASE_RENEW`], its jitter, and a slow reply.
const STALE: Duration = Duration::from_millis(650);
/// After a break in contact with the store of this length, leases of live nodes may have expired too.
const BREAK: Duration = Duration::from_millis(2000);
/// A request for a first lease without a reply is given up after this time, and another lease id is requested. The
/// shell answers every op, so this covers only a lost reply.
const GRANT_WITHIN: Duration = limits::LEASE.saturating_mul(3);

/// Delay of a renewal that need not wait for its regular time.
const AT_ONCE: Duration = Duration::from_millis(10);

/// This node's lease.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) holder: Holder,
    held: bool,
    until: Mono,
    /// Time of the unanswered request for a lease. No other request is sent until its reply: with a round trip of
    /// more than [`limits::LEASE_RENEW`], every reply would be for a lease id that was given up.
    asked: Option<Mono>,
    /// Start of the present contact with the store without a significant break.
    contact: Option<Mono>,
    answered: Mono,
    era: Option<u64>,
}

/// A node that a message did not reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    knocks: u32,
    unheard: u32,
    /// Time of the first check and the remaining lease then.
    lease: Option<(Mono, Option<Duration>)>,
    /// The lease is too fresh to decide: one more check follows.
    fresh: bool,
}

impl Lease {
    pub(super) fn new(node: NodeId, rng: &mut Rng) -> Self {
        let holder = Holder { node, life: Life(rng.next_u128()) };
        Self {
            holder,
            held: false,
            until: Mono::default(),
            asked: None,
            contact: None,
            answered: Mono::default(),
            era: None,
        }
    }
}

impl Switchboard {
    /// Returns `base` plus a random extension of up to `base`.
    pub(super) fn jitter(&mut self, base: Duration) -> Duration {
        let millis = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
        base + Duration::from_millis(self.rng.below(millis))
    }

    /// Returns whether this node may act as an owner, by its own clock.
    pub(super) fn is_lawful(&self, now: Now) -> bool {
        self.lease.held && (now.mono < self.lease.until || planted(Mutant::NoSelfFence))
    }

    /// Returns whether this node holds a lease, as far as it knows; for readiness.
    pub fn is_leased(&self, now: Now) -> bool {
        self.is_lawful(now)
    }

    pub(super) fn renew(&mut self, now: Now) {
        let tenth = limits::LEASE_RENEW / 10;
        let spread = Duration::from_millis(self.rng.below(u64::try_from(tenth.as_millis() * 2).unwrap_or(1)));
        self.timers.set(Timer::Renew, now.mono + (limits::LEASE_RENEW - tenth) + spread);
        // A lease id is requested once: a late copy of an older request would grant a lease without a holder.
        if !self.lease.held && !planted(Mutant::GrantRepeats) {
            let waits = self.lease.asked.is_some_and(|asked| now.mono < asked + GRANT_WITHIN);
            if waits && !planted(Mutant::GrantAnew) {
                return;
            }
            self.lease.holder.life = Life(self.rng.next_u128());
            self.lease.asked = Some(now.mono);
        }
        let (holder, fresh) = (self.lease.holder, !self.lease.held);
        self.store(Op::Renew { holder, ttl: limits::LEASE, fresh, sent: now.mono });
    }

    pub(super) fn renewed(
        &mut self,
        now: Now,
        holder: Holder,
        fresh: bool,
        sent: Mono,
        result: Result<Reply, StoreError>,
    ) {
        if fresh && holder == self.lease.holder {
            self.lease.asked = None;
        }
        match result {
            Err(StoreError::Unavailable) => self.lease.contact = None,
            Ok(Reply::Renewed { era, .. }) if holder == self.lease.holder => {
                self.touch(now);
                let lapsed = self.lease.until <= now.mono;
                self.lease.until =
                    self.lease.until.max(Mono((sent + limits::LEASE) - Mono(limits::LEASE_MARGIN)));
                let new = !self.lease.held && fresh;
                self.lease.held = true;
                let forgot = self.lease.era.replace(era).is_some_and(|before| before != era);
                let forgot = forgot && !planted(Mutant::EraIgnored);
                if forgot || (new && !planted(Mutant::NoRelisten)) {
                    self.relisten();
                }
                if forgot {
                    // The store may have lost leases too, so live nodes get time to renew.
                    self.lease.contact = Some(now.mono);
                    self.probe();
                }
                if self.is_lawful(now) {
                    for (key, mine) in std::mem::take(&mut self.owed) {
                        self.reclaim(now, &key, mine);
                    }
                }
                if new && !self.is_lawful(now) {
                    // The reply took so long that the lease has expired here. The store still has the lease: a
                    // renewal takes one round trip, a first lease two.
                    self.timers.set(Timer::Renew, now.mono + AT_ONCE);
                }
                if lapsed {
                    for key in self.seats.keys().cloned().collect::<Vec<_>>() {
                        self.pump(now, &key);
                    }
                }
            }
            Ok(Reply::Lost) if holder == self.lease.holder && !fresh => {
                self.stats.leases_lost += 1;
                self.touch(now);
                self.lose_seats();
                self.lease.held = false;
                self.lease.until = Mono::default();
                self.timers.set(Timer::Renew, now.mono + AT_ONCE);
            }
            Ok(_) | Err(StoreError::Unknown) => {}
        }
    }

    /// Records a reply of the store.
    fn touch(&mut self, now: Now) {
        if self.lease.answered + BREAK <= now.mono {
            self.lease.contact = None;
        }
        self.lease.answered = now.mono;
        self.lease.contact.get_or_insert(now.mono);
    }

    /// Returns whether this node has been in contact with the store long enough that a missing lease proves a dead
    /// node.
    pub(super) fn is_sound(&self, now: Now) -> bool {
        self.lease.contact.is_some_and(|since| since + limits::LEASE_CONTACT <= now.mono)
    }

    /// Returns whether a node with `left` remaining has renewed its lease since this node's contact with the store
    /// began. Then the store was available to both, so a node that stops renewing is gone and not merely
    /// disconnected.
    fn has_seen_renewal(&self, sent: Mono, left: Option<Duration>) -> bool {
        let Some((since, left)) = self.lease.contact.zip(left) else { return false };
        !planted(Mutant::ContactOnly) && since + limits::LEASE <= sent + left
    }

    // === other nodes ===

    /// Records whether an awaited owner's node has a lease. Without a lease at two checks the node is dead, even if
    /// its inbox accepts messages: a suspended process keeps its connections.
    fn lapsed(&mut self, now: Now, node: NodeId, gone: bool) {
        if !gone {
            self.lapsed.remove(&node);
            return;
        }
        let first = *self.lapsed.entry(node).or_insert(now.mono);
        if self.is_sound(now) && first + TWICE <= now.mono {
            self.lapsed.remove(&node);
            self.died(now, node);
            self.sweep_after(now, None);
        } else {
            self.timers.set_earlier(Timer::Knock, now.mono + TWICE);
        }
    }

    /// Handles an undeliverable message: probes the node again before suspecting it.
    pub(super) fn unheard(&mut self, now: Now, to: NodeId) {
        if planted(Mutant::PruneUnheard) {
            self.prune(now, to, now.mono);
        }
        if let Some(suspect) = self.suspects.get_mut(&to) {
            suspect.unheard = suspect.knocks;
            if suspect.knocks == 2 {
                suspect.knocks = 3;
                self.timers.set(Timer::Suspect(to), now.mono + limits::LEASE_RENEW * 2);
                self.doubt(now, to);
            }
            return;
        }
        self.suspects.insert(to, Suspect { knocks: 0, unheard: 0, lease: None, fresh: false });
        self.timers.set(Timer::Suspect(to), now.mono + Duration::from_millis(100));
        self.doubt(now, to);
    }

    pub(super) fn suspect(&mut self, now: Now, node: NodeId) {
        let Some(suspect) = self.suspects.get_mut(&node) else { return };
        if std::mem::take(&mut suspect.fresh) {
            self.timers.set(Timer::Suspect(node), now.mono + limits::LEASE_RENEW * 2);
            return self.doubt(now, node);
        }
        if suspect.unheard < suspect.knocks || suspect.knocks >= 3 {
            // A probe was delivered, or the last lease check never got a reply.
            return self.unsuspect(node);
        }
        suspect.knocks += 1;
        self.timers.set(Timer::Suspect(node), now.mono + Duration::from_millis(100) * suspect.knocks);
        self.tell(now, node, Words::Knock);
    }

    pub(super) fn unsuspect(&mut self, node: NodeId) {
        self.suspects.remove(&node);
        self.timers.clear(&Timer::Suspect(node));
    }

    /// Handles a lease check. A lease that is missing, or not renewed since the first check nor recently, proves a
    /// dead node.
    pub(super) fn leased(&mut self, now: Now, node: NodeId, sent: Mono, left: Option<Duration>) {
        if left.is_none() {
            self.prune(now, node, sent);
        }
        self.lapsed(now, node, left.is_none());
        let Some(suspect) = self.suspects.get_mut(&node) else { return };
        match suspect.lease {
            None => suspect.lease = Some((now.mono, left)),
            Some(_) if suspect.knocks < 3 => {}
            Some((since, before)) => {
                let passed = now.mono - since;
                let slack = Duration::from_millis(50);
                let renewed = match (before, left) {
                    (_, None) => false,
                    (None, Some(_)) => true,
                    (Some(before), Some(left)) => left + passed > before + slack,
                };
                let spare = (left.unwrap_or_default() + STALE).saturating_sub(limits::LEASE);
                if !renewed && !spare.is_zero() {
                    suspect.fresh = true;
                    return self.timers.set(Timer::Suspect(node), now.mono + spare);
                }
                self.unsuspect(node);
                if !renewed && (self.is_sound(now) || self.has_seen_renewal(sent, left)) {
                    self.died(now, node);
                    self.sweep_after(now, left);
                }
            }
        }
    }
}
