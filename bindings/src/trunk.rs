//! Attempts at agents that have dialed in at another node, as a machine (protocol.md §1.6).
//!
//! The node that owns a session *begins* a call, the one at which the agent is connected *takes it on*. What they say
//! to each other may be lost on the way, and Redis may be away: words have numbers, and each of the two says every
//! [`TRUNK_COUNT`](turnway_core::limits::TRUNK_COUNT) how many it has, so that the other says again what is missing. A
//! call ends with its agent's last word, or when one of the two is gone; then its attempt goes the way of one whose
//! connection was lost.
//!
//! - `flow`: one direction of a call; `roll`: who serves which agents; `machine`: the calls.
mod flow;
mod machine;
mod roll;

pub use machine::Trunk;

use crate::dialin::Word;
use crate::link::Capabilities;
use crate::peer::Words;
use crate::peer::trunk::{Serving, TrunkWords};
use std::fmt;
use turnway_core::id::{AgentId, NodeId};
use turnway_core::protocol::agent::{Invoke, Order};

/// A call, by the node that has begun it and that node's number for it.
pub type Call = (NodeId, u64);

/// What may happen to it. Prints no words of agents (S-38).
#[derive(Clone, PartialEq)]
pub enum Input {
    /// There is this much of an agent at this node; without connections there is none.
    Serving(AgentId, Serving),
    /// This node leaves: its agents are not to be counted on.
    Leaving,
    /// An attempt is to run at that node's agent. Numbers of calls grow.
    Begin {
        /// Its number.
        call: u64,
        /// Where.
        to: NodeId,
        /// What.
        invoke: Box<Invoke>,
    },
    /// Something more for the agent of a call that was begun.
    Order(u64, Box<Order>),
    /// A word of its agent was passed on.
    Passed(u64),
    /// Nobody listens to it any more.
    Hang(u64),
    /// A connection has what was rung for.
    Place(Call, Capabilities),
    /// None has room for it.
    Refuse(Call),
    /// Its agent says this.
    Say(Call, Word),
    /// Its connection is gone.
    Lose(Call),
    /// Every process of an agent is told to stop something: [`Order::Stop`].
    Halt(AgentId, Box<Order>),
    /// An attempt waits for an agent that nobody has.
    Wanted,
    /// A node says this; it may be this one.
    Peer(NodeId, TrunkWords),
    /// Nobody listened at that node.
    Unheard(NodeId),
    /// Words may have been missed.
    Gap,
}

/// What it asks its driver to do. Prints no words of agents (S-38).
#[derive(Clone, PartialEq)]
pub enum Output {
    /// Say this to a node, which may be [`EVERYONE`](crate::peer::trunk::EVERYONE).
    Publish {
        /// Whom.
        to: NodeId,
        /// What.
        words: Words,
    },
    /// A call that was begun has a connection, which can do so much.
    Placed(u64, Capabilities),
    /// It has none there; nothing follows.
    Refused(u64),
    /// Its agent says this; to be answered by [`Input::Passed`].
    Word(u64, Word),
    /// Its connection, or the node of it, is gone; nothing follows.
    Lost(u64),
    /// A connection is to be found for this; to be answered by [`Input::Place`] or [`Input::Refuse`].
    Ring(Call, Box<Invoke>),
    /// Something more for the agent of a call that was taken on.
    Order(Call, Box<Order>),
    /// So many more words of its agent were passed on.
    Room(Call, u64),
    /// Nobody listens to it any more; nothing follows.
    Hung(Call),
    /// Tell every connection of this order's agent.
    Halt(Box<Order>),
    /// Somebody has room for an attempt at this agent.
    Came(AgentId),
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serving(agent, serving) => write!(f, "Serving({agent}, {serving:?})"),
            Self::Leaving => f.write_str("Leaving"),
            Self::Begin { call, to, invoke } => write!(f, "Begin({call}, {to}, {invoke:?})"),
            Self::Order(call, order) => write!(f, "Order({call}, {order:?})"),
            Self::Passed(call) => write!(f, "Passed({call})"),
            Self::Hang(call) => write!(f, "Hang({call})"),
            Self::Place(call, capabilities) => write!(f, "Place({call:?}, {capabilities:?})"),
            Self::Refuse(call) => write!(f, "Refuse({call:?})"),
            Self::Say(call, word) => write!(f, "Say({call:?}, last: {})", word.is_last()),
            Self::Lose(call) => write!(f, "Lose({call:?})"),
            Self::Halt(agent, order) => write!(f, "Halt({agent}, {order:?})"),
            Self::Wanted => f.write_str("Wanted"),
            Self::Peer(from, words) => write!(f, "Peer({from}, {words:?})"),
            Self::Unheard(node) => write!(f, "Unheard({node})"),
            Self::Gap => f.write_str("Gap"),
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish { to, words } => write!(f, "Publish({to}, {words:?})"),
            Self::Placed(call, capabilities) => write!(f, "Placed({call}, {capabilities:?})"),
            Self::Refused(call) => write!(f, "Refused({call})"),
            Self::Word(call, word) => write!(f, "Word({call}, last: {})", word.is_last()),
            Self::Lost(call) => write!(f, "Lost({call})"),
            Self::Ring(call, invoke) => write!(f, "Ring({call:?}, {invoke:?})"),
            Self::Order(call, order) => write!(f, "Order({call:?}, {order:?})"),
            Self::Room(call, words) => write!(f, "Room({call:?}, {words})"),
            Self::Hung(call) => write!(f, "Hung({call:?})"),
            Self::Halt(order) => write!(f, "Halt({order:?})"),
            Self::Came(agent) => write!(f, "Came({agent})"),
        }
    }
}
