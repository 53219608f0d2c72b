//! Handles messages of other nodes about calls.
use super::super::flow::{Inflow, Outflow};
use super::super::{Call, Output};
use super::{Begun, TakenOn, Trunk};
use crate::dialin::Word;
use crate::dialin::said::Said;
use crate::peer::trunk::{Count, Spoken, TrunkWords};
use std::sync::Arc;
use turnway_core::id::NodeId;
use turnway_core::limits;
use turnway_core::protocol::agent::Order;
use turnway_core::time::Now;

impl Trunk {
    pub(super) fn hear(&mut self, now: Now, from: NodeId, words: TrunkWords) {
        if from == self.me {
            return self.heard_itself(now);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            (peer.heard, peer.unheard) = (now.mono, 0);
        }
        match words {
            TrunkWords::Who => {
                if self.serving_at.is_some() {
                    self.tell_serving(now);
                }
            }
            TrunkWords::Serving { agents } => {
                for agent in self.roll.say(now.mono, from, agents) {
                    self.outputs.push_back(Output::Came(agent));
                }
            }
            TrunkWords::Order { call, n, order } => self.ordered(now, (from, call), n, &order),
            TrunkWords::Spoken { call, n, spoken } => self.spoken(from, call, n, spoken),
            TrunkWords::Counts { begun, taken_on } => {
                begun.into_iter().for_each(|count| self.counted_begun(now, from, count));
                taken_on.into_iter().for_each(|count| self.counted_taken_on(from, count));
            }
            TrunkWords::Hung { call } => self.hung(now, (from, call)),
            TrunkWords::Gone { call } => {
                if self.begun.get(&call).is_some_and(|begun| begun.to == from) {
                    self.lose(call);
                }
            }
            TrunkWords::Halt { order } => {
                self.outputs.push_back(Output::Halt(Box::new(Order::clone(&order))))
            }
        }
    }

    /// Handles this node's own message, which takes the same path as others: while it does not return, another
    /// node's silence means nothing.
    fn heard_itself(&mut self, now: Now) {
        if now.mono - self.echo > limits::TRUNK_COUNT * 3 {
            for peer in self.peers.values_mut() {
                (peer.heard, peer.unheard) = (now.mono, 0);
            }
        }
        self.echo = now.mono;
    }

    pub(super) fn unheard(&mut self, now: Now, node: NodeId) {
        self.roll.strike(node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        // Messages of one moment are sent in several frames, which count as one failure.
        if peer.counted.is_none_or(|at| now.mono - at >= limits::TRUNK_COUNT / 2) {
            peer.counted = Some(now.mono);
            peer.unheard += 1;
        }
    }

    // === accepted calls ===

    fn ordered(&mut self, now: Now, call: Call, n: u64, order: &Arc<Order>) {
        if !self.taken_on.contains_key(&call) {
            let Order::Invoke(invoke) = &**order else { return };
            if self.peers.get(&call.0).is_some_and(|peer| peer.is_over(call.1)) {
                return self.publish(call.0, TrunkWords::Gone { call: call.1 });
            }
            if n > 0 {
                return;
            }
            self.engage(now, call.0);
            let heard = Inflow { got: 1, taken: 1, told: 0 };
            self.taken_on
                .insert(call, TakenOn { out: Outflow::default(), heard, placed: false, over: false });
            return self.outputs.push_back(Output::Ring(call, Box::new(invoke.clone())));
        }
        let Some(taken_on) = self.taken_on.get_mut(&call) else { return };
        if taken_on.heard.take(n) {
            taken_on.heard.taken += 1;
            if taken_on.placed && !taken_on.over {
                self.outputs.push_back(Output::Order(call, Box::new(Order::clone(order))));
            }
        }
    }

    pub(super) fn hung(&mut self, now: Now, call: Call) {
        if self.taken_on.remove(&call).is_some() {
            self.peer(now, call.0).end(call.1);
            self.outputs.push_back(Output::Hung(call));
        }
    }

    /// Handles a progress report about a call that the other node started and this node accepted.
    fn counted_begun(&mut self, now: Now, from: NodeId, Count { call, got, taken }: Count) {
        let Some(taken_on) = self.taken_on.get_mut(&(from, call)) else {
            // An unknown call will be sent again; a call that has ended must not be accepted again.
            if self.peers.get(&from).is_some_and(|peer| peer.is_over(call)) {
                self.publish(from, TrunkWords::Gone { call });
            }
            return;
        };
        let more = taken_on.out.heard(got, taken);
        if taken_on.over && taken_on.out.unheard() == 0 {
            return self.hung(now, (from, call));
        }
        let lost = taken_on.out.lost();
        if more > 0 {
            self.outputs.push_back(Output::Room((from, call), more));
        }
        for (n, spoken) in lost {
            self.publish(from, TrunkWords::Spoken { call, n, spoken });
        }
    }

    // === started calls ===

    fn spoken(&mut self, from: NodeId, call: u64, n: u64, spoken: Spoken) {
        let Some(begun) = self.begun.get_mut(&call).filter(|begun| begun.to == from) else {
            return self.publish(from, TrunkWords::Hung { call });
        };
        if !begun.heard.take(n) {
            return;
        }
        let output = match spoken {
            Spoken::Placed(capabilities) => {
                begun.heard.taken += 1;
                Output::Placed(call, capabilities)
            }
            Spoken::Text { kind, text, id } => {
                Output::Word(call, Word::Said(Said::Delta { kind, text: text.reveal().to_owned(), id }))
            }
            Spoken::Word(word) => Output::Word(call, Word::clone(&word)),
            Spoken::Refused => return self.refused(call),
            Spoken::Lost => return self.lose(call),
        };
        self.outputs.push_back(output);
    }

    /// Handles a refusal: the agent has received nothing.
    fn refused(&mut self, call: u64) {
        if let Some(Begun { to, .. }) = self.begun.remove(&call) {
            self.publish(to, TrunkWords::Hung { call });
            self.outputs.push_back(Output::Refused(call));
        }
    }

    /// Handles a progress report about a call that this node started and the other node accepted.
    fn counted_taken_on(&mut self, from: NodeId, Count { call, got, taken }: Count) {
        let Some(begun) = self.begun.get_mut(&call).filter(|begun| begun.to == from) else {
            return self.publish(from, TrunkWords::Hung { call });
        };
        begun.out.heard(got, taken);
        for (n, order) in begun.out.lost() {
            self.publish(from, TrunkWords::Order { call, n, order });
        }
    }
}
