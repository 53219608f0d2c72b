//! The bus, which promises nothing, and the blows that strike nodes.
use super::clients::Act;
use super::world::{Happening, World};
use std::time::Duration;
use turnway_bindings::peer::Words;
use turnway_bindings::switchboard::Input;
use turnway_core::id::NodeId;

impl World {
    pub(crate) fn publish(&mut self, at: usize, to: NodeId, words: Words) {
        let boot = self.nodes[at].boot;
        if !self.deliver(boot, to, words) {
            self.later(1, 5, Happening::Unheard { boot, node: to });
        }
    }

    /// Words on their way; whether anybody listens.
    pub(crate) fn deliver(&mut self, boot: NodeId, to: NodeId, words: Words) -> bool {
        self.tally.words += 1;
        let hears = self.at(to).is_some_and(|peer| self.nodes[peer].deaf_until <= self.now);
        if !hears {
            return false;
        }
        let split = self.splits.get(&(boot.min(to), boot.max(to)));
        if split.is_some_and(|until| *until > self.now) {
            return true;
        }
        for _ in 0..(1 + u64::from(self.rng.chance(self.faults.double))) {
            if !self.rng.chance(self.faults.drop) {
                self.later(1, 50, Happening::Mail { to, from: boot, words: words.clone() });
            }
        }
        true
    }

    /// The clients of a node notice, sooner or later, that it is gone or stuck.
    pub(crate) fn orphan(&mut self, at: usize, ms_min: u64, ms_max: u64) {
        let boot = self.nodes[at].boot;
        let here = |line: Option<(NodeId, _)>| line.is_some_and(|(edge, _)| edge == boot);
        let orphans: Vec<usize> = (0..self.clients.len()).filter(|n| here(self.clients[*n].line)).collect();
        for client in orphans {
            let from = self.clients[client].line;
            self.later(ms_min, ms_max, Happening::Client { client, act: Act::Move { from } });
        }
    }

    fn hit(&mut self, odds: u64) -> bool {
        let hit = odds > 0 && self.rng.below(10_000) < odds;
        self.tally.blows += u64::from(hit);
        hit
    }

    /// Strikes, if chance will have it so.
    pub(crate) fn strike(&mut self) {
        if self.faults == super::faults::Faults::default() {
            return;
        }
        let at = self.somewhere();
        let faults = self.faults;
        let until = self.now + Duration::from_millis(500 + self.rng.below(9000));
        if self.hit(faults.crash) {
            self.tally.blows -= 1;
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
            self.leave(self.nodes[at].boot);
        } else if self.hit(faults.clock) {
            // The store's clock leaps ahead by seconds, or falls back to the truth; never that and a
            // loss of writes together: then epochs may repeat (ownership, I2).
            let before = self.ahead_ms;
            self.ahead_ms =
                if self.rewinds || self.rng.chance(50) { self.ahead_ms + self.rng.below(5000) } else { 0 };
            // A line that was old for a moment may have been cleared while an op still leans on it.
            self.index.doubtful |= self.ahead_ms < before;
        } else if self.hit(faults.rewind) {
            let writes = 1 + self.rng.below(6);
            self.forget(writes);
        } else if self.hit(faults.split) {
            let (here, there) = (self.nodes[at].boot, self.somewhere());
            let there = self.nodes[there].boot;
            self.splits.insert((here.min(there), here.max(there)), until);
        } else if self.hit(faults.roll) {
            self.roll();
        } else if self.hit(faults.restart) {
            self.restart();
        }
    }

    /// A node is asked to leave. Soon it knows the others, unless the store is away.
    pub(crate) fn leave(&mut self, boot: NodeId) {
        self.give_to(boot, Input::Drain);
        if self.lasting && self.outage_until <= self.now {
            self.later(1, 50, Happening::Heirs { boot });
        }
    }

    /// Every node leaves, one after the other; those that leave are replaced.
    fn roll(&mut self) {
        let boots: Vec<NodeId> = self.nodes.iter().map(|node| node.boot).collect();
        let mut wait = 0;
        for boot in boots {
            self.later(wait, wait + 500, Happening::Leave { boot });
            wait += 1000 + self.rng.below(5000);
        }
    }

    /// Words to this node are lost for a while; then it may be told that it has missed some.
    pub(crate) fn deafen(&mut self, at: usize, until: turnway_core::time::Mono) {
        self.nodes[at].deaf_until = until;
        let wait = u64::try_from((until - self.now).as_millis()).unwrap_or(0);
        let boot = self.nodes[at].boot;
        if self.rng.chance(60) {
            self.later(wait + 1, wait + 50, Happening::Gap { boot });
        }
    }

    /// No fault from now on, and none still at work.
    pub(crate) fn heal(&mut self) {
        // How much is kept is no fault.
        self.faults = super::faults::Faults::default().brief(self.faults.keep);
        for node in &mut self.nodes {
            node.cut_until = self.now;
            node.deaf_until = self.now;
        }
        self.splits.clear();
        self.outage_until = self.now;
        self.slow_until = self.now;
    }
}
