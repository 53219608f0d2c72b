//! The state machine of the connection of an agent that dials in (protocol.md §1.6): orders become messages,
//! messages become attempt events, and every other message is answered or closes the connection.
mod machine;

pub use machine::{DialIn, DialInProtocol};

use crate::connection::{self, ConnectionConfig};
use std::fmt;
use turnway_core::id::RunId;
use turnway_core::protocol::agent::Order;
use turnway_wire::agent::AttemptEvent;

/// The settings of a connection.
#[derive(Clone, Debug)]
pub struct DialInConfig {
    pub connection: ConnectionConfig,
    /// The agent's events have ids, so an attempt can be resumed after one.
    pub has_event_ids: bool,
}

/// An input of the connection.
pub type Input = connection::Input<DialInCommand>;

/// An output of the connection for its driver.
pub type Output = connection::Output<DialInEvent>;

/// An input that only connections of agents have.
#[derive(Clone, Debug)]
pub enum DialInCommand {
    /// An order for the agent.
    Order(Box<Order>),
    /// Bytes of an incomplete message arrived.
    PartialMessage,
}

/// An output that only connections of agents have. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq)]
pub enum DialInEvent {
    /// An event of an attempt that was ordered here; nothing follows after the attempt's last event.
    AttemptEvent { run_id: RunId, attempt: u32, event: AttemptEvent },
    /// The agent is alive in this attempt; to be reported only if no other event of the attempt waits to be taken.
    AttemptAlive { run_id: RunId, attempt: u32 },
}

impl fmt::Debug for DialInEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttemptEvent { run_id, attempt, event } => {
                write!(f, "AttemptEvent({run_id}, {attempt}, last: {})", event.is_last())
            }
            Self::AttemptAlive { run_id, attempt } => write!(f, "AttemptAlive({run_id}, {attempt})"),
        }
    }
}
