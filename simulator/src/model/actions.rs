//! Steps that nodes take without faults, steps that are faults, and the check that the fleet settles when no fault
//! disturbs it.
use crate::model::fleet::{Call, Fleet, NODES, Node};
use crate::model::rules::{Register, Rules};
use crate::model::slot::{Fact, Holder, What};
use crate::model::step::Step;

/// More steps than any fleet needs to settle.
const REST_STEPS: usize = 200;

impl Fleet {
    /// Returns the next store call of a node, if any.
    pub(super) fn plan(&self, rules: &Rules, n: u8) -> Option<Call> {
        let node = self.node(n);
        let life = node.life.filter(|_| node.call.is_none())?;
        let early = rules.register != Register::Late;
        if node.requested != 0 {
            let turn = u8::try_from(node.requested.trailing_zeros()).ok()?;
            if node.unregistered && !node.registered && early {
                return Some(Call::Register { life });
            }
            return Some(Call::Accept { turn, registered: node.registered || !early });
        }
        if node.seat.is_some() {
            return self.own(rules, n, life);
        }
        let by = Holder { node: n, life };
        // A node that was fenced claims its own ownership again, and learns the present owner from the answer.
        let (expect, wants) =
            if self.wants_claim(rules, n) { (self.store.seen(), true) } else { ((Some(by), 0), node.named_owner) };
        if wants && !node.registered && early {
            return Some(Call::Register { life });
        }
        wants.then_some(Call::Claim { by, nonce: self.nonces + 1, expect })
    }

    fn own(&self, rules: &Rules, n: u8, life: u8) -> Option<Call> {
        let node = self.node(n);
        let ownership = node.seat.as_ref()?;
        let token = ownership.token;
        let at = ownership.tail;
        if !node.registered && rules.register == Register::Late {
            return Some(Call::Register { life });
        }
        if ownership.uncertain {
            return Some(Call::Append { token, at, fact: None });
        }
        if let Some(turn) = ownership.inbox.first().copied() {
            let what = if ownership.begun == Some(turn) { What::Ended } else { What::Began };
            return Some(Call::Append { token, at, fact: Some(Fact { by: token, turn, what }) });
        }
        let heard = ownership.delivered || self.others(n) == 0 || !rules.heard;
        heard.then_some(Call::Release { token, at })
    }

    /// Returns whether a node has reason to claim: there is work, and no live owner does it.
    fn wants_claim(&self, rules: &Rules, n: u8) -> bool {
        let node = self.node(n);
        let mine = |holder: Holder| holder.node == n && node.life == Some(holder.life);
        let waits = !self.store.inbox.is_empty();
        let dead = self.store.holder.is_some_and(|holder| !self.is_leased(holder.life));
        let free = self.store.holder.is_none();
        let asked = node.unconfirmed != 0 && waits && (free || dead);
        let named = node.named_owner && self.store.holder.is_none_or(mine);
        // Two sweeps: one of the index of dead lives, and a slow one of all indexes.
        let swept = self.index & !self.leased != 0 && dead || self.index != 0 && free && waits;
        asked || named || (rules.sweeps && swept)
    }

    fn asks(&self, rules: &Rules, n: u8) -> bool {
        self.node(n).call.is_some() || self.plan(rules, n).is_some()
    }

    fn rings(&self, n: u8) -> bool {
        let node = self.node(n);
        let lying = |turn: u8| self.store.inbox.contains(&turn);
        let over = (0..self.turns).any(|turn| node.unconfirmed & (1 << turn) != 0 && !lying(turn));
        let deaf = |holder: Holder| {
            let Node { life, seat: ownership, named_owner: rung, .. } = self.node(holder.node);
            let hears = ownership.is_some() || *life == Some(holder.life) && !rung;
            hears && self.is_leased(holder.life) && self.offers & (1 << holder.node) == 0
        };
        node.unconfirmed != 0 && (over || self.store.holder.is_some_and(deaf))
    }

    /// Adds every step that happens without a fault, most urgent first.
    pub fn regular_steps(&self, rules: &Rules, steps: &mut Vec<Step>) {
        for n in 0..NODES {
            let node = self.node(n);
            match node.life {
                None => steps.push(Step::Enrol(n)),
                Some(life) if !self.is_leased(life) || (node.era != self.era && rules.eras) => {
                    steps.push(Step::Notice(n));
                }
                Some(_) => {}
            }
            if self.asks(rules, n) {
                steps.push(Step::Ask(n));
            }
            if self.offers & (1 << n) != 0 {
                steps.push(Step::Bell(n));
            }
            if self.news & (1 << n) != 0 {
                steps.push(Step::News(n));
            }
            if self.rings(n) {
                steps.push(Step::Ring(n));
            }
            let others = self.others(n);
            if node.seat.as_ref().is_some_and(|ownership| !ownership.delivered) && others & !self.news != 0 {
                steps.push(Step::Beacon(n));
            }
            if self.edge.is_none() {
                steps.push(Step::Attach(n));
            }
            for turn in 0..self.turns {
                let asked = self.nodes.iter().any(|node| node.requested & (1 << turn) != 0);
                if self.accepted & (1 << turn) == 0 && !asked {
                    steps.push(Step::Say(turn, n));
                }
            }
        }
        steps.extend(self.ghosts().map(Step::Expire));
    }

    /// Adds every fault that may still happen.
    pub fn fault_steps(&self, rules: &Rules, steps: &mut Vec<Step>) {
        let left = self.left;
        for n in 0..NODES {
            let node = self.node(n);
            if left.unknowns > 0 && self.asks(rules, n) {
                steps.push(Step::Unknown(n));
            }
            if left.losses > 0 && self.offers & (1 << n) != 0 {
                steps.push(Step::LoseBell(n));
            }
            if left.losses > 0 && self.news & (1 << n) != 0 {
                steps.push(Step::LoseNews(n));
            }
            if left.crashes > 0 {
                steps.push(Step::Crash(n));
            }
            if left.lapses > 0 && node.life.is_some_and(|life| self.is_leased(life)) {
                steps.push(Step::Lapse(n));
            }
        }
        if left.failovers > 0 {
            steps.push(Step::Failover);
        }
        if left.index_failovers > 0 && self.index != self.index_copy {
            steps.push(Step::IndexFailover);
        }
        if left.late > 0 {
            steps.extend((0..self.late.len()).filter_map(|at| u8::try_from(at).ok()).map(Step::Late));
        }
    }

    /// Takes fault-free steps until none is left.
    pub fn settle(&self, rules: &Rules) -> Self {
        let mut fleet = self.clone();
        let mut steps = Vec::new();
        for _ in 0..REST_STEPS {
            steps.clear();
            fleet.regular_steps(rules, &mut steps);
            let Some(first) = steps.first() else { break };
            fleet.take(rules, *first);
        }
        fleet
    }

    /// Returns whether every turn has ended once and was shown, and no node holds the session.
    pub fn is_settled(&self) -> bool {
        let ended = (0..self.turns).all(|turn| self.store.ends(turn) == 1);
        let let_go = self.nodes.iter().all(|node| node.seat.is_none() && node.call.is_none());
        ended && let_go && self.store.inbox.is_empty() && self.shown == self.store.log
    }
}
