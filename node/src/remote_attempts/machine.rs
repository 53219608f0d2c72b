//! The state machine of the calls between a node and all other nodes.
use super::agent_locations::AgentLocations;
use super::flow::{CallReceiver, CallSender};
use super::{Input, Output, RemoteCallId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use turnway_core::id::{AgentId, NodeId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentFailure, Invoke, Order};
use turnway_core::protocol::json::json_bytes;
use turnway_core::time::{Deadline, Mono, Now};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;
use turnway_wire::channel::hello::DialInCapabilities;
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::remote::{ALL_NODES, AgentCapacity, CallProgress, RemoteEvent, RemoteMessage};

mod inbound;

/// Bytes of a frame besides the order itself: ids, numbers and lengths.
const ORDER_NAMES_BYTES: usize = 256;

/// The calls of one node, and the agents that other nodes serve.
///
/// The session's owner node starts a call, and the agent's node accepts it. Messages may be lost and Redis may be
/// unavailable, so messages are numbered, and both nodes report their counts every [`limits::REMOTE_COUNT_INTERVAL`];
/// missing messages are then sent again. A call ends with the agent's last event or with the loss of one of the nodes;
/// then the attempt is treated like one whose connection was lost.
#[derive(Debug)]
pub struct RemoteAttempts {
    me: NodeId,
    outputs: VecDeque<Output>,
    /// The agents connected to this node.
    local_agents: BTreeMap<AgentId, AgentCapacity>,
    agent_locations: AgentLocations,
    /// Calls that this node started.
    outgoing: BTreeMap<u64, OutgoingAttempt>,
    /// Calls that this node accepted.
    incoming: BTreeMap<RemoteCallId, IncomingAttempt>,
    /// Nodes with present or recent calls.
    peers: BTreeMap<NodeId, PeerCalls>,
    /// Time at which this node last received its own message; only after that does another node's silence mean
    /// anything.
    last_echo: Mono,
    /// Time of the next progress report, while there are calls.
    next_report: Option<Mono>,
    /// Time of the next announcement of this node's agents.
    next_announcement: Option<Mono>,
    /// Earliest time of the next request for other nodes' agents.
    next_query: Mono,
    draining: bool,
}

/// A call that this node started.
#[derive(Debug)]
struct OutgoingAttempt {
    to: NodeId,
    sender: CallSender<Arc<Order>>,
    receiver: CallReceiver,
}

/// A call that this node accepted.
#[derive(Debug)]
struct IncomingAttempt {
    sender: CallSender<RemoteEvent>,
    receiver: CallReceiver,
    /// A connection was assigned.
    is_assigned: bool,
    /// The last event was sent.
    has_ended: bool,
}

/// A node with present or recent calls.
#[derive(Debug)]
struct PeerCalls {
    last_heard: Mono,
    /// Consecutive progress reports that did not reach the node.
    failed_reports: u32,
    last_failure: Option<Mono>,
    /// Calls that have ended here; a late repetition does not start them again.
    ended_calls: BTreeSet<u64>,
    /// Every call below this number has ended too.
    ended_below: u64,
}

// === impl RemoteAttempts ===

impl RemoteAttempts {
    /// Creates the state of a node without calls.
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            outputs: VecDeque::new(),
            local_agents: BTreeMap::new(),
            agent_locations: AgentLocations::default(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            peers: BTreeMap::new(),
            last_echo: Mono::default(),
            next_report: None,
            next_announcement: None,
            next_query: Mono::default(),
            draining: false,
        }
    }

    /// Returns the other node with the lowest load for this agent, except those in `tried`.
    pub fn least_loaded_node(&self, now: Now, agent: &AgentId, tried: &BTreeSet<NodeId>) -> Option<NodeId> {
        self.agent_locations.least_loaded_node(now.mono, agent, tried)
    }

    /// Returns the other nodes that serve this agent, with their number of connections.
    pub fn other_nodes(&self, now: Now, agent: &AgentId) -> Vec<(NodeId, u32)> {
        self.agent_locations.connections(now.mono, agent)
    }

    /// Returns the numbers of started and of accepted calls.
    pub fn call_counts(&self) -> (usize, usize) {
        (self.outgoing.len(), self.incoming.len())
    }

    fn publish(&mut self, to: NodeId, words: RemoteMessage) {
        self.outputs.push_back(Output::Publish { to, message: PeerMessage::RemoteAttempt(words) });
    }

    fn peer(&mut self, now: Now, node: NodeId) -> &mut PeerCalls {
        let fresh = PeerCalls {
            last_heard: now.mono,
            failed_reports: 0,
            last_failure: None,
            ended_calls: BTreeSet::new(),
            ended_below: 0,
        };
        self.peers.entry(node).or_insert(fresh)
    }

    /// Returns whether there is a call with a node.
    fn has_call_with(&self, node: NodeId) -> bool {
        self.outgoing.values().any(|begun| begun.to == node)
            || self.incoming.range((node, 0)..=(node, u64::MAX)).next().is_some()
    }

    /// Notes a new call with a node: with the first call, earlier silence of the node is disregarded.
    fn note_call(&mut self, now: Now, node: NodeId) {
        let is_first = !self.has_call_with(node);
        let peer = self.peer(now, node);
        if is_first {
            (peer.last_heard, peer.failed_reports) = (now.mono, 0);
        }
        if self.next_report.is_none() {
            self.next_report = Some(now.mono + limits::REMOTE_COUNT_INTERVAL);
            self.last_echo = now.mono;
        }
    }
}

impl Machine for RemoteAttempts {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Capacity(agent, serving) => self.set_capacity(now, agent, serving),
            Input::Draining => {
                self.draining = true;
                self.announce_agents(now);
            }
            Input::Begin { call, to, invoke } => self.start_call(now, call, to, invoke),
            Input::Order(call, order) => self.send_order(call, *order),
            Input::EventDelivered(call) => self.event_delivered(call),
            Input::Abandon(call) => {
                if let Some(begun) = self.outgoing.remove(&call) {
                    self.publish(begun.to, RemoteMessage::Abandoned { call });
                }
            }
            Input::Assigned(call, capabilities) => {
                self.incoming.get_mut(&call).into_iter().for_each(|it| it.is_assigned = true);
                self.send_event(call, RemoteEvent::Assigned(capabilities));
            }
            Input::NoCapacity(call) => self.send_event(call, RemoteEvent::NoCapacity),
            Input::Event(call, event) => self.send_event(call, remote_event(event)),
            Input::ConnectionLost(call) => self.send_event(call, RemoteEvent::ConnectionLost),
            Input::Stop(agent, order) => {
                let order = Arc::new(*order);
                for (node, _) in self.agent_locations.connections(now.mono, &agent) {
                    self.publish(node, RemoteMessage::Stop { order: Arc::clone(&order) });
                }
            }
            Input::AgentWanted => {
                if self.next_query <= now.mono {
                    self.next_query = now.mono + limits::REMOTE_QUERY_INTERVAL;
                    self.publish(ALL_NODES, RemoteMessage::ListAgents);
                }
            }
            Input::Peer(from, words) => self.handle_message(now, from, words),
            Input::NodeUnreachable(node) => self.handle_unreachable(now, node),
            Input::MessagesMissed => {
                self.publish(ALL_NODES, RemoteMessage::ListAgents);
                if self.next_announcement.is_some() {
                    self.announce_agents(now);
                }
            }
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.next_announcement.is_some_and(|at| at <= now.mono) {
            self.announce_agents(now);
        }
        if self.next_report.is_some_and(|at| at <= now.mono) {
            self.report_progress(now);
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let count = self.next_report.map(|at| Deadline { at, label: "count" });
        let serving = self.next_announcement.map(|at| Deadline { at, label: "serving" });
        [count, serving].into_iter().flatten().min()
    }
}

// === sending ===

impl RemoteAttempts {
    fn set_capacity(&mut self, now: Now, agent: AgentId, serving: AgentCapacity) {
        let was = match serving.connections {
            0 => self.local_agents.remove(&agent),
            _ => self.local_agents.insert(agent, serving),
        };
        let was = was.unwrap_or_default();
        // A change of the load alone is announced with the next periodic announcement.
        if (was.connections, was.has_room) != (serving.connections, serving.has_room) {
            self.announce_agents(now);
        }
    }

    fn announce_agents(&mut self, now: Now) {
        let agents = self.local_agents.iter().map(|(agent, serving)| {
            (agent.clone(), AgentCapacity { has_room: serving.has_room && !self.draining, ..*serving })
        });
        let agents = agents.collect();
        self.publish(ALL_NODES, RemoteMessage::Serving { agents });
        self.next_announcement =
            (!self.local_agents.is_empty()).then_some(now.mono + limits::SERVING_ANNOUNCE_INTERVAL);
    }

    fn start_call(&mut self, now: Now, call: u64, to: NodeId, invoke: Box<Invoke>) {
        self.note_call(now, to);
        self.agent_locations.count_call(to, &invoke.agent_id);
        self.outgoing
            .insert(call, OutgoingAttempt { to, sender: CallSender::default(), receiver: CallReceiver::default() });
        self.send_order(call, Order::Invoke(*invoke));
    }

    fn send_order(&mut self, call: u64, order: Order) {
        let Some(begun) = self.outgoing.get_mut(&call) else { return };
        // A connection that accepts no messages would have been given up long before this limit.
        if begun.sender.unconfirmed_count() >= limits::REMOTE_ORDERS_MAX {
            return self.fail_call(call);
        }
        // The order fits into no frame and would be sent again until the run's end.
        if json_bytes(&order) > limits::FRAME_BYTES_MAX - ORDER_NAMES_BYTES {
            return self.refuse_large(call);
        }
        let to = begun.to;
        let order = Arc::new(order);
        let n = begun.sender.push(Arc::clone(&order));
        self.publish(to, RemoteMessage::Order { call, n, order });
    }

    /// Fails a call whose order is too large to be sent.
    fn refuse_large(&mut self, call: u64) {
        let Some(begun) = self.outgoing.remove(&call) else { return };
        self.publish(begun.to, RemoteMessage::Abandoned { call });
        // The starter of the call waits for an assignment first.
        self.outputs.push_back(Output::Assigned(call, DialInCapabilities::default()));
        self.outputs
            .push_back(Output::Event(call, AttemptEvent::Message(AgentMessage::Failed(AgentFailure::TooLarge))));
        self.outputs.push_back(Output::ConnectionLost(call));
    }

    /// Fails a started call without a last event of its agent.
    fn fail_call(&mut self, call: u64) {
        if let Some(begun) = self.outgoing.remove(&call) {
            self.publish(begun.to, RemoteMessage::Abandoned { call });
            self.outputs.push_back(Output::ConnectionLost(call));
        }
    }

    fn event_delivered(&mut self, call: u64) {
        let Some(begun) = self.outgoing.get_mut(&call) else { return };
        begun.receiver.delivered += 1;
        if begun.receiver.delivered - begun.receiver.reported < limits::REMOTE_QUEUE_MAX as u64 / 4 {
            return;
        }
        let to = begun.to;
        let count = call_progress(call, &mut begun.receiver);
        self.publish(to, RemoteMessage::Progress { outgoing: vec![count], incoming: Vec::new() });
    }

    fn send_event(&mut self, call: RemoteCallId, spoken: RemoteEvent) {
        let Some(taken_on) = self.incoming.get_mut(&call).filter(|it| !it.has_ended) else { return };
        taken_on.has_ended = is_last(&spoken);
        let n = taken_on.sender.push(spoken.clone());
        self.publish(call.0, RemoteMessage::Event { call: call.1, n, event: spoken });
    }

    /// Reports progress of each call, and gives up the calls of nodes that are gone.
    fn report_progress(&mut self, now: Now) {
        let nodes: BTreeSet<NodeId> =
            self.outgoing.values().map(|begun| begun.to).chain(self.incoming.keys().map(|(node, _)| *node)).collect();
        let echo = self.last_echo;
        let is_gone = |node: &&NodeId| {
            self.peers.get(node).is_some_and(|peer| {
                peer.failed_reports >= limits::REMOTE_UNDELIVERED_COUNTS_MAX
                    || echo - peer.last_heard > limits::REMOTE_SILENCE
            })
        };
        let gone: Vec<NodeId> = nodes.iter().filter(is_gone).copied().collect();
        for node in gone {
            self.drop_node(now, node);
        }
        let mut counts: BTreeMap<NodeId, (Vec<CallProgress>, Vec<CallProgress>)> = BTreeMap::new();
        let mut again = Vec::new();
        for (call, begun) in &mut self.outgoing {
            // A node that has sent nothing about the call may not know of it.
            if begun.receiver.received == 0 {
                again.extend(begun.sender.lost_messages().into_iter().map(|(n, order)| (begun.to, *call, n, order)));
            }
            begun.sender.record_report();
            counts.entry(begun.to).or_default().0.push(call_progress(*call, &mut begun.receiver));
        }
        for ((node, call), taken_on) in &mut self.incoming {
            taken_on.sender.record_report();
            counts.entry(*node).or_default().1.push(call_progress(*call, &mut taken_on.receiver));
        }
        for (to, call, n, order) in again {
            self.publish(to, RemoteMessage::Order { call, n, order });
        }
        let has_calls = !counts.is_empty();
        for (node, (begun, taken_on)) in counts {
            self.publish(node, RemoteMessage::Progress { outgoing: begun, incoming: taken_on });
        }
        if has_calls {
            self.publish(self.me, RemoteMessage::Progress { outgoing: Vec::new(), incoming: Vec::new() });
        }
        self.next_report = has_calls.then_some(now.mono + limits::REMOTE_COUNT_INTERVAL);
        self.forget_idle_peers(now);
    }

    /// Removes a node that is gone, with its calls.
    fn drop_node(&mut self, now: Now, node: NodeId) {
        self.agent_locations.remove_node(node);
        let lost: Vec<u64> =
            self.outgoing.iter().filter(|(_, begun)| begun.to == node).map(|(call, _)| *call).collect();
        lost.into_iter().for_each(|call| self.fail_call(call));
        let hung: Vec<RemoteCallId> =
            self.incoming.range((node, 0)..=(node, u64::MAX)).map(|(call, _)| *call).collect();
        hung.into_iter().for_each(|call| self.handle_abandoned(now, call));
    }

    /// Removes nodes without recent calls; a repeated message about an old call would be hours late.
    fn forget_idle_peers(&mut self, now: Now) {
        let shared: BTreeSet<NodeId> =
            self.outgoing.values().map(|begun| begun.to).chain(self.incoming.keys().map(|(node, _)| *node)).collect();
        self.peers.retain(|node, peer| shared.contains(node) || now.mono - peer.last_heard < limits::REMOTE_NODE_KEPT);
    }
}

// === impl PeerCalls ===

impl PeerCalls {
    /// Returns whether a call has ended and must not be accepted again.
    fn has_ended(&self, call: u64) -> bool {
        call < self.ended_below || self.ended_calls.contains(&call)
    }

    fn mark_ended(&mut self, call: u64) {
        self.ended_calls.insert(call);
        if self.ended_calls.len() > limits::REMOTE_ENDED_CALLS_MAX
            && let Some(oldest) = self.ended_calls.pop_first()
        {
            self.ended_below = self.ended_below.max(oldest + 1);
        }
    }
}

/// Returns the progress report of a call, and records it as reported.
fn call_progress(call: u64, receiver: &mut CallReceiver) -> CallProgress {
    receiver.reported = receiver.delivered;
    CallProgress { call, received: receiver.received, delivered: receiver.delivered }
}

fn remote_event(event: AttemptEvent) -> RemoteEvent {
    match event {
        AttemptEvent::Message(AgentMessage::Delta { kind, text, id }) => {
            RemoteEvent::Text { kind, text: Private(text.into()), id }
        }
        AttemptEvent::Acked | AttemptEvent::CancelAcked | AttemptEvent::Message(_) => {
            RemoteEvent::Other(Arc::new(event))
        }
    }
}

fn is_last(spoken: &RemoteEvent) -> bool {
    match spoken {
        RemoteEvent::Other(event) => event.is_last(),
        RemoteEvent::NoCapacity | RemoteEvent::ConnectionLost => true,
        RemoteEvent::Assigned(_) | RemoteEvent::Text { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_calls_are_bounded_and_never_accepted_again() {
        let mut peer = PeerCalls {
            last_heard: Mono::default(),
            failed_reports: 0,
            last_failure: None,
            ended_calls: BTreeSet::new(),
            ended_below: 0,
        };
        let most = limits::REMOTE_ENDED_CALLS_MAX as u64;
        (0..most).for_each(|call| peer.mark_ended(call));
        assert_eq!((peer.ended_calls.len() as u64, peer.ended_below), (most, 0));
        (most..most + 2).for_each(|call| peer.mark_ended(call));
        assert_eq!((peer.ended_calls.len() as u64, peer.ended_below), (most, 2));
        assert!((0..most + 2).all(|call| peer.has_ended(call)) && !peer.has_ended(most + 2));
    }
}
