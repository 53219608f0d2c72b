//! The duties that connections of every role share: the heartbeat, the expiry of the credential, the deadline of pending
//! writes, refusals and the close. The roles plug their messages in: clients in [`crate::link`], agents in
//! [`crate::dialin`], tool runners in [`crate::runner`].
mod expiry;
mod service;
mod state;

pub use service::{ServiceConnection, ServiceProtocol};
pub use state::ConnectionState;

use std::borrow::Cow;
use std::fmt;
use turnway_core::id::{NodeId, RequestId};
use turnway_core::time::Millis;
use turnway_wire::channel::hello::Credential;

/// The node's settings for the connection of an authenticated agent or tool runner.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Sent to the peer as `welcome.node_id`.
    pub node: NodeId,
    /// For `welcome.connection_id`; unique in the fleet.
    pub connection_id: String,
    /// The expiry of the credential, if it must be refreshed.
    pub expires: Option<Millis>,
    /// Heartbeat jitter in per mille of the period, drawn by the driver: 900 to 1100.
    pub heartbeat_permille: u32,
}

/// An input of an agent's or a tool runner's connection; `C` is a command of its role. `Debug` prints sizes instead of
/// texts (S-38).
#[derive(Clone)]
pub enum Input<C> {
    /// A complete text message arrived.
    Text(String),
    /// A binary message arrived (1003).
    Binary,
    /// A message over the limit arrived, or began to (4413).
    TooLarge,
    /// Other activity of the peer; also reported while reads are paused, so that the pause does not count as
    /// silence.
    SignOfLife,
    /// The node is leaving: the peer should connect to another node and finish its open work here.
    Draining,
    /// Authentication has answered [`Output::Refresh`].
    Refreshed { request_id: Option<RequestId>, renewal: RefreshOutcome },
    /// The transport has written every text drained so far.
    Flushed,
    /// A command of the connection's role.
    Command(C),
}

/// An output of a connection for its driver; `E` is an event of its role. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq)]
pub enum Output<E> {
    /// Write a text message.
    Write(String),
    /// Authenticate the next credential of the same user; answered by `Refreshed`.
    Refresh { request_id: Option<RequestId>, token: Credential },
    /// Write a transport-level ping.
    Ping,
    /// Write a close frame and close the connection; nothing follows.
    Close {
        /// Close code (protocol.md §1.3).
        code: u16,
        /// Text for a person.
        reason: Cow<'static, str>,
    },
    /// An event of the connection's role.
    Event(E),
}

/// The result of authenticating a new credential on an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshOutcome {
    /// Accepted; the credential expires at this time.
    Until(Millis),
    /// Not needed: the connection's present credential does not expire by itself.
    NotRequired,
    /// Invalid, or of another user (4401).
    Denied,
    /// Not checked: too many requests.
    RateLimited,
}

impl<C: fmt::Debug> fmt::Debug for Input<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text(<{} bytes>)", text.len()),
            Self::Binary => f.write_str("Binary"),
            Self::TooLarge => f.write_str("TooLarge"),
            Self::SignOfLife => f.write_str("SignOfLife"),
            Self::Draining => f.write_str("Draining"),
            Self::Refreshed { renewal, .. } => write!(f, "Refreshed({renewal:?})"),
            Self::Flushed => f.write_str("Flushed"),
            Self::Command(command) => command.fmt(f),
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for Output<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(text) => write!(f, "Write(<{} bytes>)", text.len()),
            Self::Refresh { token, .. } => write!(f, "Refresh({token:?})"),
            Self::Ping => f.write_str("Ping"),
            Self::Close { code, reason } => write!(f, "Close({code}, {reason})"),
            Self::Event(event) => event.fmt(f),
        }
    }
}
