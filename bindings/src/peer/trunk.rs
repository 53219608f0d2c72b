//! What nodes say to each other of agents that have dialed in (protocol.md §1.6): who has some, and what is ordered and
//! said of an attempt whose agent is connected to another node than its session's owner.
//!
//! Words of a call have numbers of their own in each direction, from 0: what is lost on the way is said again.
use super::json;
use crate::dialin::Word;
use crate::link::Capabilities;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use turnway_core::id::{AgentId, NodeId, SaidId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::{Order, TextKind};
use turnway_core::protocol::json::json_bytes;

/// Whoever shares the bus, oneself among them. No node has this id.
pub const EVERYONE: NodeId = NodeId(0);

/// One such message. The order of variants and fields is the order of bytes in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TrunkWords {
    /// Whoever has agents, say so.
    Who,
    /// These agents are connected here, and no other.
    Serving {
        /// Each with what there is of it.
        agents: Vec<(AgentId, Serving)>,
    },
    /// Of an attempt that I want one of your agents to do; the first order begins it.
    Order {
        /// My number for it.
        call: u64,
        /// Which word of mine about it this is.
        n: u64,
        /// What.
        #[serde(with = "json")]
        order: Arc<Order>,
    },
    /// Of an attempt that you have ordered.
    Spoken {
        /// Your number for it.
        call: u64,
        /// Which word of mine about it this is.
        n: u64,
        /// What.
        spoken: Spoken,
    },
    /// How much I have of the calls that we share: what is missing is to be said again.
    Counts {
        /// Those that I have begun.
        begun: Vec<Count>,
        /// Those that you have.
        taken_on: Vec<Count>,
    },
    /// I do not listen to that call of mine any more.
    Hung {
        /// My number for it.
        call: u64,
    },
    /// I have given up that call of yours.
    Gone {
        /// Your number for it.
        call: u64,
    },
    /// Whichever of your agents knows of that run is to stop it.
    Halt {
        /// [`Order::Stop`].
        #[serde(with = "json")]
        order: Arc<Order>,
    },
}

/// What there is of an agent at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// Connections.
    pub connections: u32,
    /// Attempts that run over them.
    pub open: u32,
    /// There is room for one more.
    pub has_room: bool,
}

/// How much of a call one node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The number of whoever has begun it.
    pub call: u64,
    /// Words that were heard, from the first on.
    pub got: u64,
    /// Of these, so many were passed on: there is room for as many more.
    pub taken: u64,
}

/// What is said of an attempt by the node at which its agent is connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Spoken {
    /// A connection has it, which can do so much.
    Placed(Capabilities),
    /// No connection has room; nothing follows.
    Refused,
    /// A piece of text, as most words are.
    Text {
        /// Answer or reasoning.
        kind: TextKind,
        /// The piece.
        text: Private<Arc<str>>,
        /// What the agent calls it.
        id: Option<SaidId>,
    },
    /// Any other word of its agent.
    Word(#[serde(with = "json")] Arc<Word>),
    /// Its connection is gone; nothing follows.
    Lost,
}

// === impl TrunkWords ===

impl TrunkWords {
    /// Bytes they take in a queue: an estimate that is the same everywhere.
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
            // What an agent says besides text is short.
            Self::Spoken { .. } => 1024,
            Self::Who | Self::Hung { .. } | Self::Gone { .. } | Self::Halt { .. } => 0,
        }
    }
}
