//! The state machine of one client connection: `hello`, authentication, the order of answers, and rendering.
//! Its driver must not read from the peer while a write is pending, so that a peer that does not read delays only
//! itself.
use crate::connection::{self, RefreshOutcome};
use std::fmt;
use turnway_core::id::{NodeId, Principal, RequestId, RunId, SessionId};
use turnway_core::time::Millis;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::hello::HelloRequest;
use turnway_wire::channel::notification::Notification;

mod answer_order;
mod machine;

pub use machine::Link;

/// An input of a link. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone)]
pub enum Input {
    /// A complete text message arrived.
    Text(String),
    /// A binary message arrived (WebSocket: closed with 1003).
    Binary,
    /// A message over the limit arrived, or began to (4413).
    TooLarge,
    /// Other activity of the peer: a pong, a ping, or part of a message.
    SignOfLife,
    /// Authentication has accepted [`LinkEvent::Hello`].
    Admitted {
        principal: Principal,
        /// The expiry of the credential, if it must be refreshed.
        expires: Option<Millis>,
    },
    /// Authentication has answered [`Output::Refresh`](connection::Output::Refresh).
    Refreshed { request_id: Option<RequestId>, renewal: RefreshOutcome },
    /// Authentication has refused [`LinkEvent::Hello`] (4401).
    Denied,
    /// The credential is valid, but the connection may not serve the named agent or tools.
    NotServing(ServiceRefusal),
    /// A notification from the switchboard.
    Note(Notification),
    /// The transport has written every text drained so far, except those on side streams.
    Flushed,
    /// Progress of the texts on side streams.
    SideStreamProgress(SideStreamProgress),
}

/// An output of a link for its driver.
pub type Output = connection::Output<LinkEvent>;

/// An output that only links have. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq)]
pub enum LinkEvent {
    /// Authenticate the client; answered by `Admitted` or `Denied`.
    Hello(HelloRequest),
    /// A command for the switchboard. Only after `Admitted`.
    Command(LinkCommand),
    /// The command waits behind earlier commands, or was refused because too many wait.
    CommandDeferred,
    /// Write a text message on a side stream: messages of one attempt stay in order among each other.
    WriteSideStream(Box<SideStreamText>),
    /// End the side streams of one run, or of the whole session if `run_id` is absent.
    EndSideStreams { session: SessionId, run_id: Option<RunId> },
    /// Notifications of this weight were rendered since the last report and have been flushed.
    Written(usize),
}

/// A piece of text for a side stream. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq, Eq)]
pub struct SideStreamText {
    pub session: SessionId,
    pub run_id: RunId,
    pub attempt: u32,
    /// The complete message.
    pub text: String,
    /// Weight of its notification, returned in [`SideStreamProgress::written`].
    pub weight: usize,
}

/// The write progress of side streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideStreamProgress {
    /// Additional weight that counts as written.
    pub written: usize,
    /// The peer's reading speed, as far as it requires action.
    pub pace: SideStreamPace,
}

/// The speed at which the peer reads side streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideStreamPace {
    Draining,
    /// Too slow to leave the written weight unreported: the link could count as full, and nothing would ever change
    /// it.
    Filling,
    /// Too much text waits, and the peer read some of it just now.
    Slow,
    /// Too much text waits, and the peer has read nothing since the last report.
    Stalled,
}

/// The reason that a connection may not serve the role in its `hello`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceRefusal {
    /// The credential does not allow it, or the agent does not exist; the answer does not distinguish the two
    /// (4403).
    Forbidden,
    /// The `runner_id` belongs to another credential (4409).
    IdInUse,
    /// The limit of serving connections at this node or for the tenant is reached (4429).
    LimitReached,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text(<{} bytes>)", text.len()),
            Self::Binary => f.write_str("Binary"),
            Self::TooLarge => f.write_str("TooLarge"),
            Self::SignOfLife => f.write_str("SignOfLife"),
            Self::Admitted { principal, expires } => write!(f, "Admitted({principal:?}, {expires:?})"),
            Self::Refreshed { renewal, .. } => write!(f, "Refreshed({renewal:?})"),
            Self::Denied => f.write_str("Denied"),
            Self::NotServing(why) => write!(f, "NotServing({why:?})"),
            Self::Note(note) => write!(f, "Note({note:?})"),
            Self::Flushed => f.write_str("Flushed"),
            Self::SideStreamProgress(progress) => write!(f, "{progress:?}"),
        }
    }
}

impl fmt::Debug for LinkEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(hello) => write!(f, "Hello({hello:?})"),
            Self::Command(command) => write!(f, "Command({command:?})"),
            Self::CommandDeferred => f.write_str("CommandDeferred"),
            Self::WriteSideStream(text) => {
                write!(f, "WriteSideStream({}, <{} bytes>)", text.attempt, text.text.len())
            }
            Self::EndSideStreams { .. } => f.write_str("EndSideStreams"),
            Self::Written(weight) => write!(f, "Written({weight})"),
        }
    }
}

/// The node's settings for a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Sent to the peer as `welcome.node_id`.
    pub node: NodeId,
    /// For `welcome.connection_id`; unique in the fleet.
    pub connection_id: String,
    /// `welcome.resume_window_ms`: 0 = no limit.
    pub resume_window_ms: u64,
    pub durability: &'static str,
    /// Heartbeat jitter in per mille of the period, drawn by the driver: 900 to 1100.
    pub heartbeat_permille: u32,
    /// True if text may use side streams, if the client accepts them (QUIC).
    pub side_streams: bool,
}
