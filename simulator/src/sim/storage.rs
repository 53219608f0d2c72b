//! The simulated connection to the store: operations and answers are late, lost, duplicated or refused.
use super::world::{ScheduledEvent, World};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::NodeId;
use turnway_core::store::{Acceptance, Op, Reply, StoreError};
use turnway_core::time::Millis;
use turnway_wire::peer::{OfferedEntry, PeerMessage};

/// Maximum distance of a fact's time from the store's clock: writes wait for outages and pauses, and the store's
/// clock jumps by seconds now and then.
const DATED_WITHIN: Duration = Duration::from_secs(300);

impl World {
    /// Sends an operation to the store.
    pub(crate) fn ask_store(&mut self, node_id: NodeId, op: Op) {
        if self.indexed { self.send_registered(node_id, op) } else { self.send(node_id, op, None) }
    }

    /// Sends an operation, with the registration stamp on which it relies.
    pub(crate) fn send(&mut self, node_id: NodeId, op: Op, stamp: Option<Millis>) {
        self.under_way(ScheduledEvent::Store { node_id, op, ghost: None, stamp });
    }

    /// Schedules an event between a node and the store, with latency.
    pub(crate) fn under_way(&mut self, happening: ScheduledEvent) {
        let late = if self.slow_until > self.now { 400 } else { 0 };
        self.later(self.far_ms + late / 4, self.far_ms + 10 + late, happening);
    }

    /// Returns whether this node cannot reach the store, or no node can.
    pub(crate) fn is_away(&self, node_id: NodeId) -> bool {
        let cut = self.at(node_id).is_some_and(|at| self.nodes[at].cut_until > self.now);
        cut || self.outage_until > self.now
    }

    pub(crate) fn answer(&mut self, node_id: NodeId, op: Op, result: Result<Reply, StoreError>) {
        let late = if self.slow_until > self.now { 1200 } else { 0 };
        let far = self.far_ms;
        self.later(far + late / 8, far + 10 + late, ScheduledEvent::Answer { node_id, op, result });
    }

    /// Performs an operation that has reached the store.
    pub(crate) fn reach_store(&mut self, node_id: NodeId, op: Op, ghost: Option<u32>, stamp: Option<Millis>) {
        if ghost.is_some_and(|then| then != self.forgotten) {
            // The operation was sent to a server that has failed over since, and which is followed no more.
            return;
        }
        let ghost = ghost.is_some();
        if self.is_away(node_id) {
            if !ghost {
                self.answer(node_id, op, Err(StoreError::Unavailable));
            }
            return;
        }
        if self.indexed && self.lacks_line(&op, stamp) {
            if !ghost {
                self.send_back(node_id, op);
            }
            return;
        }
        self.tally.ops += 1;
        if self.indexed && matches!(op, Op::Sweep { .. }) {
            return self.sweep_indexes(node_id, op);
        }
        // A first lease grant is rare, so its answer is lost more often.
        let more = if matches!(op, Op::Renew { fresh: true, .. }) { 4 } else { 1 };
        let lost = !ghost && self.rng.chance(self.faults.unknown * more);
        if lost && self.rng.chance(40) {
            let ghost = Some(self.forgotten);
            self.later(100, 10_000, ScheduledEvent::Store { node_id, op: op.clone(), ghost, stamp });
            if self.rng.chance(50) {
                return self.answer(node_id, op, Err(StoreError::Unknown));
            }
        }
        let was = op.key().filter(|_| self.indexed).and_then(|key| self.model.session(key)?.holder);
        let mut reply = self.model.apply(self.store_now(), &op);
        if self.indexed {
            self.performed(node_id, &op, was, &reply);
        }
        if let Reply::Accepted(accepted) = &mut reply
            && self.rings
        {
            accepted.offer_receivers = self.ring(node_id, &op, accepted);
        }
        self.ledger.check_reply(node_id, &op, &reply, &self.model, ghost);
        self.check_rows(node_id, &op, &reply);
        self.dated(&op, &reply);
        if !ghost {
            let result = if lost { Err(StoreError::Unknown) } else { Ok(reply) };
            self.answer(node_id, op, result);
        }
    }

    /// Checks that facts are dated by the store's clock, whatever the clocks of nodes read.
    fn dated(&self, op: &Op, reply: &Reply) {
        let (Op::Append(append), Reply::Appended { .. }) = (op, reply) else { return };
        let clock = self.store_clock();
        for time in append.facts.iter().map(|entry| entry.time) {
            let off = Duration::from_millis(clock.0.abs_diff(time.0));
            assert!(off < DATED_WITHIN, "a fact has the store's time: {time:?} at {clock:?}");
        }
    }

    /// Publishes a newly stored entry to the session's owner in the same step; returns the number of receivers.
    fn ring(&mut self, node_id: NodeId, op: &Op, accepted: &Acceptance) -> Option<u32> {
        let position = accepted.position;
        let prev = accepted.prev;
        let owner = accepted.owner;
        let item = if let Op::Accept { input, .. } = op {
            OfferedEntry::Input { position, prev, input: Arc::clone(input) }
        } else if let Op::Control { control, .. } = op {
            OfferedEntry::Control { position, prev, control: Arc::clone(control) }
        } else {
            return None;
        };
        let key = op.key()?.clone();
        let to = owner.holder?.node;
        if accepted.duplicate || to == node_id {
            return None;
        }
        Some(u32::from(self.deliver(node_id, to, PeerMessage::Offer { key, owner, item })))
    }

    /// Restarts the store in a new era: every lease is gone.
    pub(crate) fn restart(&mut self) {
        self.say(format_args!("the store starts again"));
        self.model.restart();
        self.restarted_at = Some(self.now);
    }

    /// Loses the last writes of the store, as a failover to a lagging replica does.
    pub(crate) fn forget(&mut self, writes: u64) {
        self.say(format_args!("the store forgets {writes} writes"));
        if self.indexed {
            // Each part of the store loses a different number of writes: sessions, indexes, leases.
            let lines = self.rng.below(2 * writes + 1);
            self.index.forget(lines);
            if self.rng.chance(30) {
                self.restart();
            }
        }
        let writes = if self.indexed && self.rng.chance(30) { 0 } else { writes };
        self.model.rewind(writes);
        self.forgotten += 1;
        // A failover takes more than a millisecond, and epochs are distinguished by the clock.
        self.ahead_ms += 10;
        self.ledger.rewound(&self.model);
        self.platform.bindings.rewound(self.now, &self.model);
    }
}
