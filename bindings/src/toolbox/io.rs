//! Inputs and outputs of the tool executor.
use super::allowed::Command;
use super::process::{How, Signal};
use super::record::Record;
use super::words::Told;
use std::time::Duration;
use turnway_core::id::EventId;
use turnway_core::protocol::action::Stream;

/// The index of a gateway connection, counted from 0.
pub type Gate = usize;

/// An input of the tool executor.
#[derive(Clone, Debug)]
pub enum Input {
    /// The connection to a gateway is open, and the runner has introduced itself.
    Opened(Gate),
    /// The connection to a gateway is closed.
    Closed(Gate),
    /// A message from a gateway.
    Heard(Gate, Told),
    /// The process of an [`Output::Spawn`] is running.
    Spawned {
        action_id: EventId,
        /// The system's process id.
        pid: Option<u64>,
    },
    /// The process could not be started.
    Failed {
        action_id: EventId,
        /// Text for a person.
        why: String,
    },
    /// Output of a process.
    Printed {
        action_id: EventId,
        stream: Stream,
        /// Arbitrary bytes.
        bytes: Vec<u8>,
    },
    /// The process has ended and its output is complete.
    Exited {
        action_id: EventId,
        how: How,
    },
    /// Shut down: start nothing new, and let running processes continue for this long.
    Leave(Duration),
}

/// An output of the tool executor. Outputs are performed in order: an output after an [`Output::Record`] waits
/// until the record is durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Kill the remaining processes of these actions, which an earlier instance of the runner had started.
    Sweep(Vec<EventId>),
    /// Append a record to the durable log.
    Record(Record),
    /// Start a process; answered by `Spawned` or `Failed` before anything else, and by `Exited` after `Spawned`.
    Spawn {
        action_id: EventId,
        command: Box<Command>,
    },
    /// Send a signal to a process and all its descendants.
    Signal {
        action_id: EventId,
        signal: Signal,
    },
    /// Send a message to a gateway.
    Say(Gate, String),
    /// Send a message if the connection has room; the message may be dropped.
    Show(Gate, String),
    /// Nothing runs any more and every message was delivered: the runner can exit.
    Left,
}
