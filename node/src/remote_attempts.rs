//! Remote attempts: attempts at agents that have dialed in at another node than that of the session's owner
//! (protocol.md §1.6).
mod agent_locations;
mod flow;
mod machine;

pub use machine::RemoteAttempts;

use std::fmt;
use turnway_core::id::{AgentId, NodeId};
use turnway_core::protocol::agent::{Invoke, Order};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::channel::hello::DialInCapabilities;
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::remote::{AgentCapacity, RemoteMessage};

/// The id of a call: the node that started it, and that node's number.
pub type RemoteCallId = (NodeId, u64);

/// An input of the remote attempts. `Debug` prints no content of agents (S-38).
#[derive(Clone, PartialEq)]
pub enum Input {
    /// The capacity of an agent at this node; zero connections remove the agent.
    Capacity(AgentId, AgentCapacity),
    /// This node is shutting down: other nodes must not rely on its agents.
    Draining,
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
    EventDelivered(u64),
    /// The call has no listener any more.
    Abandon(u64),
    /// A connection was assigned to an accepted call.
    Assigned(RemoteCallId, DialInCapabilities),
    /// No connection has capacity for an accepted call.
    NoCapacity(RemoteCallId),
    /// An event of the agent of an accepted call.
    Event(RemoteCallId, AttemptEvent),
    /// The agent's connection of an accepted call was lost.
    ConnectionLost(RemoteCallId),
    /// Tells every connection of an agent, on all nodes, to stop a run: [`Order::Stop`].
    Stop(AgentId, Box<Order>),
    /// An attempt waits for an agent that no known node serves.
    AgentWanted,
    /// A message of a node, which may be this one.
    Peer(NodeId, RemoteMessage),
    /// The node did not receive a published message.
    NodeUnreachable(NodeId),
    /// Published messages may have been missed.
    MessagesMissed,
}

/// An output for the driver. `Debug` prints no content of agents (S-38).
#[derive(Clone, PartialEq)]
pub enum Output {
    /// Publish a message to a node, or to [`ALL_NODES`](turnway_wire::peer::remote::ALL_NODES).
    Publish { to: NodeId, message: PeerMessage },
    /// A call that this node started has a connection with these capabilities.
    Assigned(u64, DialInCapabilities),
    /// The other node has no connection with capacity; nothing follows.
    NoCapacity(u64),
    /// An event of the agent; to be answered by [`Input::EventDelivered`].
    Event(u64, AttemptEvent),
    /// The agent's connection, or its node, was lost; nothing follows.
    ConnectionLost(u64),
    /// Find a connection for an accepted call; to be answered by [`Input::Assigned`] or [`Input::NoCapacity`].
    FindConnection(RemoteCallId, Box<Invoke>),
    /// A further order for the agent of an accepted call.
    Order(RemoteCallId, Box<Order>),
    /// The number of further events that were passed on.
    Credit(RemoteCallId, u64),
    /// The accepted call has no listener any more; nothing follows.
    Abandoned(RemoteCallId),
    /// Send an order to every connection of its agent.
    Stop(Box<Order>),
    /// A node has capacity for an attempt at this agent.
    AgentAvailable(AgentId),
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity(agent, capacity) => write!(f, "Capacity({agent}, {capacity:?})"),
            Self::Draining => f.write_str("Draining"),
            Self::Begin { call, to, invoke } => write!(f, "Begin({call}, {to}, {invoke:?})"),
            Self::Order(call, order) => write!(f, "Order({call}, {order:?})"),
            Self::EventDelivered(call) => write!(f, "EventDelivered({call})"),
            Self::Abandon(call) => write!(f, "Abandon({call})"),
            Self::Assigned(call, capabilities) => write!(f, "Assigned({call:?}, {capabilities:?})"),
            Self::NoCapacity(call) => write!(f, "NoCapacity({call:?})"),
            Self::Event(call, event) => write!(f, "Event({call:?}, last: {})", event.is_last()),
            Self::ConnectionLost(call) => write!(f, "ConnectionLost({call:?})"),
            Self::Stop(agent, order) => write!(f, "Stop({agent}, {order:?})"),
            Self::AgentWanted => f.write_str("AgentWanted"),
            Self::Peer(from, message) => write!(f, "Peer({from}, {message:?})"),
            Self::NodeUnreachable(node) => write!(f, "NodeUnreachable({node})"),
            Self::MessagesMissed => f.write_str("MessagesMissed"),
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish { to, message } => write!(f, "Publish({to}, {message:?})"),
            Self::Assigned(call, capabilities) => write!(f, "Assigned({call}, {capabilities:?})"),
            Self::NoCapacity(call) => write!(f, "NoCapacity({call})"),
            Self::Event(call, event) => write!(f, "Event({call}, last: {})", event.is_last()),
            Self::ConnectionLost(call) => write!(f, "ConnectionLost({call})"),
            Self::FindConnection(call, invoke) => write!(f, "FindConnection({call:?}, {invoke:?})"),
            Self::Order(call, order) => write!(f, "Order({call:?}, {order:?})"),
            Self::Credit(call, events) => write!(f, "Credit({call:?}, {events})"),
            Self::Abandoned(call) => write!(f, "Abandoned({call:?})"),
            Self::Stop(order) => write!(f, "Stop({order:?})"),
            Self::AgentAvailable(agent) => write!(f, "AgentAvailable({agent})"),
        }
    }
}
