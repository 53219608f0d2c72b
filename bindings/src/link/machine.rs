//! The state machine of a link. Kept small in memory, because a node has many links and most are idle.
use crate::channel::command::{Command, Subscribe};
use crate::channel::json::malformed::{Flaw, Malformed};
use crate::channel::json::parse::{ClientMessage, parse};
use crate::channel::json::render;
use crate::link::order::{Order, TooMany};
use crate::link::{Expiry, Hello, Input, LinkConfig, Output, Role};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;
use turnway_core::id::RequestId;
use turnway_core::limits::{self, MESSAGE_BYTES_MAX};
use turnway_core::machine::Machine;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::{Deadline, Millis, Mono, Now};

mod door;
mod note;

/// Messages that a client may send during authentication; their total size is limited to one message, because the
/// client is not authenticated yet.
const WAITING_MESSAGES_MAX: usize = 16;

/// One connection of one client.
///
/// Every written text must be flushed within [`limits::STALL_TIMEOUT`], or the link closes. The weight of every
/// notification is reported after it has been written, in sums. After `Close` the link ignores every input.
#[derive(Debug)]
pub struct Link {
    phase: Phase,
    outputs: VecDeque<Output>,
    /// Time of the peer's last activity.
    heard: Mono,
    ping_at: Mono,
    heartbeat_ms: u32,
    /// Time since which a text waits to be flushed.
    unflushed_since: Option<Mono>,
    /// Time since which too much text waits on side streams without any of it being read. Boxed, because most links
    /// never have it.
    beside_since: Option<Box<Mono>>,
    /// Time at which a link that was asked to reconnect is closed.
    leave_at: Option<Mono>,
    /// Expiry of a token that must be refreshed. Boxed, because most links have none.
    expires: Option<Box<Expiry>>,
    durability: &'static str,
    /// Text uses side streams.
    asides: bool,
    /// Weight of the notifications whose texts wait to be flushed.
    unflushed: usize,
    /// Weight of the notifications that are written and not reported.
    unreported: usize,
    /// Written weight is reported at once; see [`Pace::Fills`](super::Pace::Fills).
    fills: bool,
    /// Unanswered requests. Boxed, and `None` if there are none.
    order: Option<Box<Order>>,
    /// Times of malformed messages within [`limits::BAD_MESSAGES_WINDOW`].
    bad: Vec<Mono>,
}

/// A link before its `hello`.
#[derive(Debug)]
struct Fresh {
    deadline: Mono,
    config: LinkConfig,
}

/// The phase of a link.
#[derive(Debug)]
enum Phase {
    /// Waits for `hello`.
    Fresh(Box<Fresh>),
    /// Waits for the result of the authentication.
    Asking(Box<Asking>),
    /// Serves the client.
    Open,
    /// Closed.
    Closed,
}

/// The state of a link during authentication.
#[derive(Debug)]
struct Asking {
    config: LinkConfig,
    resume: Vec<Subscribe>,
    waiting: Vec<String>,
}

impl Link {
    /// Creates the link of a connection that was just accepted.
    pub fn new(now: Now, config: LinkConfig) -> Self {
        // The driver draws the value within 10 %; a heartbeat of zero length would loop forever.
        let permille = config.heartbeat_permille.clamp(500, 2000);
        let heartbeat = limits::HEARTBEAT * permille / 1000;
        Self {
            durability: config.durability,
            asides: config.asides,
            phase: Phase::Fresh(Box::new(Fresh { deadline: now.mono + limits::HELLO_TIMEOUT, config })),
            outputs: VecDeque::new(),
            heard: now.mono,
            ping_at: now.mono + heartbeat,
            heartbeat_ms: u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX),
            unflushed_since: None,
            beside_since: None,
            leave_at: None,
            expires: None,
            unflushed: 0,
            unreported: 0,
            fills: false,
            order: None,
            bad: Vec::new(),
        }
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms.into())
    }
}

impl Machine for Link {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Text(text) => self.handle_text(now, text),
            Input::Binary => self.close(1003, "binary messages are not supported"),
            Input::TooLarge => self.too_large(now, self.message_bytes_max()),
            Input::Alive => self.heard = now.mono,
            Input::Admitted { principal: _, expires } => self.handle_admitted(now, expires),
            Input::Refreshed { request_id, renewal } => self.handle_refreshed(now, request_id, renewal),
            Input::Denied => self.handle_denied(now),
            Input::NotServing(why) => self.handle_not_serving(now, why),
            Input::Note(note) => self.handle_note(now, note),
            Input::Flushed => self.handle_flushed(),
            Input::Beside(beside) => self.handle_beside(now, beside),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.poll_timeout().is_none_or(|deadline| deadline.at > now.mono) {
            return;
        }
        // Closing comes first: a link that ends needs no heartbeat.
        if self.leave_at.is_some_and(|at| at <= now.mono) {
            return self.close(4503, "this node is shutting down; reconnect to another node");
        }
        if self.expires.as_mut().is_some_and(|expiry| expiry.is_over(now)) {
            return self.unauthorized(now, None, "the token has expired".into());
        }
        if self.stalled_at().is_some_and(|at| at <= now.mono) {
            return self.close(4508, "the client did not read its messages in time");
        }
        if self.order_at().is_some_and(|at| at <= now.mono) {
            self.pass_over(now);
            if self.poll_timeout().is_none_or(|deadline| deadline.at > now.mono) {
                return;
            }
        }
        match &self.phase {
            Phase::Fresh(_) => self.close(4408, "no hello received in time"),
            Phase::Asking(_) | Phase::Open if self.idle_at() <= now.mono => self.close(1001, "idle"),
            Phase::Asking(_) | Phase::Open | Phase::Closed => self.beat(now),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let idle = Deadline { at: self.idle_at(), why: "idle" };
        match &self.phase {
            Phase::Fresh(fresh) => Some(Deadline { at: fresh.deadline, why: "hello" }),
            Phase::Asking(_) => Some(idle),
            Phase::Open => {
                let ping = Deadline { at: self.ping_at, why: "ping" };
                let stall = self.stalled_at().map(|at| Deadline { at, why: "stall" });
                let leave = self.leave_at.map(|at| Deadline { at, why: "leave" });
                let expiry = self.expires.as_ref().map(|expiry| Deadline { at: expiry.at(), why: "expiry" });
                let order = self.order_at().map(|at| Deadline { at, why: "order" });
                [Some(idle), Some(ping), stall, leave, expiry, order].into_iter().flatten().min()
            }
            Phase::Closed => None,
        }
    }
}

// === inputs ===

impl Link {
    fn handle_text(&mut self, now: Now, text: String) {
        self.heard = now.mono;
        match &mut self.phase {
            Phase::Fresh(_) => self.handle_first(now, &text),
            Phase::Asking(asking) => {
                let bytes = text.len() + asking.waiting.iter().map(String::len).sum::<usize>();
                if (asking.waiting.len() < WAITING_MESSAGES_MAX || planted(Planted::WaitingUnbounded))
                    && bytes <= MESSAGE_BYTES_MAX
                {
                    asking.waiting.push(text);
                } else {
                    let refusal = Refusal::new(Code::RateLimited, "too many messages before welcome");
                    self.refuse(now, &None, refusal);
                    self.close(4429, "too many messages before welcome");
                }
            }
            Phase::Open => self.handle_message(now, &text),
            Phase::Closed => {}
        }
    }

    /// Handles the first message, which must be `hello` (S-04).
    fn handle_first(&mut self, now: Now, text: &str) {
        if text.len() > limits::HELLO_BYTES_MAX {
            return self.too_large(now, limits::HELLO_BYTES_MAX);
        }
        match parse(text) {
            Ok(ClientMessage::Hello { hello, resume }) => self.handle_hello(now, hello, resume),
            Ok(
                ClientMessage::Command(_)
                | ClientMessage::Refresh { .. }
                | ClientMessage::Ping { .. }
                | ClientMessage::Later { .. },
            ) => {
                self.unauthorized(now, None, "the first message must be hello".into());
            }
            Err(Malformed { request_id, flaw }) => {
                self.unauthorized(now, request_id, format!("the first message must be hello: {flaw}").into());
            }
        }
    }

    fn handle_hello(&mut self, now: Now, hello: Hello, resume: Vec<Subscribe>) {
        match hello.role {
            Role::User | Role::Agent | Role::ToolRunner => {}
            Role::Adapter => {
                let why = "the role adapter is not supported by this release";
                self.refuse(now, &None, Refusal::new(Code::Forbidden, why));
                return self.close(4403, why);
            }
        }
        self.asides &= hello.streams;
        match std::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Fresh(fresh) => {
                let asking = Asking { config: fresh.config, resume, waiting: Vec::new() };
                self.phase = Phase::Asking(Box::new(asking));
                self.outputs.push_back(Output::Hello(hello));
            }
            other @ (Phase::Asking(_) | Phase::Open | Phase::Closed) => self.phase = other,
        }
    }

    fn handle_admitted(&mut self, now: Now, expires: Option<Millis>) {
        let Asking { config, resume, waiting } = match std::mem::replace(&mut self.phase, Phase::Open) {
            Phase::Asking(asking) => *asking,
            other @ (Phase::Fresh(_) | Phase::Open | Phase::Closed) => return self.phase = other,
        };
        self.ping_at = now.mono + self.heartbeat();
        let (id, heartbeat) = (&config.connection_id, self.heartbeat());
        let window = config.resume_window_ms;
        let welcome = render::welcome(now.store, config.node, id, heartbeat, window, expires);
        self.expires = expires.map(|ends| Box::new(Expiry::new(now, ends)));
        self.write(now, welcome);
        for subscribe in resume {
            self.ask(now, Command::Subscribe(subscribe), 0);
        }
        for text in waiting {
            // One of the messages may close the link; the rest are then ignored.
            self.handle_text(now, text);
        }
    }

    fn handle_message(&mut self, now: Now, text: &str) {
        // The transport enforces the same limit; this check does not rely on it.
        if text.len() > MESSAGE_BYTES_MAX {
            return self.too_large(now, MESSAGE_BYTES_MAX);
        }
        match parse(text) {
            Ok(ClientMessage::Command(command)) => self.ask(now, command, text.len()),
            Ok(ClientMessage::Refresh { request_id, token }) => {
                self.outputs.push_back(Output::Refresh { request_id, token });
            }
            Ok(ClientMessage::Ping { request_id }) => {
                let pong = render::pong(now.store, &request_id);
                self.write(now, pong);
            }
            Ok(ClientMessage::Later { type_name, request_id }) => {
                let why = format!("{type_name} is not supported by this release");
                self.refuse(now, &request_id, Refusal::new(Code::InvalidMessage, why));
            }
            Ok(ClientMessage::Hello { .. }) => self.handle_bad(now, &None, Flaw::HelloAgain),
            Err(Malformed { request_id, flaw }) => self.handle_bad(now, &request_id, flaw),
        }
    }

    /// Sends a request of `bytes` bytes to the switchboard, or queues it behind earlier requests.
    fn ask(&mut self, now: Now, command: Command, bytes: usize) {
        match self.order.get_or_insert_default().ask(now, command, bytes) {
            Ok(Some(command)) => self.begin(command),
            Ok(None) => self.outputs.push_back(Output::Waits),
            Err(TooMany { request_id }) => {
                self.outputs.push_back(Output::Waits);
                let refusal = Refusal::new(Code::RateLimited, "too many requests are waiting on this connection");
                self.refuse(now, &request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
        }
        self.order.take_if(|order| order.is_empty());
    }

    fn begin(&mut self, command: Command) {
        if let Command::Unsubscribe { session, .. } = &command {
            self.no_more_aside(session, None);
        }
        self.outputs.push_back(Output::Command(command));
    }

    /// Answers a malformed message; closes the link after too many. An unknown type does not count, because it
    /// indicates a newer client, not a broken one.
    fn handle_bad(&mut self, now: Now, request_id: &Option<RequestId>, flaw: Flaw) {
        self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, flaw.to_string()));
        if flaw == Flaw::UnknownType {
            return;
        }
        self.bad.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.bad.push(now.mono);
        let most = limits::BAD_MESSAGES_MAX * if planted(Planted::BadMessagesDoubled) { 2 } else { 1 };
        if self.bad.len() >= most {
            self.close(4400, "too many malformed messages");
        }
    }

    /// Sends a heartbeat; every other deadline has been handled.
    fn beat(&mut self, now: Now) {
        self.ping_at = now.mono + self.heartbeat();
        self.outputs.push_back(Output::Ping);
        // Memory that a burst of messages used is released at the next heartbeat.
        self.bad.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.bad.shrink_to_fit();
        self.outputs.shrink_to_fit();
    }
}

// === helpers ===

impl Link {
    fn idle_at(&self) -> Mono {
        self.heard + limits::IDLE_TIMEOUT
    }
    fn stalled_at(&self) -> Option<Mono> {
        let since = self.unflushed_since.into_iter().chain(self.beside_since.as_deref().copied()).min();
        since.map(|since| since + limits::STALL_TIMEOUT)
    }
    /// Returns the time at which the oldest request loses its place in the answer order.
    fn order_at(&self) -> Option<Mono> {
        self.order.as_ref()?.due_at()
    }
    /// Returns the size limit of one message: small before authentication.
    fn message_bytes_max(&self) -> usize {
        match self.phase {
            Phase::Fresh(_) => limits::HELLO_BYTES_MAX,
            Phase::Asking(_) | Phase::Open | Phase::Closed => MESSAGE_BYTES_MAX,
        }
    }
    fn write(&mut self, now: Now, text: String) {
        self.unflushed_since.get_or_insert(now.mono);
        self.outputs.push_back(Output::Write(text));
    }
    fn refuse(&mut self, now: Now, request_id: &Option<RequestId>, refusal: Refusal) {
        let text = render::refused(now.store, request_id, &refusal);
        self.write(now, text);
    }
    fn unauthorized(&mut self, now: Now, request_id: Option<RequestId>, why: Cow<'static, str>) {
        self.refuse(now, &request_id, Refusal::new(Code::Unauthorized, why));
        self.close(4401, "unauthorized");
    }
    fn too_large(&mut self, now: Now, max: usize) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        let why = format!("message exceeds the limit of {max} bytes");
        self.refuse(now, &None, Refusal::new(Code::TooLarge, why));
        self.close(4413, "message too large");
    }
    /// Closes the link once. Later outputs are ignored.
    fn close(&mut self, code: u16, reason: &'static str) {
        if !matches!(self.phase, Phase::Closed) {
            self.phase = Phase::Closed;
            self.outputs.push_back(Output::Close { code, reason: Cow::Borrowed(reason) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most links of a node are idle.
    #[test]
    fn idle_link_size_is_bounded() {
        assert!(size_of::<Link>() <= 200, "{}", size_of::<Link>());
    }
}
