//! The state machine of the calls between a node and all other nodes.
use super::flow::{Inflow, Outflow};
use super::roll::Roll;
use super::{Call, Input, Output};
use crate::dialin::Word;
use crate::dialin::said::Said;
use crate::link::Capabilities;
use crate::peer::Words;
use crate::peer::trunk::{Count, EVERYONE, Serving, Spoken, TrunkWords};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use turnway_core::id::{AgentId, NodeId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentFailure, Invoke, Order};
use turnway_core::protocol::json::json_bytes;
use turnway_core::time::{Deadline, Mono, Now};

mod hear;

/// Bytes of a frame besides the order itself: ids, numbers and lengths.
const ORDER_NAMES_BYTES: usize = 256;

/// The calls of one node, and the agents that other nodes serve.
///
/// The session's owner node starts a call, and the agent's node accepts it. Messages may be lost and Redis may be
/// unavailable, so messages are numbered, and both nodes report their counts every [`limits::TRUNK_COUNT`]; missing
/// messages are then sent again. A call ends with the agent's last event or with the loss of one of the nodes; then
/// the attempt is treated like one whose connection was lost.
#[derive(Debug)]
pub struct Trunk {
    me: NodeId,
    outputs: VecDeque<Output>,
    /// The agents connected to this node.
    serving: BTreeMap<AgentId, Serving>,
    roll: Roll,
    /// Calls that this node started.
    begun: BTreeMap<u64, Begun>,
    /// Calls that this node accepted.
    taken_on: BTreeMap<Call, TakenOn>,
    /// Nodes with present or recent calls.
    peers: BTreeMap<NodeId, Peer>,
    /// Time at which this node last received its own message; only after that does another node's silence mean
    /// anything.
    echo: Mono,
    /// Time of the next progress report, while there are calls.
    count_at: Option<Mono>,
    /// Time of the next announcement of this node's agents.
    serving_at: Option<Mono>,
    /// Earliest time of the next request for other nodes' agents.
    ask_at: Mono,
    leaving: bool,
}

/// A call that this node started.
#[derive(Debug)]
struct Begun {
    to: NodeId,
    out: Outflow<Arc<Order>>,
    heard: Inflow,
}

/// A call that this node accepted.
#[derive(Debug)]
struct TakenOn {
    out: Outflow<Spoken>,
    heard: Inflow,
    /// A connection was assigned.
    placed: bool,
    /// The last event was sent.
    over: bool,
}

/// A node with present or recent calls.
#[derive(Debug)]
struct Peer {
    heard: Mono,
    /// Consecutive progress reports that did not reach the node.
    unheard: u32,
    counted: Option<Mono>,
    /// Calls that have ended here; a late repetition does not start them again.
    over: BTreeSet<u64>,
    /// Every call below this number has ended too.
    over_below: u64,
}

// === impl Trunk ===

impl Trunk {
    /// Creates the state of a node without calls.
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            outputs: VecDeque::new(),
            serving: BTreeMap::new(),
            roll: Roll::default(),
            begun: BTreeMap::new(),
            taken_on: BTreeMap::new(),
            peers: BTreeMap::new(),
            echo: Mono::default(),
            count_at: None,
            serving_at: None,
            ask_at: Mono::default(),
            leaving: false,
        }
    }

    /// Returns the other node with the lowest load for this agent, except those in `tried`.
    pub fn best(&self, now: Now, agent: &AgentId, tried: &BTreeSet<NodeId>) -> Option<NodeId> {
        self.roll.best(now.mono, agent, tried)
    }

    /// Returns the other nodes that serve this agent, with their number of connections.
    pub fn elsewhere(&self, now: Now, agent: &AgentId) -> Vec<(NodeId, u32)> {
        self.roll.connections(now.mono, agent)
    }

    /// Returns the numbers of started and of accepted calls.
    pub fn calls(&self) -> (usize, usize) {
        (self.begun.len(), self.taken_on.len())
    }

    fn publish(&mut self, to: NodeId, words: TrunkWords) {
        self.outputs.push_back(Output::Publish { to, words: Words::Trunk(words) });
    }

    fn peer(&mut self, now: Now, node: NodeId) -> &mut Peer {
        let fresh = Peer { heard: now.mono, unheard: 0, counted: None, over: BTreeSet::new(), over_below: 0 };
        self.peers.entry(node).or_insert(fresh)
    }

    /// Returns whether there is a call with a node.
    fn shares(&self, node: NodeId) -> bool {
        self.begun.values().any(|begun| begun.to == node)
            || self.taken_on.range((node, 0)..=(node, u64::MAX)).next().is_some()
    }

    /// Notes a new call with a node: with the first call, earlier silence of the node is disregarded.
    fn engage(&mut self, now: Now, node: NodeId) {
        let is_first = !self.shares(node);
        let peer = self.peer(now, node);
        if is_first {
            (peer.heard, peer.unheard) = (now.mono, 0);
        }
        if self.count_at.is_none() {
            self.count_at = Some(now.mono + limits::TRUNK_COUNT);
            self.echo = now.mono;
        }
    }
}

impl Machine for Trunk {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Serving(agent, serving) => self.serve(now, agent, serving),
            Input::Leaving => {
                self.leaving = true;
                self.tell_serving(now);
            }
            Input::Begin { call, to, invoke } => self.begin(now, call, to, invoke),
            Input::Order(call, order) => self.order(call, *order),
            Input::Passed(call) => self.passed(call),
            Input::Hang(call) => {
                if let Some(begun) = self.begun.remove(&call) {
                    self.publish(begun.to, TrunkWords::Hung { call });
                }
            }
            Input::Place(call, capabilities) => {
                self.taken_on.get_mut(&call).into_iter().for_each(|it| it.placed = true);
                self.say(call, Spoken::Placed(capabilities));
            }
            Input::Refuse(call) => self.say(call, Spoken::Refused),
            Input::Say(call, word) => self.say(call, spoken(word)),
            Input::Lose(call) => self.say(call, Spoken::Lost),
            Input::Halt(agent, order) => {
                let order = Arc::new(*order);
                for (node, _) in self.roll.connections(now.mono, &agent) {
                    self.publish(node, TrunkWords::Halt { order: Arc::clone(&order) });
                }
            }
            Input::Wanted => {
                if self.ask_at <= now.mono {
                    self.ask_at = now.mono + limits::TRUNK_ASK;
                    self.publish(EVERYONE, TrunkWords::Who);
                }
            }
            Input::Peer(from, words) => self.hear(now, from, words),
            Input::Unheard(node) => self.unheard(now, node),
            Input::Gap => {
                self.publish(EVERYONE, TrunkWords::Who);
                if self.serving_at.is_some() {
                    self.tell_serving(now);
                }
            }
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.serving_at.is_some_and(|at| at <= now.mono) {
            self.tell_serving(now);
        }
        if self.count_at.is_some_and(|at| at <= now.mono) {
            self.count(now);
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let count = self.count_at.map(|at| Deadline { at, why: "count" });
        let serving = self.serving_at.map(|at| Deadline { at, why: "serving" });
        [count, serving].into_iter().flatten().min()
    }
}

// === sending ===

impl Trunk {
    fn serve(&mut self, now: Now, agent: AgentId, serving: Serving) {
        let was = match serving.connections {
            0 => self.serving.remove(&agent),
            _ => self.serving.insert(agent, serving),
        };
        let was = was.unwrap_or_default();
        // A change of the load alone is announced with the next periodic announcement.
        if (was.connections, was.has_room) != (serving.connections, serving.has_room) {
            self.tell_serving(now);
        }
    }

    fn tell_serving(&mut self, now: Now) {
        let agents = self.serving.iter().map(|(agent, serving)| {
            (agent.clone(), Serving { has_room: serving.has_room && !self.leaving, ..*serving })
        });
        let agents = agents.collect();
        self.publish(EVERYONE, TrunkWords::Serving { agents });
        self.serving_at = (!self.serving.is_empty()).then_some(now.mono + limits::SERVING);
    }

    fn begin(&mut self, now: Now, call: u64, to: NodeId, invoke: Box<Invoke>) {
        self.engage(now, to);
        self.roll.begun(to, &invoke.agent_id);
        self.begun.insert(call, Begun { to, out: Outflow::default(), heard: Inflow::default() });
        self.order(call, Order::Invoke(*invoke));
    }

    fn order(&mut self, call: u64, order: Order) {
        let Some(begun) = self.begun.get_mut(&call) else { return };
        // A connection that accepts no messages would have been given up long before this limit.
        if begun.out.unheard() >= limits::TRUNK_ORDERS_MAX {
            return self.lose(call);
        }
        // The order fits into no frame and would be sent again until the run's end.
        if json_bytes(&order) > limits::FRAME_BYTES_MAX - ORDER_NAMES_BYTES {
            return self.refuse_large(call);
        }
        let (to, order) = (begun.to, Arc::new(order));
        let n = begun.out.say(Arc::clone(&order));
        self.publish(to, TrunkWords::Order { call, n, order });
    }

    /// Fails a call whose order is too large to be sent.
    fn refuse_large(&mut self, call: u64) {
        let Some(begun) = self.begun.remove(&call) else { return };
        self.publish(begun.to, TrunkWords::Hung { call });
        // The starter of the call waits for an assignment first.
        self.outputs.push_back(Output::Placed(call, Capabilities::default()));
        self.outputs.push_back(Output::Word(call, Word::Said(Said::Failed(AgentFailure::TooLarge))));
        self.outputs.push_back(Output::Lost(call));
    }

    /// Fails a started call without a last event of its agent.
    fn lose(&mut self, call: u64) {
        if let Some(begun) = self.begun.remove(&call) {
            self.publish(begun.to, TrunkWords::Hung { call });
            self.outputs.push_back(Output::Lost(call));
        }
    }

    fn passed(&mut self, call: u64) {
        let Some(begun) = self.begun.get_mut(&call) else { return };
        begun.heard.taken += 1;
        if begun.heard.taken - begun.heard.told < limits::TRUNK_UNTAKEN_MAX as u64 / 4 {
            return;
        }
        let (to, count) = (begun.to, counted(call, &mut begun.heard));
        self.publish(to, TrunkWords::Counts { begun: vec![count], taken_on: Vec::new() });
    }

    fn say(&mut self, call: Call, spoken: Spoken) {
        let Some(taken_on) = self.taken_on.get_mut(&call).filter(|it| !it.over) else { return };
        taken_on.over = is_last(&spoken);
        let n = taken_on.out.say(spoken.clone());
        self.publish(call.0, TrunkWords::Spoken { call: call.1, n, spoken });
    }

    /// Reports progress of each call, and gives up the calls of nodes that are gone.
    fn count(&mut self, now: Now) {
        let nodes: BTreeSet<NodeId> = self
            .begun
            .values()
            .map(|begun| begun.to)
            .chain(self.taken_on.keys().map(|(node, _)| *node))
            .collect();
        let echo = self.echo;
        let is_gone = |node: &&NodeId| {
            self.peers.get(node).is_some_and(|peer| {
                peer.unheard >= limits::TRUNK_UNHEARD_MAX || echo - peer.heard > limits::TRUNK_SILENCE
            })
        };
        let gone: Vec<NodeId> = nodes.iter().filter(is_gone).copied().collect();
        for node in gone {
            self.give_up(now, node);
        }
        let mut counts: BTreeMap<NodeId, (Vec<Count>, Vec<Count>)> = BTreeMap::new();
        let mut again = Vec::new();
        for (call, begun) in &mut self.begun {
            // A node that has sent nothing about the call may not know of it.
            if begun.heard.got == 0 {
                again.extend(begun.out.lost().into_iter().map(|(n, order)| (begun.to, *call, n, order)));
            }
            begun.out.count();
            counts.entry(begun.to).or_default().0.push(counted(*call, &mut begun.heard));
        }
        for ((node, call), taken_on) in &mut self.taken_on {
            taken_on.out.count();
            counts.entry(*node).or_default().1.push(counted(*call, &mut taken_on.heard));
        }
        for (to, call, n, order) in again {
            self.publish(to, TrunkWords::Order { call, n, order });
        }
        let has_calls = !counts.is_empty();
        for (node, (begun, taken_on)) in counts {
            self.publish(node, TrunkWords::Counts { begun, taken_on });
        }
        if has_calls {
            self.publish(self.me, TrunkWords::Counts { begun: Vec::new(), taken_on: Vec::new() });
        }
        self.count_at = has_calls.then_some(now.mono + limits::TRUNK_COUNT);
        self.forget(now);
    }

    /// Removes a node that is gone, with its calls.
    fn give_up(&mut self, now: Now, node: NodeId) {
        self.roll.strike(node);
        let lost: Vec<u64> =
            self.begun.iter().filter(|(_, begun)| begun.to == node).map(|(call, _)| *call).collect();
        lost.into_iter().for_each(|call| self.lose(call));
        let hung: Vec<Call> =
            self.taken_on.range((node, 0)..=(node, u64::MAX)).map(|(call, _)| *call).collect();
        hung.into_iter().for_each(|call| self.hung(now, call));
    }

    /// Removes nodes without recent calls; a repeated message about an old call would be hours late.
    fn forget(&mut self, now: Now) {
        let shared: BTreeSet<NodeId> = self
            .begun
            .values()
            .map(|begun| begun.to)
            .chain(self.taken_on.keys().map(|(node, _)| *node))
            .collect();
        self.peers.retain(|node, peer| shared.contains(node) || now.mono - peer.heard < limits::TRUNK_MEMORY);
    }
}

// === impl Peer ===

impl Peer {
    /// Returns whether a call has ended and must not be accepted again.
    fn is_over(&self, call: u64) -> bool {
        call < self.over_below || self.over.contains(&call)
    }

    fn end(&mut self, call: u64) {
        self.over.insert(call);
        if self.over.len() > limits::TRUNK_OVER_MAX
            && let Some(oldest) = self.over.pop_first()
        {
            self.over_below = self.over_below.max(oldest + 1);
        }
    }
}

/// Returns the progress report of a call, and records it as reported.
fn counted(call: u64, heard: &mut Inflow) -> Count {
    heard.told = heard.taken;
    Count { call, got: heard.got, taken: heard.taken }
}

fn spoken(word: Word) -> Spoken {
    match word {
        Word::Said(Said::Delta { kind, text, id }) => Spoken::Text { kind, text: Private(text.into()), id },
        Word::Acked | Word::CancelAcked | Word::Said(_) => Spoken::Word(Arc::new(word)),
    }
}

fn is_last(spoken: &Spoken) -> bool {
    match spoken {
        Spoken::Word(word) => word.is_last(),
        Spoken::Refused | Spoken::Lost => true,
        Spoken::Placed(_) | Spoken::Text { .. } => false,
    }
}
