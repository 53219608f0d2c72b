//! The simulated bus, which guarantees nothing, and the random faults of nodes and store.
use super::clients::Act;
use super::world::{ScheduledEvent, World};
use std::time::Duration;
use turnway_core::id::NodeId;
use turnway_node::switchboard::Input;
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::remote::ALL_NODES;

impl World {
    pub(crate) fn publish(&mut self, at: usize, to: NodeId, words: PeerMessage) {
        let node_id = self.nodes[at].node_id;
        if to == ALL_NODES {
            let others: Vec<NodeId> = self.nodes.iter().map(|node| node.node_id).filter(|to| *to != node_id).collect();
            return others.into_iter().for_each(|to| _ = self.deliver(node_id, to, words.clone()));
        }
        if !self.deliver(node_id, to, words) {
            self.later(1, 5, ScheduledEvent::Unheard { node_id, node: to });
        }
    }

    /// Delivers a peer message with losses and duplicates; returns whether there is a receiver.
    pub(crate) fn deliver(&mut self, node_id: NodeId, to: NodeId, words: PeerMessage) -> bool {
        self.tally.peer_messages += 1;
        let hears = self.at(to).is_some_and(|peer| self.nodes[peer].deaf_until <= self.now);
        if !hears {
            return false;
        }
        let split = self.splits.get(&(node_id.min(to), node_id.max(to)));
        if split.is_some_and(|until| *until > self.now) {
            return true;
        }
        for _ in 0..(1 + u64::from(self.rng.chance(self.faults.double))) {
            if !self.rng.chance(self.faults.drop) {
                self.later(1, 50, ScheduledEvent::Mail { to, from: node_id, words: words.clone() });
            }
        }
        true
    }

    /// Lets the clients of a node notice, sooner or later, that the node is gone or stuck.
    pub(crate) fn orphan(&mut self, at: usize, ms_min: u64, ms_max: u64) {
        self.orphan_adapters(at, ms_min, ms_max);
        self.orphan_operators(at);
        let node_id = self.nodes[at].node_id;
        let here = |line: Option<(NodeId, _)>| line.is_some_and(|(edge, _)| edge == node_id);
        let orphans: Vec<usize> = (0..self.clients.len()).filter(|n| here(self.clients[*n].line)).collect();
        for client in orphans {
            let from = self.clients[client].line;
            self.later(ms_min, ms_max, ScheduledEvent::Client { client, act: Act::Move { from } });
        }
    }

    fn hit(&mut self, odds: u64) -> bool {
        let hit = odds > 0 && self.rng.below(10_000) < odds;
        self.tally.faults += u64::from(hit);
        hit
    }

    /// Applies a random fault, by the rates of this world.
    pub(crate) fn apply_random_fault(&mut self) {
        if self.faults == super::faults::Faults::default() {
            return;
        }
        let at = self.somewhere();
        let faults = self.faults;
        let until = self.now + Duration::from_millis(500 + self.rng.below(9000));
        if self.hit(faults.crash) {
            self.tally.faults -= 1;
            self.crash(at);
        } else if self.hit(faults.pause) {
            self.nodes[at].paused_until = until;
            if self.rng.chance(50) {
                self.orphan(at, 2000, 5000);
            }
        } else if self.hit(faults.cut) {
            self.nodes[at].cut_until = until;
        } else if self.hit(faults.deaf) {
            self.deafen(at, until);
        } else if self.hit(faults.outage) {
            self.outage_until = self.now + (until - self.now) / 2;
        } else if self.hit(faults.slow) {
            self.slow_until = until;
        } else if self.hit(faults.drain) {
            self.leave(self.nodes[at].node_id);
        } else if self.hit(faults.clock) {
            // The store's clock jumps ahead by seconds, or back to the true time; never together with a loss of
            // writes, because epochs could then repeat (ownership, I2).
            let before = self.ahead_ms;
            self.ahead_ms = if self.rewinds || self.rng.chance(50) { self.ahead_ms + self.rng.below(5000) } else { 0 };
            // An entry that was old for a moment may have been removed while an operation still relies on it.
            self.index.doubtful |= self.ahead_ms < before;
            self.platform.clock_fell |= self.ahead_ms < before;
        } else if self.hit(faults.rewind) {
            let writes = 1 + self.rng.below(6);
            self.forget(writes);
        } else if self.hit(faults.split) {
            let here = self.nodes[at].node_id;
            let there = self.somewhere();
            let there = self.nodes[there].node_id;
            self.splits.insert((here.min(there), here.max(there)), until);
        } else if self.hit(faults.roll) {
            self.roll();
        } else if self.hit(faults.restart) {
            self.restart();
        }
    }

    /// Drains a node. Soon after, the node learns of possible successors, unless the store is down.
    pub(crate) fn leave(&mut self, node_id: NodeId) {
        self.give_to(node_id, Input::Drain);
        if self.lasting && self.outage_until <= self.now {
            self.later(1, 50, ScheduledEvent::Successors { node_id });
        }
    }

    /// Drains every node, one after the other; drained nodes are replaced.
    fn roll(&mut self) {
        let node_count: Vec<NodeId> = self.nodes.iter().map(|node| node.node_id).collect();
        let mut wait = 0;
        for node_id in node_count {
            self.later(wait, wait + 500, ScheduledEvent::Leave { node_id });
            wait += 1000 + self.rng.below(5000);
        }
    }

    /// Loses peer messages to this node for a while; afterwards the node may be told of a gap.
    pub(crate) fn deafen(&mut self, at: usize, until: turnway_core::time::Mono) {
        self.nodes[at].deaf_until = until;
        let wait = u64::try_from((until - self.now).as_millis()).unwrap_or(0);
        let node_id = self.nodes[at].node_id;
        if self.rng.chance(60) {
            self.later(wait + 1, wait + 50, ScheduledEvent::Gap { node_id });
        }
    }

    /// Ends all present and further faults.
    pub(crate) fn heal(&mut self) {
        // Trimming is no fault and continues.
        self.faults = super::faults::Faults::default().with_trimming(self.faults.keep);
        self.platform.troubled = false;
        for node in &mut self.nodes {
            node.cut_until = self.now;
            node.deaf_until = self.now;
        }
        self.splits.clear();
        self.outage_until = self.now;
        self.slow_until = self.now;
    }
}
