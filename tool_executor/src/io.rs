//! Inputs and outputs of the tool executor.
use crate::journal::JournalRecord;
use crate::messages::GatewayMessage;
use crate::process::{ExitStatus, Signal};
use crate::programs::ProcessCommand;
use std::time::Duration;
use turnway_core::id::EventId;
use turnway_core::protocol::action::OutputStream;

/// The index of a gateway connection, counted from 0.
pub type GatewayIndex = usize;

/// An input of the tool executor.
#[derive(Clone, Debug)]
pub enum Input {
    /// The connection to a gateway is open, and the runner has introduced itself.
    Opened(GatewayIndex),
    /// The connection to a gateway is closed.
    Closed(GatewayIndex),
    /// A message from a gateway.
    Received(GatewayIndex, GatewayMessage),
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
        stream: OutputStream,
        /// Arbitrary bytes, not necessarily UTF-8.
        bytes: Vec<u8>,
    },
    /// The process has ended and its output is complete.
    Exited { action_id: EventId, how: ExitStatus },
    /// Shut down: start nothing new, and let running processes continue for this long.
    Shutdown(Duration),
}

/// An output of the tool executor. Outputs are performed in order: an output after an [`Output::Record`] waits until
/// the record is durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Kill the remaining processes of these actions, which an earlier instance of the runner had started.
    KillLeftovers(Vec<EventId>),
    /// Append a record to the durable log.
    Record(JournalRecord),
    /// Start a process; answered by `Spawned` or `Failed` before anything else, and by `Exited` after `Spawned`.
    Spawn { action_id: EventId, command: Box<ProcessCommand> },
    /// Send a signal to a process and all its descendants.
    Signal { action_id: EventId, signal: Signal },
    /// Send a message to a gateway.
    Send(GatewayIndex, String),
    /// Send a message if the connection has room; the message may be dropped.
    SendIfRoom(GatewayIndex, String),
    /// Nothing runs any more and every message was delivered: the runner can exit.
    Finished,
}
