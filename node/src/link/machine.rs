//! The state machine of a link. Kept small in memory, because a node has many links and most are idle.
use crate::connection::ConnectionState;
use crate::link::answer_order::{AnswerOrder, TooManyQueued};
use crate::link::{Input, LinkConfig, LinkEvent, Output};
use turnway_core::id::RequestId;
use turnway_core::limits::{self, MESSAGE_BYTES_MAX};
use turnway_core::machine::Machine;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::{Deadline, Millis, Mono, Now};
use turnway_wire::channel::close_code;
use turnway_wire::channel::command::{LinkCommand, SubscribeCommand};
use turnway_wire::channel::hello::HelloRequest;
use turnway_wire::channel::json::malformed::{Malformed, MalformedReason};
use turnway_wire::channel::json::parse::{ClientMessage, parse};

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
    connection: ConnectionState<LinkEvent>,
    /// Time since which too much text waits on side streams without any of it being read. Boxed, because most links
    /// never have it.
    side_stall_since: Option<Box<Mono>>,
    /// Time at which a link that was asked to reconnect is closed. Boxed, because most links never have it.
    leave_at: Option<Box<Mono>>,
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
}

/// A link before its `hello`.
#[derive(Debug)]
struct AwaitingHello {
    deadline: Mono,
    config: LinkConfig,
}

/// The phase of a link that is not closed.
#[derive(Debug)]
enum LinkPhase {
    /// Waits for `hello`.
    AwaitingHello(Box<AwaitingHello>),
    /// Waits for the result of the authentication.
    Authenticating(Box<Authenticating>),
    /// Serves the client.
    Open,
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
        Self {
            connection: ConnectionState::new(now, config.heartbeat_permille),
            durability: config.durability,
            side_streams: config.side_streams,
            phase: LinkPhase::AwaitingHello(Box::new(AwaitingHello {
                deadline: now.mono + limits::HELLO_TIMEOUT,
                config,
            })),
            side_stall_since: None,
            leave_at: None,
            unflushed: 0,
            unreported: 0,
            report_at_once: false,
            answer_order: None,
        }
    }
}

impl Machine for Link {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        if self.connection.is_closed() || self.connection.close_if_over(now) {
            return;
        }
        match input {
            Input::Text(text) => self.handle_text(now, text),
            Input::Binary => self.connection.refuse_binary(),
            Input::TooLarge => self.connection.too_large(now, self.message_bytes_max()),
            Input::SignOfLife => self.connection.record_activity(now),
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
        if self.leave_at.as_ref().is_some_and(|at| **at <= now.mono) {
            return self.connection.close(close_code::DRAINING, "this node is draining; retry on another node");
        }
        if self.connection.close_if_expired(now) {
            return;
        }
        if self.stall_deadline().is_some_and(|stall| stall.at <= now.mono) {
            return self.connection.close(close_code::SLOW_READER, "the client did not read its messages in time");
        }
        if self.answer_deadline().is_some_and(|at| at <= now.mono) {
            self.expire_answers(now);
            if self.poll_timeout().is_none_or(|deadline| deadline.at > now.mono) {
                return;
            }
        }
        match &self.phase {
            LinkPhase::AwaitingHello(_) => {
                self.connection.close(close_code::HELLO_TIMEOUT, "no hello received in time")
            }
            LinkPhase::Authenticating(_) | LinkPhase::Open => {
                if !self.connection.close_if_idle(now) && self.connection.send_due_ping(now) {
                    self.connection.shrink(now);
                }
            }
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.connection.poll_output()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        if self.connection.is_closed() {
            return None;
        }
        let idle = self.connection.idle_deadline();
        match &self.phase {
            LinkPhase::AwaitingHello(fresh) => Some(Deadline { at: fresh.deadline, label: "hello" }),
            LinkPhase::Authenticating(_) => Some(idle),
            LinkPhase::Open => {
                let ping = self.connection.ping_deadline();
                let leave = self.leave_at.as_ref().map(|at| Deadline { at: **at, label: "leave" });
                let expiry = self.connection.expiry_deadline();
                let order = self.answer_deadline().map(|at| Deadline { at, label: "order" });
                [Some(idle), Some(ping), self.stall_deadline(), leave, expiry, order].into_iter().flatten().min()
            }
        }
    }
}

// === inputs ===

impl Link {
    fn handle_text(&mut self, now: Now, text: String) {
        self.connection.record_activity(now);
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
                    self.connection.refuse(now, &None, refusal);
                    self.connection.close(close_code::RATE_LIMITED, "too many messages before welcome");
                }
            }
            LinkPhase::Open => self.handle_message(now, &text),
        }
    }

    /// Handles the first message, which must be `hello` (S-04).
    fn handle_first(&mut self, now: Now, text: &str) {
        if text.len() > limits::HELLO_BYTES_MAX {
            return self.connection.too_large(now, limits::HELLO_BYTES_MAX);
        }
        match parse(text) {
            Ok(ClientMessage::Hello { hello, resume }) => self.handle_hello(hello, resume),
            Ok(
                ClientMessage::Command(_)
                | ClientMessage::Refresh { .. }
                | ClientMessage::Ping { .. }
                | ClientMessage::Unsupported { .. },
            ) => {
                self.connection.unauthorized(now, &None, "the first message must be hello");
            }
            Err(Malformed { request_id, reason: flaw }) => {
                let why = format!("the first message must be hello: {flaw}");
                self.connection.unauthorized(now, &request_id, why);
            }
        }
    }

    fn handle_hello(&mut self, hello: HelloRequest, resume: Vec<SubscribeCommand>) {
        self.side_streams &= hello.streams;
        match std::mem::replace(&mut self.phase, LinkPhase::Open) {
            LinkPhase::AwaitingHello(fresh) => {
                let asking = Authenticating { config: fresh.config, resume, early_messages: Vec::new() };
                self.phase = LinkPhase::Authenticating(Box::new(asking));
                self.connection.push_event(LinkEvent::Hello(hello));
            }
            other @ (LinkPhase::Authenticating(_) | LinkPhase::Open) => self.phase = other,
        }
    }

    fn handle_admitted(&mut self, now: Now, expires: Option<Millis>) {
        let Authenticating { config, resume, early_messages: waiting } =
            match std::mem::replace(&mut self.phase, LinkPhase::Open) {
                LinkPhase::Authenticating(asking) => *asking,
                other @ (LinkPhase::AwaitingHello(_) | LinkPhase::Open) => return self.phase = other,
            };
        self.connection.welcome(now, config.node, &config.connection_id, config.resume_window_ms, expires);
        for subscribe in resume {
            self.send_or_queue(now, LinkCommand::Subscribe(subscribe), 0);
        }
        for text in waiting {
            // One of the messages may close the link; the rest are then ignored.
            if !self.connection.is_closed() {
                self.handle_text(now, text);
            }
        }
    }

    fn handle_message(&mut self, now: Now, text: &str) {
        // The transport enforces the same limit; this check does not rely on it.
        if text.len() > MESSAGE_BYTES_MAX {
            return self.connection.too_large(now, MESSAGE_BYTES_MAX);
        }
        match parse(text) {
            Ok(ClientMessage::Command(command)) => self.send_or_queue(now, command, text.len()),
            Ok(ClientMessage::Refresh { request_id, token }) => self.connection.request_refresh(request_id, token),
            Ok(ClientMessage::Ping { request_id }) => self.connection.pong(now, &request_id),
            Ok(ClientMessage::Unsupported { type_name, request_id }) => {
                let why = format!("{type_name} is not supported by this release");
                self.connection.refuse_message(now, &request_id, why);
            }
            Ok(ClientMessage::Hello { .. }) => self.handle_malformed(now, &None, MalformedReason::RepeatedHello),
            Err(Malformed { request_id, reason: flaw }) => self.handle_malformed(now, &request_id, flaw),
        }
    }

    /// Sends a request of `bytes` bytes to the switchboard, or queues it behind earlier requests.
    fn send_or_queue(&mut self, now: Now, command: LinkCommand, bytes: usize) {
        match self.answer_order.get_or_insert_default().push_request(now, command, bytes) {
            Ok(Some(command)) => self.send_command(command),
            Ok(None) => self.connection.push_event(LinkEvent::CommandDeferred),
            Err(TooManyQueued { request_id }) => {
                self.connection.push_event(LinkEvent::CommandDeferred);
                let refusal = Refusal::new(Code::RateLimited, "too many requests are waiting on this connection");
                self.connection.refuse(now, &request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
        }
        self.answer_order.take_if(|order| order.is_empty());
    }

    fn send_command(&mut self, command: LinkCommand) {
        if let LinkCommand::Unsubscribe { session, .. } = &command {
            self.end_side_streams(session, None);
        }
        self.connection.push_event(LinkEvent::Command(command));
    }

    /// Answers a malformed message; closes the link after too many. An unknown type does not count, because it
    /// indicates a newer client, not a broken one.
    fn handle_malformed(&mut self, now: Now, request_id: &Option<RequestId>, flaw: MalformedReason) {
        self.connection.refuse_message(now, request_id, flaw.to_string());
        if flaw != MalformedReason::UnknownType {
            let most = limits::BAD_MESSAGES_MAX * if planted(Planted::BadMessagesDoubled) { 2 } else { 1 };
            self.connection.count_malformed(now, most);
        }
    }
}

// === helpers ===

impl Link {
    /// Returns the time at which a text that was not flushed, or a side stream that is not read, closes the link.
    fn stall_deadline(&self) -> Option<Deadline> {
        let side = self
            .side_stall_since
            .as_ref()
            .map(|since| Deadline { at: **since + limits::STALL_TIMEOUT, label: "stall" });
        self.connection.stall_deadline().into_iter().chain(side).min()
    }
    /// Returns the time at which the oldest request loses its place in the answer order.
    fn answer_deadline(&self) -> Option<Mono> {
        self.answer_order.as_ref()?.next_expiry()
    }
    /// Returns the size limit of one message: small before authentication.
    fn message_bytes_max(&self) -> usize {
        match self.phase {
            LinkPhase::AwaitingHello(_) => limits::HELLO_BYTES_MAX,
            LinkPhase::Authenticating(_) | LinkPhase::Open => MESSAGE_BYTES_MAX,
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
