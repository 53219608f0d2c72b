//! The state machine of one tool runner's connection: messages to the runner become texts, texts become messages,
//! and every other text is answered or closes the connection.
use crate::connection::{RefreshOutcome, TokenExpiry};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use turnway_core::id::{NodeId, RequestId};
use turnway_core::limits::{self, MESSAGE_BYTES_MAX};
use turnway_core::machine::Machine;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::{Deadline, Millis, Mono, Now};
use turnway_wire::channel::hello::Credential;
use turnway_wire::channel::json::render as shown;
use turnway_wire::channel::notification::Notification;
use turnway_wire::runner::{FromRunner, InvalidRunnerMessage, ToRunner};

/// The node's settings for a connection.
#[derive(Clone, Debug)]
pub struct RunnerConnectionConfig {
    /// Sent to the peer as `welcome.node_id`.
    pub node: NodeId,
    /// For `welcome.connection_id`; unique in the fleet.
    pub connection_id: String,
    /// The expiry of the credential, if it must be refreshed.
    pub expires: Option<Millis>,
    /// Heartbeat jitter in per mille of the period, drawn by the driver: 900 to 1100.
    pub heartbeat_permille: u32,
}

/// An input of the connection. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone)]
pub enum Input {
    /// A complete text message arrived.
    Text(String),
    /// A binary message arrived (1003).
    Binary,
    /// A message over the limit arrived, or began to (4413).
    TooLarge,
    /// Other activity of the peer.
    SignOfLife,
    /// A message for the runner.
    Send(Box<ToRunner>),
    /// The node is leaving: the runner should connect to another node.
    Draining,
    /// Authentication has answered [`Output::Refresh`].
    Refreshed { request_id: Option<RequestId>, renewal: RefreshOutcome },
    /// The transport has written every text drained so far.
    Flushed,
}

/// An output of the connection for its driver. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq)]
pub enum Output {
    /// Write a text message.
    Write(String),
    /// A message of the runner.
    Message(Box<FromRunner>),
    /// Authenticate the next credential of the same user; answered by `Refreshed`.
    Refresh { request_id: Option<RequestId>, token: Credential },
    /// Write a transport-level ping.
    Ping,
    /// Close the connection with this code; nothing follows.
    Close {
        /// Close code (protocol.md §1.3).
        code: u16,
        /// Text for a person.
        reason: &'static str,
    },
}

/// One connection of one runner. Every written text must be flushed within [`limits::STALL_TIMEOUT`], or the
/// connection closes. After `Close` the connection ignores every input.
#[derive(Debug)]
pub struct RunnerConnection {
    outputs: VecDeque<Output>,
    closed: bool,
    /// Time of the runner's last activity.
    last_activity: Mono,
    ping_at: Mono,
    heartbeat: Duration,
    /// Time since which a text waits to be flushed.
    unflushed_since: Option<Mono>,
    /// The deadline of a token that was not refreshed.
    expires: Option<TokenExpiry>,
    /// Times of malformed messages within [`limits::BAD_MESSAGES_WINDOW`].
    malformed_times: Vec<Mono>,
}

/// The fields that route a message.
#[derive(Deserialize)]
struct RunnerRoutingFields<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    request_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    token: Option<Cow<'a, str>>,
}

// === impl RunnerConnection ===

impl RunnerConnection {
    /// Creates the connection of a runner that was just authenticated, and sends `welcome`.
    pub fn new(now: Now, config: &RunnerConnectionConfig) -> Self {
        let heartbeat = limits::HEARTBEAT * config.heartbeat_permille.clamp(500, 2000) / 1000;
        let mut this = Self {
            outputs: VecDeque::new(),
            closed: false,
            last_activity: now.mono,
            ping_at: now.mono + heartbeat,
            heartbeat,
            unflushed_since: None,
            expires: config.expires.map(|ends| TokenExpiry::new(now, ends)),
            malformed_times: Vec::new(),
        };
        let id = &config.connection_id;
        this.write(now, shown::welcome(now.store, config.node, id, heartbeat, 0, config.expires));
        this
    }
}

impl Machine for RunnerConnection {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        if self.closed {
            return;
        }
        match input {
            Input::Text(text) => self.handle_text(now, &text),
            Input::Binary => self.close(1003, "binary messages are not supported"),
            Input::TooLarge => self.too_large(now),
            Input::SignOfLife => self.last_activity = now.mono,
            Input::Send(message) => self.write(now, message.to_json(now.store)),
            Input::Draining => {
                let within = limits::GO_AWAY_WITHIN;
                let jitter = limits::GO_AWAY_JITTER;
                let note = Notification::GoAway { reason: "drain", within, jitter };
                let mut texts = Vec::new();
                shown::render(now.store, "", &note, &mut |text| texts.push(text));
                texts.into_iter().for_each(|text| self.write(now, text));
            }
            Input::Refreshed { request_id, renewal } => self.handle_refreshed(now, &request_id, renewal),
            Input::Flushed => self.unflushed_since = None,
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.poll_timeout().is_none_or(|deadline| deadline.at > now.mono) {
            return;
        }
        if self.expires.as_mut().is_some_and(|expiry| expiry.has_expired(now)) {
            return self.unauthorized(now, &None, "the token has expired");
        }
        if self.stall_deadline().is_some_and(|at| at <= now.mono) {
            return self.close(4508, "the runner did not read its messages in time");
        }
        if self.idle_deadline() <= now.mono {
            return self.close(1001, "idle");
        }
        self.ping_at = now.mono + self.heartbeat;
        self.outputs.push_back(Output::Ping);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        if self.closed {
            return None;
        }
        let idle = Deadline { at: self.idle_deadline(), label: "idle" };
        let ping = Deadline { at: self.ping_at, label: "ping" };
        let stall = self.stall_deadline().map(|at| Deadline { at, label: "stall" });
        let expiry = self.expires.map(|expiry| Deadline { at: expiry.deadline(), label: "expiry" });
        [Some(idle), Some(ping), stall, expiry].into_iter().flatten().min()
    }
}

impl RunnerConnection {
    fn handle_text(&mut self, now: Now, text: &str) {
        self.last_activity = now.mono;
        // The transport enforces the same limit; this check does not rely on it.
        if text.len() > MESSAGE_BYTES_MAX {
            return self.too_large(now);
        }
        // Serde would also accept a JSON array with the fields in order.
        let head = Some(text).filter(|text| text.trim_ascii_start().starts_with('{'));
        let Some(head) = head.and_then(|text| serde_json::from_str::<RunnerRoutingFields<'_>>(text).ok()) else {
            return self.handle_malformed(now, &None, "not a JSON object with a type");
        };
        let request_id = head.request_id.as_deref().and_then(|id| RequestId::parse(id).ok());
        match (&*head.kind, head.token) {
            ("ping", _) => self.write(now, shown::pong(now.store, &request_id)),
            ("refresh", Some(token)) => {
                let token = Credential(token.into_owned());
                self.outputs.push_back(Output::Refresh { request_id, token });
            }
            ("refresh", None) => self.handle_malformed(now, &request_id, "token is missing"),
            (kind, _) => match FromRunner::parse(kind, text) {
                Some(Ok(message)) => self.outputs.push_back(Output::Message(Box::new(message))),
                Some(Err(InvalidRunnerMessage(why))) => self.handle_malformed(now, &request_id, why),
                // A newer runner, or one that uses a client's message: not counted as malformed.
                None => {
                    let why = "this message type is not supported from tool runners";
                    self.refuse(now, &request_id, Refusal::new(Code::InvalidMessage, why));
                }
            },
        }
    }

    fn handle_refreshed(&mut self, now: Now, request_id: &Option<RequestId>, renewal: RefreshOutcome) {
        match renewal {
            RefreshOutcome::Until(expires) => {
                self.expires = Some(TokenExpiry::new(now, expires));
                self.write(now, shown::refreshed(now.store, request_id, expires));
            }
            RefreshOutcome::NotRequired => {
                let why = "this connection's credential does not expire and cannot be refreshed";
                self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
            }
            RefreshOutcome::Denied => {
                self.unauthorized(now, request_id, "expected a valid token of the same user");
            }
            RefreshOutcome::RateLimited => {
                let refusal = Refusal::new(Code::RateLimited, "too many requests on this connection");
                self.refuse(now, request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
        }
    }

    fn idle_deadline(&self) -> Mono {
        self.last_activity + limits::IDLE_TIMEOUT
    }

    fn stall_deadline(&self) -> Option<Mono> {
        self.unflushed_since.map(|since| since + limits::STALL_TIMEOUT)
    }

    fn write(&mut self, now: Now, text: String) {
        self.unflushed_since.get_or_insert(now.mono);
        self.outputs.push_back(Output::Write(text));
    }

    fn refuse(&mut self, now: Now, request_id: &Option<RequestId>, refusal: Refusal) {
        self.write(now, shown::render_error(now.store, request_id, &refusal));
    }

    fn unauthorized(&mut self, now: Now, request_id: &Option<RequestId>, why: &'static str) {
        self.refuse(now, request_id, Refusal::new(Code::Unauthorized, why));
        self.close(4401, "unauthorized");
    }

    fn too_large(&mut self, now: Now) {
        let why = format!("message exceeds the limit of {MESSAGE_BYTES_MAX} bytes");
        self.refuse(now, &None, Refusal::new(Code::TooLarge, why));
        self.close(4413, "message too large");
    }

    /// Answers a malformed message; closes the connection after too many.
    fn handle_malformed(&mut self, now: Now, request_id: &Option<RequestId>, why: &'static str) {
        self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
        self.malformed_times.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.malformed_times.push(now.mono);
        if self.malformed_times.len() >= limits::BAD_MESSAGES_MAX {
            self.close(4400, "too many malformed messages");
        }
    }

    fn close(&mut self, code: u16, reason: &'static str) {
        self.closed = true;
        self.outputs.push_back(Output::Close { code, reason });
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text(<{} bytes>)", text.len()),
            Self::Binary => f.write_str("Binary"),
            Self::TooLarge => f.write_str("TooLarge"),
            Self::SignOfLife => f.write_str("SignOfLife"),
            Self::Send(message) => write!(f, "Send({message:?})"),
            Self::Draining => f.write_str("Draining"),
            Self::Refreshed { renewal, .. } => write!(f, "Refreshed({renewal:?})"),
            Self::Flushed => f.write_str("Flushed"),
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(text) => write!(f, "Write(<{} bytes>)", text.len()),
            Self::Message(message) => write!(f, "Message({message:?})"),
            Self::Refresh { token, .. } => write!(f, "Refresh({token:?})"),
            Self::Ping => f.write_str("Ping"),
            Self::Close { code, reason } => write!(f, "Close({code}, {reason})"),
        }
    }
}
