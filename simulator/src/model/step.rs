//! Steps of the ownership model and their effects.
use crate::model::fleet::{Call, Fleet, NODES, Ownership};
use crate::model::rules::{Register, Rules};
use crate::model::slot::{Accepted, Fact, Holder, What, Written};

/// One step. Numbers are nodes unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A client sends a message (first number: the turn) at a node.
    Say(u8, u8),
    /// The subscriber connects to this node.
    Attach(u8),
    /// A node acquires a lease, under a new life.
    Enrol(u8),
    /// A node's renewal reports that its lease is gone, or that the store is an older copy.
    Notice(u8),
    /// A node calls the store and gets the answer; a claim takes two steps, so that the seen ownership may be
    /// stale.
    Ask(u8),
    /// An offer arrives.
    Bell(u8),
    /// News of the log arrives.
    News(u8),
    /// A node repeats the offer of an unconfirmed input.
    Ring(u8),
    /// An owner repeats unacknowledged news.
    Beacon(u8),
    /// The lease of a dead life (number) expires.
    Expire(u8),
    /// Fault: a node's call is performed, but the answer is lost; the node will repeat the call.
    Unknown(u8),
    /// Fault: an offer is lost.
    LoseBell(u8),
    /// Fault: news is lost.
    LoseNews(u8),
    /// Fault: a node dies, and another starts in its place.
    Crash(u8),
    /// Fault: a node is paused, and its lease expires unnoticed.
    Lapse(u8),
    /// Fault: the replica of the store takes over.
    Failover,
    /// Fault: the replica of the index takes over.
    IndexFailover,
    /// Fault: a call of a dead node (number: its index in `late`) reaches the store now.
    Late(u8),
}

impl Fleet {
    /// Applies a step.
    pub fn take(&mut self, rules: &Rules, step: Step) {
        match step {
            Step::Say(turn, n) => self.node_mut(n).requested |= 1 << turn,
            Step::Attach(n) => {
                self.edge = Some(n);
                self.listen(n);
            }
            Step::Enrol(n) => self.enrol(n),
            Step::Notice(n) => self.notice(n),
            Step::Ask(n) => {
                if self.node(n).call.is_some() {
                    self.reach(rules, n);
                } else {
                    self.set_out(rules, n);
                    if !matches!(self.node(n).call, Some(Call::Claim { .. })) {
                        self.reach(rules, n);
                    }
                }
            }
            Step::Bell(n) => self.bell(n),
            Step::News(n) => self.news(n),
            Step::Ring(n) => self.ring(n),
            Step::Beacon(n) => self.news |= self.others(n),
            Step::Expire(life) => self.leased &= !(1 << life),
            Step::Unknown(n) => {
                self.left.unknowns -= 1;
                if self.node(n).call.is_none() {
                    self.set_out(rules, n);
                }
                if let Some(call) = self.node(n).call {
                    self.apply(rules, call);
                    // The call may have been sent twice.
                    self.late.extend(Some(call).filter(|_| self.left.late > 0));
                }
            }
            Step::LoseBell(n) => {
                self.left.losses -= 1;
                self.offers &= !(1 << n);
            }
            Step::LoseNews(n) => {
                self.left.losses -= 1;
                self.news &= !(1 << n);
            }
            Step::Crash(n) => self.crash(rules, n),
            Step::Lapse(n) => {
                self.left.lapses -= 1;
                let life = self.node(n).life.unwrap_or_default();
                self.leased &= !(1 << life);
            }
            Step::Failover => {
                self.left.failovers -= 1;
                self.era += 1;
                self.store = self.copy.clone();
            }
            Step::IndexFailover => {
                self.left.index_failovers -= 1;
                self.index = self.index_copy;
            }
            Step::Late(at) => {
                self.left.late -= 1;
                let call = self.late.remove(usize::from(at));
                self.apply(rules, call);
            }
        }
    }

    fn set_out(&mut self, rules: &Rules, n: u8) {
        let call = self.plan(rules, n);
        self.nonces += u8::from(matches!(call, Some(Call::Claim { .. })));
        self.node_mut(n).call = call;
    }

    /// Subscribes, then reads: in this order no fact is missed.
    fn listen(&mut self, n: u8) {
        self.store.listeners |= 1 << n;
        self.shown = self.store.log.clone();
    }

    fn enrol(&mut self, n: u8) {
        let life = self.lives;
        let era = self.era;
        self.lives += 1;
        self.leased |= 1 << life;
        let node = self.node_mut(n);
        (node.life, node.era, node.registered, node.unregistered) = (Some(life), era, false, false);
        if self.edge == Some(n) {
            self.listen(n);
        }
    }

    fn notice(&mut self, n: u8) {
        let era = self.era;
        let lost = self.node(n).life.is_some_and(|life| !self.is_leased(life));
        let node = self.node_mut(n);
        node.era = era;
        if lost {
            // The session may be claimed by any node; the node's calls in flight may still arrive.
            (node.life, node.seat, node.named_owner) = (None, None, false);
            let call = node.call.filter(|call| !matches!(call, Call::Accept { .. }));
            if call.is_some() {
                node.call = None;
            }
            self.late.extend(call.filter(|_| self.left.late > 0));
            return;
        }
        if let Some(ownership) = &mut node.seat {
            ownership.uncertain = true;
        }
        if self.edge == Some(n) {
            self.listen(n);
        }
    }

    fn crash(&mut self, rules: &Rules, n: u8) {
        self.left.crashes -= 1;
        if self.node(n).call.is_none() && self.left.late > 0 {
            // The node dies directly after it has sent a call.
            self.set_out(rules, n);
        }
        let node = std::mem::take(self.node_mut(n));
        self.late.extend(node.call.filter(|_| self.left.late > 0));
        (self.offers, self.news) = (self.offers & !(1 << n), self.news & !(1 << n));
        self.edge = self.edge.filter(|edge| *edge != n);
    }

    /// Performs a call in the store without an answer.
    fn apply(&mut self, rules: &Rules, call: Call) {
        match call {
            Call::Register { life } => self.index |= 1 << life,
            Call::Accept { turn, registered } => drop(self.store.accept(rules, turn, registered)),
            Call::Claim { by, nonce, expect } => drop(self.claim(rules, by, nonce, expect)),
            Call::Append { token, at, fact } => drop(self.store.append(rules, token, at, fact)),
            Call::Release { token, at } => drop(self.store.release(rules, token, at)),
        }
    }

    fn claim(&mut self, rules: &Rules, by: Holder, nonce: u8, expect: (Option<Holder>, u8)) -> bool {
        let given = u8::try_from(self.granted.len()).unwrap_or(u8::MAX);
        let won = self.store.claim(rules, by, nonce, expect, given);
        if won && !self.granted.contains(&self.store.token) {
            self.granted.push(self.store.token);
        }
        won
    }

    fn reach(&mut self, rules: &Rules, n: u8) {
        let Some(call) = self.node_mut(n).call.take() else { return };
        match call {
            Call::Register { life } => {
                self.index |= 1 << life;
                if rules.register != Register::Unacknowledged {
                    self.index_copy |= 1 << life;
                }
                let node = self.node_mut(n);
                (node.registered, node.unregistered) = (true, false);
            }
            Call::Accept { turn, registered } => {
                let accepted = self.store.accept(rules, turn, registered);
                self.accepted(rules, n, turn, accepted);
            }
            Call::Claim { by, nonce, expect } => {
                let won = self.claim(rules, by, nonce, expect);
                self.claimed(rules, n, won);
            }
            Call::Append { token, at, fact } => {
                let written = self.store.append(rules, token, at, fact);
                self.appended(rules, n, fact, written);
            }
            Call::Release { token, at } => {
                let written = self.store.release(rules, token, at);
                let node = self.node_mut(n);
                (node.seat, node.named_owner) = (None, node.named_owner || written == Written::Astray);
            }
        }
    }

    fn accepted(&mut self, rules: &Rules, n: u8, turn: u8, accepted: Accepted) {
        if accepted == Accepted::NoOwner {
            self.node_mut(n).unregistered = true;
            return;
        }
        if rules.waits {
            self.copy = self.store.clone();
        }
        self.accepted |= 1 << turn;
        let inbox = self.store.inbox.clone();
        let holder = self.store.holder;
        let node = self.node_mut(n);
        node.requested &= !(1 << turn);
        if let Some(ownership) = &mut node.seat {
            ownership.inbox = inbox;
        } else if inbox.contains(&turn) {
            node.unconfirmed |= 1 << turn;
            if let Some(holder) = holder {
                self.offers |= 1 << holder.node;
            }
        }
    }

    fn claimed(&mut self, rules: &Rules, n: u8, won: bool) {
        let token = self.store.token;
        let inbox = self.store.inbox.clone();
        let log = self.store.log.clone();
        let tail = u8::try_from(log.len()).unwrap_or(u8::MAX);
        let named = self.store.holder;
        let node = self.node_mut(n);
        node.named_owner = !won && rules.takes_on && named.is_none_or(|holder| Some(holder.life) == node.life);
        if !won {
            // The named holder gets an offer, and takes over a session that is unknown to the holder.
            if let Some(holder) = named.filter(|_| rules.takes_on) {
                self.offers |= 1 << holder.node;
            }
            return;
        }
        node.unconfirmed = 0;
        // Subscribers may have missed the last owner's writes.
        let heard = log.is_empty();
        node.seat = Some(Ownership { token, tail, inbox, begun: None, delivered: heard, uncertain: false });
        if self.edge == Some(n) {
            self.shown = log;
        }
    }

    fn appended(&mut self, rules: &Rules, n: u8, fact: Option<Fact>, written: Written) {
        if written != Written::Done {
            let node = self.node_mut(n);
            (node.seat, node.named_owner) = (None, true);
            return;
        }
        if rules.waits {
            self.copy = self.store.clone();
        }
        let inbox = self.store.inbox.clone();
        let log = self.store.log.clone();
        let others = self.others(n);
        if log.len() > self.acknowledged.len() {
            self.acknowledged.clone_from(&log);
        }
        let Some(ownership) = &mut self.node_mut(n).seat else { return };
        ownership.uncertain = false;
        ownership.tail = u8::try_from(log.len()).unwrap_or(u8::MAX);
        ownership.inbox = inbox;
        if let Some(fact) = fact {
            ownership.begun = Some(fact.turn).filter(|_| fact.what == What::Began);
            ownership.delivered = false;
            self.news |= others;
        }
        if self.edge == Some(n) {
            self.shown = log;
        }
    }

    fn bell(&mut self, n: u8) {
        self.offers &= !(1 << n);
        let inbox = self.store.inbox.clone();
        let holder = self.store.holder;
        let node = self.node_mut(n);
        if let Some(ownership) = &mut node.seat {
            // The owner reads its inbox, and confirms the inputs that it has taken.
            ownership.inbox = inbox;
            self.nodes.iter_mut().for_each(|node| node.unconfirmed = 0);
        } else if holder.is_some_and(|holder| holder.node == n && node.life == Some(holder.life)) {
            node.named_owner = true;
        }
    }

    fn news(&mut self, n: u8) {
        self.news &= !(1 << n);
        if self.edge == Some(n) {
            self.shown = self.store.log.clone();
        } else {
            self.store.listeners &= !(1 << n);
        }
        // The node acknowledges to the owner how much of the log it has.
        let tail = self.store.log.len();
        if let Some(ownership) = &mut self.node_mut(NODES - 1 - n).seat {
            ownership.delivered |= usize::from(ownership.tail) == tail;
        }
    }

    /// Drops turns that have ended from the unconfirmed ones; for the others the owner gets an offer again.
    fn ring(&mut self, n: u8) {
        let lying = self.store.inbox.iter().fold(0, |all, turn| all | 1 << turn);
        let node = self.node_mut(n);
        node.unconfirmed &= lying;
        if node.unconfirmed != 0
            && let Some(holder) = self.store.holder
        {
            self.offers |= 1 << holder.node;
        }
    }
}
