//! Inputs and outputs of the switchboard.
use std::collections::BTreeSet;
use turnway_core::id::{Epoch, EventId, LinkId, NodeId, Principal, RunId, SessionId, SessionKey};
use turnway_core::protocol::action::{ToolOrder, ToolReport};
use turnway_core::protocol::agent::{AgentEvent, Order};
use turnway_core::store::{Op, Reply, StoreError};
use turnway_wire::channel::adapter::AdapterHello;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::Notification;
use turnway_wire::peer::PeerMessage;

/// An input of the switchboard.
#[derive(Clone, Debug)]
pub enum Input {
    /// A link was admitted.
    Connect {
        /// Assigned for each accepted connection, never by the client.
        link: LinkId,
        principal: Principal,
    },
    /// A link that was admitted serves an account of a platform.
    ServeAccount { link: LinkId, adapter: Box<AdapterHello> },
    /// A link has disconnected.
    Disconnect { link: LinkId },
    /// A command of a link.
    Command { link: LinkId, command: LinkCommand },
    /// A link has written notifications of this weight to its peer since the last report. Reports come at least
    /// every [`turnway_core::limits::LINK_REPORT_BYTES`].
    Written {
        link: LinkId,
        /// Sum of [`Notification::weight`].
        weight: usize,
    },
    /// Pauses or resumes a session's notifications to a link whose client does not read the text.
    PauseSession {
        link: LinkId,
        session: SessionId,
        /// True pauses, false resumes.
        is_paused: bool,
    },
    /// A message of another node.
    Peer { from: NodeId, message: PeerMessage },
    /// The bus could not deliver a message of this node.
    PublishFailed { to: NodeId },
    /// The subscription to this node's inbox was renewed: messages may have been missed.
    MessagesMissed,
    /// A reply of the store. The op identifies its continuation.
    Stored { op: Op, result: Result<Reply, StoreError> },
    /// Events of an agent.
    Agent {
        key: SessionKey,
        run_id: RunId,
        attempt: u32,
        /// The ownership epoch of the order.
        epoch: Epoch,
        /// Events since the last input, in order; their facts go into one append.
        events: Vec<AgentEvent>,
    },
    /// A tool runner's report about an action.
    Tool { key: SessionKey, action_id: EventId, report: ToolReport },
    /// Shut down: accept nothing new, let running turns end for [`turnway_core::limits::DRAIN_TIMEOUT`], hand over,
    /// exit.
    Drain,
    /// The nodes that can take over a leaving node's sessions. Sent once during the shutdown, if there are any.
    Successors(BTreeSet<NodeId>),
    /// The level of facts that every live node knows. Until the first such input, the node takes it to be the lowest,
    /// unless it is alone.
    FactLevel(u32),
}

impl Input {
    /// Returns the session that the input is about, if any.
    pub fn key(&self) -> Option<&SessionKey> {
        match self {
            Self::Stored { op, .. } => op.key(),
            Self::Agent { key, .. } | Self::Tool { key, .. } => Some(key),
            Self::Peer { message, .. } => message.key(),
            Self::Connect { .. }
            | Self::ServeAccount { .. }
            | Self::Disconnect { .. }
            | Self::Command { .. }
            | Self::Written { .. }
            | Self::PublishFailed { .. }
            | Self::MessagesMissed
            | Self::Drain
            | Self::PauseSession { .. }
            | Self::Successors(_)
            | Self::FactLevel(_) => None,
        }
    }
}

/// An output for the shell to perform.
#[derive(Clone, Debug)]
pub enum Output {
    /// Perform an op on the store.
    Store(Op),
    /// Send a message to a node's inbox.
    Publish { to: NodeId, message: PeerMessage },
    /// Send an order to an agent.
    Order(Order),
    /// Send an order to a tool runner.
    Tool(ToolOrder),
    /// Send a notification to a local link: facts in order, without gaps or repeats.
    Notify { link: LinkId, notification: Notification },
    /// The shutdown is complete.
    Exit,
}
