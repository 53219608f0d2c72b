//! This node's lease, and what it believes of the leases of others (ownership.md §1.6).
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

/// Whoever lives has renewed within this: [`limits::LEASE_RENEW`], its jitter, and a slow answer.
const STALE: Duration = Duration::from_millis(650);
/// Without an answer of the store for so long, leases of nodes that live may have run out too.
const BREAK: Duration = Duration::from_millis(2000);
/// A request for a first lease that is not answered for so long is given up, and another life is asked for. The
/// store's shell answers each op, so this is for an answer that never comes.
const GRANT_WITHIN: Duration = limits::LEASE.saturating_mul(3);

/// Before a renewal that need not wait for its time.
const AT_ONCE: Duration = Duration::from_millis(10);

/// This node's lease.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) holder: Holder,
    held: bool,
    until: Mono,
    /// When the life was asked for that has no answer yet. Until then no other is asked for: at a round trip of
    /// more than [`limits::LEASE_RENEW`] every answer would be to a life that was given up.
    asked: Option<Mono>,
    /// Since when the store has answered without a break that matters, and when it last did.
    contact: Option<Mono>,
    answered: Mono,
    era: Option<u64>,
}

/// A node that words did not reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    knocks: u32,
    unheard: u32,
    /// What was left of its lease at the first look, and when that was.
    lease: Option<(Mono, Option<Duration>)>,
    /// Its lease is too fresh to tell: it is looked at once more.
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
    /// A wait, and up to as much again by chance.
    pub(super) fn jitter(&mut self, base: Duration) -> Duration {
        let millis = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
        base + Duration::from_millis(self.rng.below(millis))
    }

    /// Whether this node may still act as an owner, by its own clock.
    pub(super) fn is_lawful(&self, now: Now) -> bool {
        self.lease.held && (now.mono < self.lease.until || planted(Mutant::NoSelfFence))
    }

    /// Whether this node holds a lease, as far as it knows: for readiness.
    pub fn is_leased(&self, now: Now) -> bool {
        self.is_lawful(now)
    }

    pub(super) fn renew(&mut self, now: Now) {
        let tenth = limits::LEASE_RENEW / 10;
        let spread = Duration::from_millis(self.rng.below(u64::try_from(tenth.as_millis() * 2).unwrap_or(1)));
        self.timers.set(Timer::Renew, now.mono + (limits::LEASE_RENEW - tenth) + spread);
        // A life is asked for once: a late copy of an older request grants what nobody lives.
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
                    // It may have forgotten leases too: whoever lives is given the time to renew.
                    self.lease.contact = Some(now.mono);
                    self.probe();
                }
                if self.is_lawful(now) {
                    for (key, mine) in std::mem::take(&mut self.owed) {
                        self.reclaim(now, &key, mine);
                    }
                }
                if new && !self.is_lawful(now) {
                    // It came from so far away that it is over. The store still has it: a renewal takes one round
                    // trip, where a first lease takes two.
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

    /// The store answered.
    fn touch(&mut self, now: Now) {
        if self.lease.answered + BREAK <= now.mono {
            self.lease.contact = None;
        }
        self.lease.answered = now.mono;
        self.lease.contact.get_or_insert(now.mono);
    }

    /// Whether this node has been in touch with the store for so long that a lease that is not there is
    /// one that nobody renews.
    pub(super) fn is_sound(&self, now: Now) -> bool {
        self.lease.contact.is_some_and(|since| since + limits::LEASE_CONTACT <= now.mono)
    }

    /// Whether a node with so much left of its lease has renewed it since this node came in touch with the store: the
    /// store was there for both, so a node that does not renew any more is gone, and not cut off like all.
    fn has_seen_renewal(&self, sent: Mono, left: Option<Duration>) -> bool {
        let Some((since, left)) = self.lease.contact.zip(left) else { return false };
        !planted(Mutant::ContactOnly) && since + limits::LEASE <= sent + left
    }

    // === others ===

    /// A node whose owners are waited for here has no lease, or has one. Without one at two looks, it is dead,
    /// though its inbox may take words: a process that sleeps keeps its connections.
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

    /// Words did not reach a node: knock again before believing it.
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
            // Somebody was there after all, or the last answer never came.
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

    /// A lease was looked at. Gone, or not renewed since the first look, nor for a while: nobody is there.
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
