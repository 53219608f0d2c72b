//! The outputs of the adapter's state machine, the work that it starts, and the results of that work.
use crate::adapter::event::{PlatformUpdate, SettledEvent};
use crate::adapter::order::{ReportedOrder, SignalOrder};
use crate::adapter::outcome::{PlatformFailure, SentPart};
use crate::error::ClientError;
use serde_json::Value;
use std::collections::VecDeque;
use std::time::Duration;

/// A time by both clocks: deadlines of orders are in Unix time, everything else is in the time since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) elapsed: Duration,
    pub(crate) unix_ms: u64,
}

/// The state of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterStatus {
    /// Without a connection to the gateway.
    Disconnected,
    /// Connected, while another adapter serves the account.
    Standby,
    /// Serves the account.
    Active,
    /// Ended, by itself or by the gateway's refusal.
    Ended,
}

/// An action for the driver, to be performed in order.
#[derive(Debug, PartialEq)]
pub(crate) enum AdapterOutput {
    /// Open a connection to this one of the addresses; then call `handle_open` or `handle_lost`.
    Dial {
        address: usize,
    },
    Send(String),
    /// Close the connection; nothing more is read from it.
    Hangup,
    /// Start this work; then call `handle_finished`.
    Start {
        task: u64,
        work: AdapterWork,
    },
    /// Drop this work; its result does not count.
    Abandon {
        task: u64,
    },
    /// Answer a call of `forward`.
    Settled {
        event: u64,
        settled: SettledEvent,
    },
    /// Answer a call of `declare` or `request`.
    Answered {
        request: u64,
        answer: Result<Value, ClientError>,
    },
    Status(AdapterStatus),
    /// The adapter has ended: by itself, or because the gateway refuses it for good.
    Ended {
        refusal: Option<String>,
    },
}

/// Work of the platform or of the offset file.
#[derive(Debug, PartialEq)]
pub(crate) enum AdapterWork {
    Order(ReportedOrder),
    Signal(SignalOrder),
    ReadOffset,
    SaveOffset(String),
    ReadUpdates { after: Option<String> },
}

/// The result of an [`AdapterWork`].
#[derive(Debug)]
pub(crate) enum WorkResult {
    Sent(Result<SentPart, PlatformFailure>),
    Changed(Result<(), PlatformFailure>),
    Created(Result<String, PlatformFailure>),
    Shown(Result<(), PlatformFailure>),
    Offset(Result<Option<String>, String>),
    Saved(Result<(), String>),
    Updates(Result<Vec<PlatformUpdate>, PlatformFailure>),
    /// The work has panicked.
    Panicked,
}

/// The queue of outputs, the current time, and the numbers of work and requests, used by all parts of the machine.
#[derive(Debug)]
pub(crate) struct AdapterEffects {
    pub(crate) now: Moment,
    /// Number of the connection whose `welcome` has arrived; none without one.
    pub(crate) connection: Option<u64>,
    out: VecDeque<AdapterOutput>,
    prefix: String,
    ids: u64,
}

// === impl WorkResult ===

impl WorkResult {
    pub(crate) fn into_offset(self) -> Result<Option<String>, String> {
        if let Self::Offset(result) = self { result } else { Err(format!("{self:?}")) }
    }

    pub(crate) fn into_saved(self) -> Result<(), String> {
        if let Self::Saved(result) = self { result } else { Err(format!("{self:?}")) }
    }

    pub(crate) fn into_updates(self) -> Result<Vec<PlatformUpdate>, String> {
        if let Self::Updates(result) = self {
            result.map_err(|failure| failure.to_string())
        } else {
            Err(format!("{self:?}"))
        }
    }
}

// === impl AdapterEffects ===

impl AdapterEffects {
    pub(crate) fn new(random: u64) -> Self {
        let prefix = format!("a{random:016x}-");
        Self { now: Moment::default(), connection: None, out: VecDeque::new(), prefix, ids: 0 }
    }

    pub(crate) fn pop(&mut self) -> Option<AdapterOutput> {
        self.out.pop_front()
    }

    pub(crate) fn push(&mut self, output: AdapterOutput) {
        self.out.push_back(output);
    }

    /// Sends a message on the present connection; without one nothing is sent.
    pub(crate) fn send(&mut self, message: String) {
        if self.connection.is_some() {
            self.out.push_back(AdapterOutput::Send(message));
        }
    }

    /// Starts work; returns its number.
    pub(crate) fn start(&mut self, work: AdapterWork) -> u64 {
        let task = self.next_id();
        self.out.push_back(AdapterOutput::Start { task, work });
        task
    }

    pub(crate) fn abandon(&mut self, task: u64) {
        self.out.push_back(AdapterOutput::Abandon { task });
    }

    /// Returns the number of a new event, request or task.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Returns the request id of a number. No other process has the same.
    pub(crate) fn request_id(&self, id: u64) -> String {
        format!("{}{id}", self.prefix)
    }

    /// Returns the number in a request id of this adapter.
    pub(crate) fn own_id(&self, request_id: &str) -> Option<u64> {
        request_id.strip_prefix(&self.prefix)?.parse().ok()
    }
}
