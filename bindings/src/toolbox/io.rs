//! What a tool runner's machine is told, and what it wants done.
use super::allowed::Command;
use super::process::{How, Signal};
use super::record::Record;
use super::words::Told;
use std::time::Duration;
use turnway_core::id::EventId;
use turnway_core::protocol::action::Stream;

/// One of the nodes that it is connected to, counted from 0.
pub type Gate = usize;

/// What may happen.
#[derive(Clone, Debug)]
pub enum Input {
    /// There is a connection, and it was said what this runner is.
    Opened(Gate),
    /// There is none any more.
    Closed(Gate),
    /// A node says this.
    Heard(Gate, Told),
    /// What [`Output::Spawn`] asked for runs.
    Spawned {
        /// Which.
        action_id: EventId,
        /// As its system calls it.
        pid: Option<u64>,
    },
    /// It cannot be started.
    Failed {
        /// Which.
        action_id: EventId,
        /// Why, for people.
        why: String,
    },
    /// It prints.
    Printed {
        /// Which.
        action_id: EventId,
        /// Where.
        stream: Stream,
        /// What; any bytes.
        bytes: Vec<u8>,
    },
    /// It has ended, and prints nothing more.
    Exited {
        /// Which.
        action_id: EventId,
        /// How.
        how: How,
    },
    /// It is to leave: nothing new is begun, and what runs may do so for this long.
    Leave(Duration),
}

/// What is to be done, in this order: whatever comes after a [`Output::Record`] waits until that is durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// End whatever is left of these: a runner before this one had started it.
    Sweep(Vec<EventId>),
    /// Keep this.
    Record(Record),
    /// Start a process; answered by `Spawned` or `Failed` before anything else, and after that by `Exited`.
    Spawn {
        /// Which.
        action_id: EventId,
        /// What.
        command: Box<Command>,
    },
    /// Send this to a process and all that it has started.
    Signal {
        /// Which.
        action_id: EventId,
        /// What.
        signal: Signal,
    },
    /// Say this.
    Say(Gate, String),
    /// Say this if there is room: nobody misses it for good.
    Show(Gate, String),
    /// Nothing runs any more and everything was read: there is nothing to stay for.
    Left,
}
