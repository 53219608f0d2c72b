//! What the client's brain wants done, in order.
use crate::event::Event;
use std::collections::VecDeque;
use std::time::Duration;

/// What the client wants done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Open a connection; then `handle_open`, or `handle_lost` if it cannot be had.
    Dial,
    /// Write one text message.
    Send(String),
    /// Close the connection; nothing more is to be heard of it.
    Hangup,
    /// Open another connection beside this one, and say this on it; its first message is for `handle_spare`. This
    /// one stays the one that is spoken on until then.
    Spare(String),
    /// Close that other connection, however far it has come.
    DropSpare,
    /// Tell the application.
    Tell(Event),
}

/// How a connection ended, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The close code, where there was one.
    pub code: Option<u16>,
    /// For a person.
    pub reason: String,
    /// The other side will not have this client, whenever it comes.
    pub refused: bool,
}

/// What every part of the client writes to.
#[derive(Clone, Debug)]
pub(crate) struct Fx {
    pub(crate) now: Duration,
    out: VecDeque<Output>,
    prefix: String,
    asked: u64,
}

impl Fx {
    /// With a first wish: a connection.
    pub(crate) fn new(seed: u64) -> Self {
        let out = VecDeque::from([Output::Dial]);
        Self { now: Duration::ZERO, out, prefix: format!("q{seed:016x}"), asked: 0 }
    }
    pub(crate) fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }
    pub(crate) fn dial(&mut self) {
        self.out.push_back(Output::Dial);
    }
    pub(crate) fn hang_up(&mut self) {
        self.out.push_back(Output::Hangup);
    }
    pub(crate) fn spare(&mut self, hello: String) {
        self.out.push_back(Output::Spare(hello));
    }
    pub(crate) fn drop_spare(&mut self) {
        self.out.push_back(Output::DropSpare);
    }
    pub(crate) fn tell(&mut self, event: Event) {
        self.out.push_back(Output::Tell(event));
    }
    pub(crate) fn send(&mut self, text: String) {
        self.out.push_back(Output::Send(text));
    }
    /// A request id that no other client uses.
    pub(crate) fn request_id(&mut self) -> String {
        self.asked += 1;
        format!("{}-{}", self.prefix, self.asked)
    }
    /// Whether `request_id` made it.
    pub(crate) fn is_mine(&self, id: &str) -> bool {
        id.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('-'))
    }
}
