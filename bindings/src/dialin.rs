//! One connection of an agent that has dialed in, as a machine (protocol.md §1.6): orders become messages, messages
//! become words about runs, and what is neither is answered or ends it.
//!
//! - [`said`]: what an agent says of a run, by whatever way it is connected; [`context`]: what it is told around an input.
//! - `machine`: the connection; `render`: what it is told.
pub mod context;
pub mod joiner;
mod machine;
mod render;
pub mod said;
mod wish;

pub use machine::DialIn;

use crate::channel::hello::{Capabilities, Credential};
use crate::link::Renewal;
use said::Said;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use turnway_core::id::{AgentId, NodeId, RequestId, RunId};
use turnway_core::protocol::agent::Order;
use turnway_core::time::Millis;

/// What a connection must know of its node and of who is at its other end.
#[derive(Clone, Debug)]
pub struct DialInConfig {
    /// Who has dialed in.
    pub agent: AgentId,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its events have names: it can be asked for what follows one.
    pub named: bool,
    /// For `welcome.node_id`.
    pub node: NodeId,
    /// For `welcome.connection_id`; unique in the fleet.
    pub connection_id: String,
    /// When what it showed ends, where that has to be refreshed.
    pub expires: Option<Millis>,
    /// Heartbeat jitter in per mille of the period, drawn by the driver: 900 to 1100.
    pub heartbeat_permille: u32,
}

/// What may happen to it. Prints sizes instead of texts (S-38).
#[derive(Clone)]
pub enum Input {
    /// A whole text message arrived.
    Text(String),
    /// A binary message arrived (1003).
    Binary,
    /// A message over the limit arrived, or began to (4413).
    TooLarge,
    /// Any other sign of life; also that it was not read for a while, for then its silence is ours.
    Alive,
    /// Bytes of a message arrived that is not whole.
    Part,
    /// It is to be told this.
    Order(Box<Order>),
    /// The node leaves: it should be connected elsewhere, and end here what it has begun.
    Leaving,
    /// The door has decided about [`Output::Refresh`].
    Refreshed {
        /// Echoed.
        request_id: Option<RequestId>,
        /// How.
        renewal: Renewal,
    },
    /// The transport has written all the texts that were drained so far.
    Flushed,
}

/// What it asks its driver to do. Prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq)]
pub enum Output {
    /// Write a text message.
    Write(String),
    /// The agent says this of an attempt that it was ordered; after the last word nothing more of it comes.
    Word {
        /// Of which run.
        run_id: RunId,
        /// Of which attempt.
        attempt: u32,
        /// What.
        word: Word,
    },
    /// The agent is alive in this attempt; to be told if nothing else of it waits to be taken.
    Alive {
        /// Of which run.
        run_id: RunId,
        /// Of which attempt.
        attempt: u32,
    },
    /// Ask the door whether this goes on where the credential before it ends; answered by `Refreshed`.
    Refresh {
        /// To be echoed.
        request_id: Option<RequestId>,
        /// What is shown.
        token: Credential,
    },
    /// Write a transport-level ping.
    Ping,
    /// Hang up with this; nothing follows.
    Close {
        /// protocol.md §1.3.
        code: u16,
        /// For a person.
        reason: Cow<'static, str>,
    },
}

/// What an agent says of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Word {
    /// It has the input.
    Acked,
    /// It has stopped.
    CancelAcked,
    /// What every agent may say.
    Said(Said),
}

// === impl Word ===

impl Word {
    /// Whether nothing more of the attempt may follow.
    pub fn is_last(&self) -> bool {
        match self {
            Self::CancelAcked | Self::Said(Said::Done { .. } | Said::Failed(_)) => true,
            Self::Acked
            | Self::Said(
                Said::Delta { .. }
                | Said::State { .. }
                | Said::Steered { .. }
                | Said::Handover { .. }
                | Said::Action { .. }
                | Said::Subscribe { .. }
                | Said::Unknown
                | Said::Alive,
            ) => false,
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text(<{} bytes>)", text.len()),
            Self::Binary => f.write_str("Binary"),
            Self::TooLarge => f.write_str("TooLarge"),
            Self::Alive => f.write_str("Alive"),
            Self::Part => f.write_str("Part"),
            Self::Order(order) => write!(f, "Order({order:?})"),
            Self::Leaving => f.write_str("Leaving"),
            Self::Refreshed { renewal, .. } => write!(f, "Refreshed({renewal:?})"),
            Self::Flushed => f.write_str("Flushed"),
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(text) => write!(f, "Write(<{} bytes>)", text.len()),
            Self::Word { run_id, attempt, word } => {
                write!(f, "Word({run_id}, {attempt}, last: {})", word.is_last())
            }
            Self::Alive { run_id, attempt } => write!(f, "Alive({run_id}, {attempt})"),
            Self::Refresh { token, .. } => write!(f, "Refresh({token:?})"),
            Self::Ping => f.write_str("Ping"),
            Self::Close { code, reason } => write!(f, "Close({code}, {reason})"),
        }
    }
}
