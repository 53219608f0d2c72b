//! Remote attempts: attempts at agents that have dialed in at another node than that of the session's owner
//! (protocol.md §1.6).
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

/// The id of a call: the node that started it, and that node's number.
pub type Call = (NodeId, u64);

/// An input of the remote attempts. `Debug` prints no content of agents (S-38).
#[derive(Clone, PartialEq)]
pub enum Input {
    /// The capacity of an agent at this node; zero connections remove the agent.
    Serving(AgentId, Serving),
    /// This node is shutting down: other nodes must not rely on its agents.
    Leaving,
    /// Start an attempt at an agent of another node. Numbers of calls increase.
    Begin {
        call: u64,
        /// The agent's node.
        to: NodeId,
        invoke: Box<Invoke>,
    },
    /// A further order for the agent of a call that this node started.
    Order(u64, Box<Order>),
    /// An event of the agent has been passed on.
    Passed(u64),
    /// The call has no listener any more.
    Hang(u64),
    /// A connection was assigned to an accepted call.
    Place(Call, Capabilities),
    /// No connection has capacity for an accepted call.
    Refuse(Call),
    /// An event of the agent of an accepted call.
    Say(Call, Word),
    /// The agent's connection of an accepted call was lost.
    Lose(Call),
    /// Tells every connection of an agent, on all nodes, to stop a run: [`Order::Stop`].
    Halt(AgentId, Box<Order>),
    /// An attempt waits for an agent that no known node serves.
    Wanted,
    /// A message of a node, which may be this one.
    Peer(NodeId, TrunkWords),
    /// The node did not receive a published message.
    Unheard(NodeId),
    /// Published messages may have been missed.
    Gap,
}

/// An output for the driver. `Debug` prints no content of agents (S-38).
#[derive(Clone, PartialEq)]
pub enum Output {
    /// Publish a message to a node, or to [`EVERYONE`](crate::peer::trunk::EVERYONE).
    Publish {
        to: NodeId,
        words: Words,
    },
    /// A call that this node started has a connection with these capabilities.
    Placed(u64, Capabilities),
    /// The other node has no connection with capacity; nothing follows.
    Refused(u64),
    /// An event of the agent; to be answered by [`Input::Passed`].
    Word(u64, Word),
    /// The agent's connection, or its node, was lost; nothing follows.
    Lost(u64),
    /// Find a connection for an accepted call; to be answered by [`Input::Place`] or [`Input::Refuse`].
    Ring(Call, Box<Invoke>),
    /// A further order for the agent of an accepted call.
    Order(Call, Box<Order>),
    /// The number of further events that were passed on.
    Room(Call, u64),
    /// The accepted call has no listener any more; nothing follows.
    Hung(Call),
    /// Send an order to every connection of its agent.
    Halt(Box<Order>),
    /// A node has capacity for an attempt at this agent.
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
