//! Handles messages of other nodes about calls.
use super::super::flow::{CallReceiver, CallSender};
use super::super::{Output, RemoteCallId};
use super::{IncomingAttempt, OutgoingAttempt, RemoteAttempts};
use std::sync::Arc;
use turnway_core::id::NodeId;
use turnway_core::limits;
use turnway_core::protocol::agent::Order;
use turnway_core::time::Now;
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;
use turnway_wire::peer::remote::{CallProgress, RemoteEvent, RemoteMessage};

impl RemoteAttempts {
    pub(super) fn handle_message(&mut self, now: Now, from: NodeId, words: RemoteMessage) {
        if from == self.me {
            return self.handle_echo(now);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            (peer.last_heard, peer.failed_reports) = (now.mono, 0);
        }
        match words {
            RemoteMessage::ListAgents => {
                if self.next_announcement.is_some() {
                    self.announce_agents(now);
                }
            }
            RemoteMessage::Serving { agents } => {
                for agent in self.agent_locations.record_announcement(now.mono, from, agents) {
                    self.outputs.push_back(Output::AgentAvailable(agent));
                }
            }
            RemoteMessage::Order { call, n, order } => self.handle_order(now, (from, call), n, &order),
            RemoteMessage::Event { call, n, event: spoken } => self.handle_event(from, call, n, spoken),
            RemoteMessage::Progress { outgoing: begun, incoming: taken_on } => {
                begun.into_iter().for_each(|count| self.handle_outgoing_progress(now, from, count));
                taken_on.into_iter().for_each(|count| self.handle_incoming_progress(from, count));
            }
            RemoteMessage::Abandoned { call } => self.handle_abandoned(now, (from, call)),
            RemoteMessage::GivenUp { call } => {
                if self.outgoing.get(&call).is_some_and(|begun| begun.to == from) {
                    self.fail_call(call);
                }
            }
            RemoteMessage::Stop { order } => self.outputs.push_back(Output::Stop(Box::new(Order::clone(&order)))),
        }
    }

    /// Handles this node's own message, which takes the same path as others: while it does not return, another
    /// node's silence means nothing.
    fn handle_echo(&mut self, now: Now) {
        if now.mono - self.last_echo > limits::REMOTE_COUNT_INTERVAL * 3 {
            for peer in self.peers.values_mut() {
                (peer.last_heard, peer.failed_reports) = (now.mono, 0);
            }
        }
        self.last_echo = now.mono;
    }

    pub(super) fn handle_unreachable(&mut self, now: Now, node: NodeId) {
        self.agent_locations.remove_node(node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        // Messages of one moment are sent in several frames, which count as one failure.
        if peer.last_failure.is_none_or(|at| now.mono - at >= limits::REMOTE_COUNT_INTERVAL / 2) {
            peer.last_failure = Some(now.mono);
            peer.failed_reports += 1;
        }
    }

    // === accepted calls ===

    fn handle_order(&mut self, now: Now, call: RemoteCallId, n: u64, order: &Arc<Order>) {
        if !self.incoming.contains_key(&call) {
            let Order::Invoke(invoke) = &**order else { return };
            if self.peers.get(&call.0).is_some_and(|peer| peer.has_ended(call.1)) {
                return self.publish(call.0, RemoteMessage::GivenUp { call: call.1 });
            }
            if n > 0 {
                return;
            }
            self.note_call(now, call.0);
            let receiver = CallReceiver { received: 1, delivered: 1, reported: 0 };
            self.incoming.insert(
                call,
                IncomingAttempt { sender: CallSender::default(), receiver, is_assigned: false, has_ended: false },
            );
            return self.outputs.push_back(Output::FindConnection(call, Box::new(invoke.clone())));
        }
        let Some(taken_on) = self.incoming.get_mut(&call) else { return };
        if taken_on.receiver.accept(n) {
            taken_on.receiver.delivered += 1;
            if taken_on.is_assigned && !taken_on.has_ended {
                self.outputs.push_back(Output::Order(call, Box::new(Order::clone(order))));
            }
        }
    }

    pub(super) fn handle_abandoned(&mut self, now: Now, call: RemoteCallId) {
        if self.incoming.remove(&call).is_some() {
            self.peer(now, call.0).mark_ended(call.1);
            self.outputs.push_back(Output::Abandoned(call));
        }
    }

    /// Handles a progress report about a call that the other node started and this node accepted.
    fn handle_outgoing_progress(
        &mut self,
        now: Now,
        from: NodeId,
        CallProgress { call, received: got, delivered: taken }: CallProgress,
    ) {
        let Some(taken_on) = self.incoming.get_mut(&(from, call)) else {
            // An unknown call will be sent again; a call that has ended must not be accepted again.
            if self.peers.get(&from).is_some_and(|peer| peer.has_ended(call)) {
                self.publish(from, RemoteMessage::GivenUp { call });
            }
            return;
        };
        let more = taken_on.sender.handle_report(got, taken);
        if taken_on.has_ended && taken_on.sender.unconfirmed_count() == 0 {
            return self.handle_abandoned(now, (from, call));
        }
        let lost = taken_on.sender.lost_messages();
        if more > 0 {
            self.outputs.push_back(Output::Credit((from, call), more));
        }
        for (n, spoken) in lost {
            self.publish(from, RemoteMessage::Event { call, n, event: spoken });
        }
    }

    // === started calls ===

    fn handle_event(&mut self, from: NodeId, call: u64, n: u64, spoken: RemoteEvent) {
        let Some(begun) = self.outgoing.get_mut(&call).filter(|begun| begun.to == from) else {
            return self.publish(from, RemoteMessage::Abandoned { call });
        };
        if !begun.receiver.accept(n) {
            return;
        }
        let output = match spoken {
            RemoteEvent::Assigned(capabilities) => {
                begun.receiver.delivered += 1;
                Output::Assigned(call, capabilities)
            }
            RemoteEvent::Text { kind, text, id } => Output::Event(
                call,
                AttemptEvent::Message(AgentMessage::Delta { kind, text: text.reveal().to_owned(), id }),
            ),
            RemoteEvent::Other(event) => Output::Event(call, AttemptEvent::clone(&event)),
            RemoteEvent::NoCapacity => return self.handle_no_capacity(call),
            RemoteEvent::ConnectionLost => return self.fail_call(call),
        };
        self.outputs.push_back(output);
    }

    /// Handles a refusal: the agent has received nothing.
    fn handle_no_capacity(&mut self, call: u64) {
        if let Some(OutgoingAttempt { to, .. }) = self.outgoing.remove(&call) {
            self.publish(to, RemoteMessage::Abandoned { call });
            self.outputs.push_back(Output::NoCapacity(call));
        }
    }

    /// Handles a progress report about a call that this node started and the other node accepted.
    fn handle_incoming_progress(
        &mut self,
        from: NodeId,
        CallProgress { call, received: got, delivered: taken }: CallProgress,
    ) {
        let Some(begun) = self.outgoing.get_mut(&call).filter(|begun| begun.to == from) else {
            return self.publish(from, RemoteMessage::Abandoned { call });
        };
        begun.sender.handle_report(got, taken);
        for (n, order) in begun.sender.lost_messages() {
            self.publish(from, RemoteMessage::Order { call, n, order });
        }
    }
}
