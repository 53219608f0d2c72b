//! The state machine of a link. Kept small in memory, because a node has many links and most are idle.
use crate::connection::TokenExpiry;
use crate::link::answer_order::{AnswerOrder, TooManyQueued};
use crate::link::{Input, LinkConfig, Output};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;
use turnway_core::id::RequestId;
use turnway_core::limits::{self, MESSAGE_BYTES_MAX};
use turnway_core::machine::Machine;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::{Deadline, Millis, Mono, Now};
use turnway_wire::channel::command::{LinkCommand, SubscribeCommand};
use turnway_wire::channel::hello::{ConnectionRole, HelloRequest};
use turnway_wire::channel::json::malformed::{Malformed, MalformedReason};
use turnway_wire::channel::json::parse::{ClientMessage, parse};
use turnway_wire::channel::json::render;

mod auth;
mod notifications;

/// Messages that a client may send during authentication; their total size is limited to one message, because the
/// client is not authenticated yet.
const EARLY_MESSAGES_MAX: usize = 16;

/// One connection of one client.
///
/// Every written text must be flushed within [`limits::STALL_TIMEOUT`], or the link closes. The weight of every
/// notification is reported after it has been written, in sums. After `Close` the link ignores every input.
#[derive(Debug)]
pub struct Link {
    phase: LinkPhase,
    outputs: VecDeque<Output>,
    /// Time of the peer's last activity.
    last_activity: Mono,
    ping_at: Mono,
    heartbeat_ms: u32,
    /// Time since which a text waits to be flushed.
    unflushed_since: Option<Mono>,
    /// Time since which too much text waits on side streams without any of it being read. Boxed, because most links
    /// never have it.
    side_stall_since: Option<Box<Mono>>,
    /// Time at which a link that was asked to reconnect is closed.
    leave_at: Option<Mono>,
    /// Expiry of a token that must be refreshed. Boxed, because most links have none.
    expires: Option<Box<TokenExpiry>>,
    durability: &'static str,
    /// Text uses side streams.
    side_streams: bool,
    /// Weight of the notifications whose texts wait to be flushed.
    unflushed: usize,
    /// Weight of the notifications that are written and not reported.
    unreported: usize,
    /// Written weight is reported at once; see [`SideStreamPace::Filling`](super::SideStreamPace::Filling).
    report_at_once: bool,
    /// Unanswered requests. Boxed, and `None` if there are none.
    answer_order: Option<Box<AnswerOrder>>,
    /// Times of malformed messages within [`limits::BAD_MESSAGES_WINDOW`].
    malformed_times: Vec<Mono>,
}

/// A link before its `hello`.
#[derive(Debug)]
struct AwaitingHello {
    deadline: Mono,
    config: LinkConfig,
}

/// The phase of a link.
#[derive(Debug)]
enum LinkPhase {
    /// Waits for `hello`.
    AwaitingHello(Box<AwaitingHello>),
    /// Waits for the result of the authentication.
    Authenticating(Box<Authenticating>),
    /// Serves the client.
    Open,
    Closed,
}

/// The state of a link during authentication.
#[derive(Debug)]
struct Authenticating {
    config: LinkConfig,
    resume: Vec<SubscribeCommand>,
    early_messages: Vec<String>,
}

impl Link {
    /// Creates the link of a connection that was just accepted.
    pub fn new(now: Now, config: LinkConfig) -> Self {
        // The driver draws the value within 10 %; a heartbeat of zero length would loop forever.
        let permille = config.heartbeat_permille.clamp(500, 2000);
        let heartbeat = limits::HEARTBEAT * permille / 1000;
        Self {
            durability: config.durability,
            side_streams: config.side_streams,
            phase: LinkPhase::AwaitingHello(Box::new(AwaitingHello {
                deadline: now.mono + limits::HELLO_TIMEOUT,
                config,
            })),
            outputs: VecDeque::new(),
            last_activity: now.mono,
            ping_at: now.mono + heartbeat,
            heartbeat_ms: u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX),
            unflushed_since: None,
            side_stall_since: None,
            leave_at: None,
            expires: None,
            unflushed: 0,
            unreported: 0,
            report_at_once: false,
            answer_order: None,
            malformed_times: Vec::new(),
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
            Input::SignOfLife => self.last_activity = now.mono,
            Input::Admitted { principal: _, expires } => self.handle_admitted(now, expires),
            Input::Refreshed { request_id, renewal } => self.handle_refreshed(now, request_id, renewal),
            Input::Denied => self.handle_denied(now),
            Input::NotServing(why) => self.handle_not_serving(now, why),
            Input::Note(note) => self.handle_notification(now, note),
            Input::Flushed => self.handle_flushed(),
            Input::SideStreamProgress(progress) => self.handle_side_streams(now, progress),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.poll_timeout().is_none_or(|deadline| deadline.at > now.mono) {
            return;
        }
        // Closing comes first: a link that ends needs no heartbeat.
        if self.leave_at.is_some_and(|at| at <= now.mono) {
            return self.close(4503, "this node is draining; retry on another node");
        }
        if self.expires.as_mut().is_some_and(|expiry| expiry.has_expired(now)) {
            return self.unauthorized(now, None, "the token has expired".into());
        }
        if self.stall_deadline().is_some_and(|at| at <= now.mono) {
            return self.close(4508, "the client did not read its messages in time");
        }
        if self.answer_deadline().is_some_and(|at| at <= now.mono) {
            self.expire_answers(now);
            if self.poll_timeout().is_none_or(|deadline| deadline.at > now.mono) {
                return;
            }
        }
        match &self.phase {
            LinkPhase::AwaitingHello(_) => self.close(4408, "no hello received in time"),
            LinkPhase::Authenticating(_) | LinkPhase::Open if self.idle_deadline() <= now.mono => {
                self.close(1001, "idle")
            }
            LinkPhase::Authenticating(_) | LinkPhase::Open | LinkPhase::Closed => self.send_heartbeat(now),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let idle = Deadline { at: self.idle_deadline(), label: "idle" };
        match &self.phase {
            LinkPhase::AwaitingHello(fresh) => Some(Deadline { at: fresh.deadline, label: "hello" }),
            LinkPhase::Authenticating(_) => Some(idle),
            LinkPhase::Open => {
                let ping = Deadline { at: self.ping_at, label: "ping" };
                let stall = self.stall_deadline().map(|at| Deadline { at, label: "stall" });
                let leave = self.leave_at.map(|at| Deadline { at, label: "leave" });
                let expiry = self.expires.as_ref().map(|expiry| Deadline { at: expiry.deadline(), label: "expiry" });
                let order = self.answer_deadline().map(|at| Deadline { at, label: "order" });
                [Some(idle), Some(ping), stall, leave, expiry, order].into_iter().flatten().min()
            }
            LinkPhase::Closed => None,
        }
    }
}

// === inputs ===

impl Link {
    fn handle_text(&mut self, now: Now, text: String) {
        self.last_activity = now.mono;
        match &mut self.phase {
            LinkPhase::AwaitingHello(_) => self.handle_first(now, &text),
            LinkPhase::Authenticating(asking) => {
                let bytes = text.len() + asking.early_messages.iter().map(String::len).sum::<usize>();
                if (asking.early_messages.len() < EARLY_MESSAGES_MAX || planted(Planted::WaitingUnbounded))
                    && bytes <= MESSAGE_BYTES_MAX
                {
                    asking.early_messages.push(text);
                } else {
                    let refusal = Refusal::new(Code::RateLimited, "too many messages before welcome");
                    self.refuse(now, &None, refusal);
                    self.close(4429, "too many messages before welcome");
                }
            }
            LinkPhase::Open => self.handle_message(now, &text),
            LinkPhase::Closed => {}
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
                | ClientMessage::Unsupported { .. },
            ) => {
                self.unauthorized(now, None, "the first message must be hello".into());
            }
            Err(Malformed { request_id, reason: flaw }) => {
                self.unauthorized(now, request_id, format!("the first message must be hello: {flaw}").into());
            }
        }
    }

    fn handle_hello(&mut self, now: Now, hello: HelloRequest, resume: Vec<SubscribeCommand>) {
        match hello.role {
            ConnectionRole::User | ConnectionRole::Agent | ConnectionRole::ToolRunner => {}
            ConnectionRole::Adapter => {
                let why = "the role adapter is not supported by this release";
                self.refuse(now, &None, Refusal::new(Code::Forbidden, why));
                return self.close(4403, why);
            }
        }
        self.side_streams &= hello.streams;
        match std::mem::replace(&mut self.phase, LinkPhase::Closed) {
            LinkPhase::AwaitingHello(fresh) => {
                let asking = Authenticating { config: fresh.config, resume, early_messages: Vec::new() };
                self.phase = LinkPhase::Authenticating(Box::new(asking));
                self.outputs.push_back(Output::Hello(hello));
            }
            other @ (LinkPhase::Authenticating(_) | LinkPhase::Open | LinkPhase::Closed) => self.phase = other,
        }
    }

    fn handle_admitted(&mut self, now: Now, expires: Option<Millis>) {
        let Authenticating { config, resume, early_messages: waiting } =
            match std::mem::replace(&mut self.phase, LinkPhase::Open) {
                LinkPhase::Authenticating(asking) => *asking,
                other @ (LinkPhase::AwaitingHello(_) | LinkPhase::Open | LinkPhase::Closed) => {
                    return self.phase = other;
                }
            };
        self.ping_at = now.mono + self.heartbeat();
        let id = &config.connection_id;
        let heartbeat = self.heartbeat();
        let window = config.resume_window_ms;
        let welcome = render::welcome(now.store, config.node, id, heartbeat, window, expires);
        self.expires = expires.map(|ends| Box::new(TokenExpiry::new(now, ends)));
        self.write(now, welcome);
        for subscribe in resume {
            self.send_or_queue(now, LinkCommand::Subscribe(subscribe), 0);
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
            Ok(ClientMessage::Command(command)) => self.send_or_queue(now, command, text.len()),
            Ok(ClientMessage::Refresh { request_id, token }) => {
                self.outputs.push_back(Output::Refresh { request_id, token });
            }
            Ok(ClientMessage::Ping { request_id }) => {
                let pong = render::pong(now.store, &request_id);
                self.write(now, pong);
            }
            Ok(ClientMessage::Unsupported { type_name, request_id }) => {
                let why = format!("{type_name} is not supported by this release");
                self.refuse(now, &request_id, Refusal::new(Code::InvalidMessage, why));
            }
            Ok(ClientMessage::Hello { .. }) => self.handle_malformed(now, &None, MalformedReason::RepeatedHello),
            Err(Malformed { request_id, reason: flaw }) => self.handle_malformed(now, &request_id, flaw),
        }
    }

    /// Sends a request of `bytes` bytes to the switchboard, or queues it behind earlier requests.
    fn send_or_queue(&mut self, now: Now, command: LinkCommand, bytes: usize) {
        match self.answer_order.get_or_insert_default().push_request(now, command, bytes) {
            Ok(Some(command)) => self.send_command(command),
            Ok(None) => self.outputs.push_back(Output::CommandDeferred),
            Err(TooManyQueued { request_id }) => {
                self.outputs.push_back(Output::CommandDeferred);
                let refusal = Refusal::new(Code::RateLimited, "too many requests are waiting on this connection");
                self.refuse(now, &request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
        }
        self.answer_order.take_if(|order| order.is_empty());
    }

    fn send_command(&mut self, command: LinkCommand) {
        if let LinkCommand::Unsubscribe { session, .. } = &command {
            self.end_side_streams(session, None);
        }
        self.outputs.push_back(Output::Command(command));
    }

    /// Answers a malformed message; closes the link after too many. An unknown type does not count, because it
    /// indicates a newer client, not a broken one.
    fn handle_malformed(&mut self, now: Now, request_id: &Option<RequestId>, flaw: MalformedReason) {
        self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, flaw.to_string()));
        if flaw == MalformedReason::UnknownType {
            return;
        }
        self.malformed_times.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.malformed_times.push(now.mono);
        let most = limits::BAD_MESSAGES_MAX * if planted(Planted::BadMessagesDoubled) { 2 } else { 1 };
        if self.malformed_times.len() >= most {
            self.close(4400, "too many malformed messages");
        }
    }

    /// Sends a heartbeat; every other deadline has been handled.
    fn send_heartbeat(&mut self, now: Now) {
        self.ping_at = now.mono + self.heartbeat();
        self.outputs.push_back(Output::Ping);
        // Memory that a burst of messages used is released at the next heartbeat.
        self.malformed_times.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.malformed_times.shrink_to_fit();
        self.outputs.shrink_to_fit();
    }
}

// === helpers ===

impl Link {
    fn idle_deadline(&self) -> Mono {
        self.last_activity + limits::IDLE_TIMEOUT
    }
    fn stall_deadline(&self) -> Option<Mono> {
        let since = self.unflushed_since.into_iter().chain(self.side_stall_since.as_deref().copied()).min();
        since.map(|since| since + limits::STALL_TIMEOUT)
    }
    /// Returns the time at which the oldest request loses its place in the answer order.
    fn answer_deadline(&self) -> Option<Mono> {
        self.answer_order.as_ref()?.next_expiry()
    }
    /// Returns the size limit of one message: small before authentication.
    fn message_bytes_max(&self) -> usize {
        match self.phase {
            LinkPhase::AwaitingHello(_) => limits::HELLO_BYTES_MAX,
            LinkPhase::Authenticating(_) | LinkPhase::Open | LinkPhase::Closed => MESSAGE_BYTES_MAX,
        }
    }
    fn write(&mut self, now: Now, text: String) {
        self.unflushed_since.get_or_insert(now.mono);
        self.outputs.push_back(Output::Write(text));
    }
    fn refuse(&mut self, now: Now, request_id: &Option<RequestId>, refusal: Refusal) {
        let text = render::render_error(now.store, request_id, &refusal);
        self.write(now, text);
    }
    fn unauthorized(&mut self, now: Now, request_id: Option<RequestId>, why: Cow<'static, str>) {
        self.refuse(now, &request_id, Refusal::new(Code::Unauthorized, why));
        self.close(4401, "unauthorized");
    }
    fn too_large(&mut self, now: Now, max: usize) {
        if matches!(self.phase, LinkPhase::Closed) {
            return;
        }
        let why = format!("message exceeds the limit of {max} bytes");
        self.refuse(now, &None, Refusal::new(Code::TooLarge, why));
        self.close(4413, "message too large");
    }
    /// Closes the link once. Later outputs are ignored.
    fn close(&mut self, code: u16, reason: &'static str) {
        if !matches!(self.phase, LinkPhase::Closed) {
            self.phase = LinkPhase::Closed;
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
