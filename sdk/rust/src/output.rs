//! The outputs of the client's state machine, in order. Performed by the driver, or by any other caller that has a
//! socket.
use crate::event::Event;
use std::collections::VecDeque;
use std::time::Duration;

/// An action for the driver of the state machine, to be performed in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Open a connection; then call `handle_open`, or `handle_lost` if that fails.
    Dial,
    /// Write one text message.
    Send(String),
    /// Close the connection; nothing more is read from it.
    Hangup,
    /// Open a second connection, send this `hello` on it, and pass its first message to `handle_spare`. Until then
    /// the current connection remains in use.
    DialSpare(String),
    /// Close the second connection in any state.
    DropSpare,
    /// Deliver an event to the application.
    Event(Event),
}

/// The reason why a connection ended or could not be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Close code, if there was one.
    pub code: Option<u16>,
    /// Text for people.
    pub reason: String,
    /// True if the gateway refuses this client permanently.
    pub refused: bool,
}

// === impl Lost ===

impl Lost {
    /// Returns whether another connection would end in the same way.
    pub(crate) fn is_final(&self) -> bool {
        let is_final = |code| (4400..4500).contains(&code) && code != 4408 && code != 4429;
        self.refused || self.code.is_some_and(is_final)
    }
}

/// The queue of outputs and the current time, shared by all parts of the state machine.
#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    pub(crate) now: Duration,
    out: VecDeque<Output>,
    prefix: String,
    requests: u64,
}

impl Outbound {
    /// Creates the queue with a first output that opens a connection.
    pub(crate) fn new(seed: u64) -> Self {
        let out = VecDeque::from([Output::Dial]);
        Self { now: Duration::ZERO, out, prefix: format!("q{seed:016x}"), requests: 0 }
    }
    pub(crate) fn pop(&mut self) -> Option<Output> {
        self.out.pop_front()
    }
    pub(crate) fn dial(&mut self) {
        self.out.push_back(Output::Dial);
    }
    pub(crate) fn hang_up(&mut self) {
        self.out.push_back(Output::Hangup);
    }
    pub(crate) fn dial_spare(&mut self, hello: String) {
        self.out.push_back(Output::DialSpare(hello));
    }
    pub(crate) fn drop_spare(&mut self) {
        self.out.push_back(Output::DropSpare);
    }
    pub(crate) fn emit(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }
    pub(crate) fn send(&mut self, text: String) {
        self.out.push_back(Output::Send(text));
    }
    /// Returns a request id that no other client uses.
    pub(crate) fn request_id(&mut self) -> String {
        self.requests += 1;
        format!("{}-{}", self.prefix, self.requests)
    }
    /// Returns whether this client created the request id.
    pub(crate) fn is_mine(&self, id: &str) -> bool {
        id.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('-'))
    }
}
