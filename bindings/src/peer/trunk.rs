//! Messages between nodes about agents that have dialed in (protocol.md §1.6): the agents that each node serves,
//! and the orders and events of attempts whose agent is connected to another node than the session's owner.
//! Messages of a call are numbered from 0 in each direction; lost messages are sent again.
use super::json;
use crate::dialin::Word;
use crate::link::Capabilities;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use turnway_core::id::{AgentId, NodeId, SaidId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{Order, TextKind};
use turnway_core::protocol::json::json_bytes;

/// The id that addresses every node on the bus, including the sender. No node has this id.
pub const EVERYONE: NodeId = NodeId(0);

/// One message about remote attempts. The order of variants and fields is their order in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TrunkWords {
    /// Every node with agents should announce them.
    Who,
    /// The complete list of agents that are connected to the sender.
    Serving {
        agents: Vec<(AgentId, Serving)>,
    },
    /// An order for an attempt at one of the receiver's agents; the first order starts the attempt.
    Order {
        /// The sender's number of the call.
        call: u64,
        /// The number of this message in the call.
        n: u64,
        #[serde(with = "json")]
        order: Arc<Order>,
    },
    /// An event of an attempt that the receiver has ordered.
    Spoken {
        /// The receiver's number of the call.
        call: u64,
        /// The number of this message in the call.
        n: u64,
        spoken: Spoken,
    },
    /// The messages received so far for the calls shared by the two nodes; missing messages are sent again.
    Counts {
        /// Calls that the sender started.
        begun: Vec<Count>,
        /// Calls that the receiver started.
        taken_on: Vec<Count>,
    },
    /// The sender has abandoned a call that it started.
    Hung {
        /// The sender's number of the call.
        call: u64,
    },
    /// The sender has given up a call that the receiver started.
    Gone {
        /// The receiver's number of the call.
        call: u64,
    },
    /// The receiver's agents should stop a run, if they know it.
    Halt {
        /// [`Order::Stop`].
        #[serde(with = "json")]
        order: Arc<Order>,
    },
}

/// The capacity of an agent at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    pub connections: u32,
    /// Attempts that run over these connections.
    pub open: u32,
    /// At least one more attempt can run.
    pub has_room: bool,
}

/// The messages of a call that one node has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The number of the call, chosen by the node that started it.
    pub call: u64,
    /// Messages received without a gap, from the first on.
    pub got: u64,
    /// Received messages that were passed on; the sender may send as many more.
    pub taken: u64,
}

/// An event of an attempt, from the node of the agent's connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Spoken {
    /// A connection was assigned; its agent has these capabilities.
    Placed(Capabilities),
    /// No connection has capacity; nothing follows.
    Refused,
    /// A piece of text; most events are pieces of text.
    Text {
        kind: TextKind,
        text: Private<Arc<str>>,
        /// The agent's id of the event.
        id: Option<SaidId>,
    },
    /// Any other event of the agent.
    Word(#[serde(with = "json")] Arc<Word>),
    /// The agent's connection was lost; nothing follows.
    Lost,
}

// === impl TrunkWords ===

impl TrunkWords {
    /// Returns an estimate of the message's size in a queue in bytes; the same on every node.
    pub fn weight(&self) -> usize {
        match self {
            Self::Serving { agents } => agents.len() * 96,
            Self::Order { order, .. } => match &**order {
                Order::Invoke(invoke) => {
                    json_bytes(&invoke.message)
                        + invoke.history.as_ref().map_or(0, |past| past.reveal().len())
                }
                Order::Steer(steer) => json_bytes(&steer.message),
                Order::News(news) => news.entry.weight(),
                Order::Cancel { .. } | Order::Drop { .. } | Order::Stop { .. } | Order::Credit { .. } => 0,
            },
            Self::Spoken { spoken: Spoken::Text { text, .. }, .. } => text.reveal().len(),
            Self::Counts { begun, taken_on } => (begun.len() + taken_on.len()) * 24,
            // Events other than text are short.
            Self::Spoken { .. } => 1024,
            Self::Who | Self::Hung { .. } | Self::Gone { .. } | Self::Halt { .. } => 0,
        }
    }
}
