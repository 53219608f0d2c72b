//! Messages between nodes about agents that have dialed in (protocol.md §1.6): the agents that each node serves,
//! and the orders and events of attempts whose agent is connected to another node than the session's owner.
//! Messages of a call are numbered from 0 in each direction; lost messages are sent again.
use crate::agent::AttemptEvent;
use crate::channel::hello::DialInCapabilities;
use std::sync::Arc;
use turnway_core::id::{AgentEventId, AgentId, NodeId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{Order, TextKind};
use turnway_core::protocol::history::History;
use turnway_core::protocol::json::json_bytes;

/// The id that addresses every node on the bus, including the sender. No node has this id.
pub const ALL_NODES: NodeId = NodeId(0);

/// One message about remote attempts.
#[derive(Clone, Debug, PartialEq)]
pub enum RemoteMessage {
    /// Every node with agents should announce them.
    ListAgents,
    /// The complete list of agents that are connected to the sender.
    Serving { agents: Vec<(AgentId, AgentCapacity)> },
    /// An order for an attempt at one of the receiver's agents; the first order starts the attempt.
    Order {
        /// The sender's number of the call.
        call: u64,
        /// The number of this message in the call.
        n: u64,
        order: Arc<Order>,
    },
    /// An event of an attempt that the receiver has ordered.
    Event {
        /// The receiver's number of the call.
        call: u64,
        /// The number of this message in the call.
        n: u64,
        event: RemoteEvent,
    },
    /// The messages received so far for the calls shared by the two nodes; missing messages are sent again.
    Progress {
        /// Calls that the sender started.
        outgoing: Vec<CallProgress>,
        /// Calls that the receiver started.
        incoming: Vec<CallProgress>,
    },
    /// The sender has abandoned a call that it started.
    Abandoned {
        /// The sender's number of the call.
        call: u64,
    },
    /// The sender has given up a call that the receiver started.
    GivenUp {
        /// The receiver's number of the call.
        call: u64,
    },
    /// The receiver's agents should stop a run, if they know it.
    Stop {
        /// Carries [`Order::Stop`] to the agent.
        order: Arc<Order>,
    },
}

/// The capacity of an agent at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCapacity {
    pub connections: u32,
    /// Attempts that run over these connections.
    pub open: u32,
    /// At least one more attempt can run.
    pub has_room: bool,
}

/// The messages of a call that one node has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallProgress {
    /// The number of the call, chosen by the node that started it.
    pub call: u64,
    /// Messages received without a gap, from the first on.
    pub received: u64,
    /// Received messages that were passed on; the sender may send as many more.
    pub delivered: u64,
}

/// An event of an attempt, from the node of the agent's connection.
#[derive(Clone, Debug, PartialEq)]
pub enum RemoteEvent {
    /// A connection was assigned; its agent has these capabilities.
    Assigned(DialInCapabilities),
    /// No connection has capacity; nothing follows.
    NoCapacity,
    /// A piece of text; most events are pieces of text.
    Text {
        kind: TextKind,
        text: Private<Arc<str>>,
        /// The agent's id of the event.
        id: Option<AgentEventId>,
    },
    /// Any other event of the agent.
    Other(Arc<AttemptEvent>),
    /// The agent's connection was lost; nothing follows.
    ConnectionLost,
}

// === impl RemoteMessage ===

impl RemoteMessage {
    /// Returns an estimate of the message's size in a queue in bytes; the same on every node.
    pub fn weight(&self) -> usize {
        match self {
            Self::Serving { agents } => agents.len() * 96,
            Self::Order { order, .. } => match &**order {
                Order::Invoke(invoke) => {
                    json_bytes(&invoke.message) + invoke.history.as_ref().map_or(0, History::weight)
                }
                Order::Steer(steer) => json_bytes(&steer.message),
                Order::News(delivery) => delivery.entry.weight(),
                Order::Cancel { .. } | Order::Drop { .. } | Order::Stop { .. } | Order::Credit { .. } => 0,
            },
            Self::Event { event: RemoteEvent::Text { text, .. }, .. } => text.reveal().len(),
            Self::Progress { outgoing: begun, incoming: taken_on } => (begun.len() + taken_on.len()) * 24,
            // Events other than text are short.
            Self::Event { .. } => 1024,
            Self::ListAgents | Self::Abandoned { .. } | Self::GivenUp { .. } | Self::Stop { .. } => 0,
        }
    }
}
