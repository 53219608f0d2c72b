//! The state machine of the connection of an agent that dials in (protocol.md §1.6): orders become messages,
//! messages become attempt events, and every other message is answered or closes the connection.
mod machine;

pub use machine::DialIn;

use crate::connection::RefreshOutcome;
use std::borrow::Cow;
use std::fmt;
use turnway_core::id::{AgentId, NodeId, RequestId, RunId};
use turnway_core::protocol::agent::Order;
use turnway_core::time::Millis;
use turnway_wire::agent::AttemptEvent;
use turnway_wire::channel::hello::{Credential, DialInCapabilities};

/// The settings of a connection: its node, and the agent at its other end.
#[derive(Clone, Debug)]
pub struct DialInConfig {
    pub agent: AgentId,
    pub capabilities: DialInCapabilities,
    /// The agent's events have ids, so an attempt can be resumed after one.
    pub has_event_ids: bool,
    /// Sent to the peer as `welcome.node_id`.
    pub node: NodeId,
    /// For `welcome.connection_id`; unique in the fleet.
    pub connection_id: String,
    /// The expiry of the credential, if it must be refreshed.
    pub expires: Option<Millis>,
    /// Heartbeat jitter in per mille of the period, drawn by the driver: 900 to 1100.
    pub heartbeat_permille: u32,
}

/// An input of the connection. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone)]
pub enum Input {
    /// A complete text message arrived.
    Text(String),
    /// A binary message arrived (1003).
    Binary,
    /// A message over the limit arrived, or began to (4413).
    TooLarge,
    /// Other activity of the peer; also reported while reads are paused, so that the pause does not count as
    /// silence.
    SignOfLife,
    /// Bytes of an incomplete message arrived.
    PartialMessage,
    /// An order for the agent.
    Order(Box<Order>),
    /// The node is leaving: the agent should connect to another node and finish its open attempts here.
    Draining,
    /// Authentication has answered [`Output::Refresh`].
    Refreshed { request_id: Option<RequestId>, renewal: RefreshOutcome },
    /// The transport has written every text drained so far.
    Flushed,
}

/// An output of the connection for its driver. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq)]
pub enum Output {
    /// Write a text message.
    Write(String),
    /// An event of an attempt that was ordered here; nothing follows after the attempt's last event.
    AttemptEvent { run_id: RunId, attempt: u32, event: AttemptEvent },
    /// The agent is alive in this attempt; to be reported only if no other event of the attempt waits to be taken.
    AttemptAlive { run_id: RunId, attempt: u32 },
    /// Authenticate the next credential of the same user; answered by `Refreshed`.
    Refresh { request_id: Option<RequestId>, token: Credential },
    /// Write a transport-level ping.
    Ping,
    /// Close the connection with this code; nothing follows.
    Close {
        /// Close code (protocol.md §1.3).
        code: u16,
        /// Text for a person.
        reason: Cow<'static, str>,
    },
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text(<{} bytes>)", text.len()),
            Self::Binary => f.write_str("Binary"),
            Self::TooLarge => f.write_str("TooLarge"),
            Self::SignOfLife => f.write_str("SignOfLife"),
            Self::PartialMessage => f.write_str("PartialMessage"),
            Self::Order(order) => write!(f, "Order({order:?})"),
            Self::Draining => f.write_str("Draining"),
            Self::Refreshed { renewal, .. } => write!(f, "Refreshed({renewal:?})"),
            Self::Flushed => f.write_str("Flushed"),
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(text) => write!(f, "Write(<{} bytes>)", text.len()),
            Self::AttemptEvent { run_id, attempt, event } => {
                write!(f, "AttemptEvent({run_id}, {attempt}, last: {})", event.is_last())
            }
            Self::AttemptAlive { run_id, attempt } => write!(f, "AttemptAlive({run_id}, {attempt})"),
            Self::Refresh { token, .. } => write!(f, "Refresh({token:?})"),
            Self::Ping => f.write_str("Ping"),
            Self::Close { code, reason } => write!(f, "Close({code}, {reason})"),
        }
    }
}
