//! One connection of one client, as a machine: `hello` first, bad input answered, heartbeats, rendering.
//!
//! It is fed what its transport received and what the switchboard shows, and is drained of what to
//! write, what to ask the switchboard, and when to close. Its driver reads no more from the peer while
//! it writes, so that a peer that talks without listening holds up only itself.
pub use crate::channel::hello::{Capabilities, Credential, Hello, Role, RunnerHello};

use crate::channel::command::Command;
use crate::channel::note::Note;
use std::borrow::Cow;
use std::fmt;
use turnway_core::id::{NodeId, Principal, RequestId, RunId, SessionId};
use turnway_core::time::Millis;

mod expiry;
mod machine;
mod order;

pub use expiry::Expiry;
pub use machine::Link;

/// What may happen to a link. Prints sizes instead of texts (S-38).
#[derive(Clone)]
pub enum Input {
    /// A whole text message arrived.
    Text(String),
    /// A binary message arrived (WebSocket: closed with 1003).
    Binary,
    /// A message over the limit arrived, or began to (4413).
    TooLarge,
    /// Any other sign of life: a pong, a ping, part of a message.
    Alive,
    /// The door has decided about [`Output::Hello`].
    Admitted {
        /// Who it is.
        principal: Principal,
        /// When what it showed ends, where that has to be refreshed.
        expires: Option<Millis>,
    },
    /// The door has decided about [`Output::Refresh`].
    Refreshed {
        /// Echoed.
        request_id: Option<RequestId>,
        /// How.
        renewal: Renewal,
    },
    /// The door has refused [`Output::Hello`] (4401).
    Denied,
    /// Its credential is good, and it may not serve what it wants to serve.
    NotServing(NotServing),
    /// The switchboard shows something.
    Note(Note),
    /// The transport has written all the texts that were drained so far, but for those beside the others.
    Flushed,
    /// What became of those.
    Beside(Beside),
}

/// What a link asks its driver to do. Prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq)]
pub enum Output {
    /// Ask the door who this is; answered by `Admitted` or `Denied`.
    Hello(Hello),
    /// Ask the door whether this goes on where the credential before it ends; answered by `Refreshed`.
    Refresh {
        /// To be echoed.
        request_id: Option<RequestId>,
        /// What is shown.
        token: Credential,
    },
    /// Ask the switchboard. Only after `Admitted`.
    Command(Command),
    /// Nothing: what the client asks waits for what it asked before, or too much of that waits already.
    Waits,
    /// Write a text message.
    Write(String),
    /// Write a text message beside the others: those of one attempt are in order among each other.
    Aside(Box<Aside>),
    /// Nothing more comes beside the others: of one run, or with none of the whole session.
    NoMoreAside {
        /// Whose.
        session: SessionId,
        /// Which run.
        run_id: Option<RunId>,
    },
    /// Write a transport-level ping.
    Ping,
    /// Notes of this weight were rendered since the last report and have been flushed.
    Written(usize),
    /// Write a close frame and hang up; nothing follows.
    Close {
        /// protocol.md §1.3.
        code: u16,
        /// For a person.
        reason: Cow<'static, str>,
    },
}

/// A piece of text on its way beside the other messages. Prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq, Eq)]
pub struct Aside {
    /// Whose.
    pub session: SessionId,
    /// Which run's.
    pub run_id: RunId,
    /// Which attempt's.
    pub attempt: u32,
    /// The message, whole.
    pub text: String,
    /// Of the note that it was: to be given back in [`Beside::written`].
    pub weight: usize,
}

/// How text fares that goes beside the other messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// So much more of its weight counts as written.
    pub written: usize,
    /// Whether so much is left that something has to be taken.
    pub pace: Pace,
}

/// Whether streams are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As far as they need be.
    Flows,
    /// Not enough of them to leave what is written unreported: with that the link might count as full, and nothing
    /// would ever change it.
    Fills,
    /// Too much waits, and some of it was taken just now.
    Creeps,
    /// Too much waits, and nothing of it was taken since this was last said.
    Stands,
}

/// Why a connection may not serve what its `hello` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotServing {
    /// Its credential does not allow it, or there is no such agent; the two are not told apart (4403).
    Forbidden,
    /// Its `runner_id` belongs to another credential (4409).
    IdInUse,
    /// As many as may serve at this node, or for its tenant (4429).
    Crowded,
}

/// What the door makes of a credential that is to take the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It is good, and ends then.
    Until(Millis),
    /// What the link came with does not end by itself.
    Needless,
    /// It is not good, or not the same user's (4401).
    Denied,
    /// It was not looked at: there were too many requests.
    Late,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text(<{} bytes>)", text.len()),
            Self::Binary => f.write_str("Binary"),
            Self::TooLarge => f.write_str("TooLarge"),
            Self::Alive => f.write_str("Alive"),
            Self::Admitted { principal, expires } => write!(f, "Admitted({principal:?}, {expires:?})"),
            Self::Refreshed { renewal, .. } => write!(f, "Refreshed({renewal:?})"),
            Self::Denied => f.write_str("Denied"),
            Self::NotServing(why) => write!(f, "NotServing({why:?})"),
            Self::Note(note) => write!(f, "Note({note:?})"),
            Self::Flushed => f.write_str("Flushed"),
            Self::Beside(beside) => write!(f, "{beside:?}"),
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(hello) => write!(f, "Hello({hello:?})"),
            Self::Refresh { token, .. } => write!(f, "Refresh({token:?})"),
            Self::Command(command) => write!(f, "Command({command:?})"),
            Self::Waits => f.write_str("Waits"),
            Self::Write(text) => write!(f, "Write(<{} bytes>)", text.len()),
            Self::Aside(aside) => write!(f, "Aside({}, <{} bytes>)", aside.attempt, aside.text.len()),
            Self::NoMoreAside { .. } => f.write_str("NoMoreAside"),
            Self::Ping => f.write_str("Ping"),
            Self::Written(weight) => write!(f, "Written({weight})"),
            Self::Close { code, reason } => write!(f, "Close({code}, {reason})"),
        }
    }
}

/// What a link must know of its node.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// For `welcome.node_id`.
    pub node: NodeId,
    /// For `welcome.connection_id`; unique in the fleet.
    pub connection_id: String,
    /// `welcome.resume_window_ms`: 0 = no limit.
    pub resume_window_ms: u64,
    /// `turn_accepted.durability`.
    pub durability: &'static str,
    /// Heartbeat jitter in per mille of the period, drawn by the driver: 900 to 1100.
    pub heartbeat_permille: u32,
    /// Whether text may go beside the other messages, if the client takes it so (QUIC).
    pub asides: bool,
}
