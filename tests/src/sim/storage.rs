//! The way to the store and back: late, lost, doubled, or closed.
use super::world::{Happening, World};
use std::sync::Arc;
use turnway_bindings::peer::{Item, Words};
use turnway_core::id::NodeId;
use turnway_core::store::{Accepted, Op, Reply, StoreError};

impl World {
    /// An operation sets out.
    pub(crate) fn ask_store(&mut self, boot: NodeId, op: Op) {
        let late = if self.slow_until > self.now { 400 } else { 0 };
        self.later(late / 4, 10 + late, Happening::Store { boot, op, ghost: None });
    }

    fn answer(&mut self, boot: NodeId, op: Op, result: Result<Reply, StoreError>) {
        let late = if self.slow_until > self.now { 1200 } else { 0 };
        self.later(late / 8, 10 + late, Happening::Answer { boot, op, result });
    }

    /// An operation arrives.
    pub(crate) fn reach_store(&mut self, boot: NodeId, op: Op, ghost: Option<u32>) {
        if ghost.is_some_and(|then| then != self.forgotten) {
            // It went to the server that was there before: the one it was lost with, or the one that is followed no more.
            return;
        }
        let ghost = ghost.is_some();
        let cut = self.at(boot).is_some_and(|at| self.nodes[at].cut_until > self.now);
        if cut || self.outage_until > self.now {
            if !ghost {
                self.answer(boot, op, Err(StoreError::Unavailable));
            }
            return;
        }
        self.tally.ops += 1;
        // A first grant is rare, so its answer is lost more often.
        let more = if matches!(op, Op::Renew { fresh: true, .. }) { 4 } else { 1 };
        let lost = !ghost && self.rng.chance(self.faults.unknown * more);
        if lost && self.rng.chance(40) {
            let ghost = Some(self.forgotten);
            self.later(100, 10_000, Happening::Store { boot, op: op.clone(), ghost });
            if self.rng.chance(50) {
                return self.answer(boot, op, Err(StoreError::Unknown));
            }
        }
        let mut reply = self.shelf.apply(self.store_now(), &op);
        if let Reply::Accepted(accepted) = &mut reply
            && self.rings
        {
            accepted.rung = self.ring(boot, &op, accepted);
        }
        self.ledger.replied(boot, &op, &reply, &self.shelf, ghost);
        if !ghost {
            let result = if lost { Err(StoreError::Unknown) } else { Ok(reply) };
            self.answer(boot, op, result);
        }
    }

    /// What is stored for the first time is told to its owner in the same step, and whoever asked is told how
    /// many listened to that.
    fn ring(&mut self, boot: NodeId, op: &Op, accepted: &Accepted) -> Option<u32> {
        let (place, prev, owner) = (accepted.place, accepted.prev, accepted.owner);
        let item = if let Op::Accept { input, .. } = op {
            Item::Input { place, prev, input: Arc::clone(input) }
        } else if let Op::Control { control, .. } = op {
            Item::Control { place, prev, control: Arc::clone(control) }
        } else {
            return None;
        };
        let (key, to) = (op.key()?.clone(), owner.holder?.node);
        if accepted.duplicate || to == boot {
            return None;
        }
        Some(u32::from(self.deliver(boot, to, Words::Bell { key, owner, item })))
    }

    /// The store starts again, in a new era: every lease is gone.
    pub(crate) fn restart(&mut self) {
        self.say(format_args!("the store starts again"));
        self.shelf.restart();
        self.restarted_at = Some(self.now);
    }

    /// The store forgets its last writes, as a fail-over to a lagging replica does.
    pub(crate) fn forget(&mut self, writes: u64) {
        self.say(format_args!("the store forgets {writes} writes"));
        self.shelf.rewind(writes);
        self.forgotten += 1;
        // Nobody takes over within the millisecond: epochs are told apart by the clock.
        self.ahead_ms += 10;
        self.ledger.rewound(&self.shelf);
    }
}
