//! The state machine of one tool runner's connection: messages to the runner become texts, texts become messages,
//! and every other text is answered or closes the connection.
use super::words::{FromRunner, NoWord, ToRunner};
use crate::channel::hello::Credential;
use crate::channel::json::render as shown;
use crate::channel::note::Note;
use crate::link::{Expiry, Renewal};
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

/// The node's settings for a connection.
#[derive(Clone, Debug)]
pub struct LineConfig {
    /// For `welcome.node_id`.
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
    Alive,
    /// A message for the runner.
    Tell(Box<ToRunner>),
    /// The node is leaving: the runner should connect to another node.
    Leaving,
    /// Authentication has answered [`Output::Refresh`].
    Refreshed {
        request_id: Option<RequestId>,
        renewal: Renewal,
    },
    /// The transport has written every text drained so far.
    Flushed,
}

/// An output of the connection for its driver. `Debug` prints sizes instead of texts (S-38).
#[derive(Clone, PartialEq)]
pub enum Output {
    /// Write a text message.
    Write(String),
    /// A message of the runner.
    Word(Box<FromRunner>),
    /// Authenticate the next credential of the same user; answered by `Refreshed`.
    Refresh {
        request_id: Option<RequestId>,
        token: Credential,
    },
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
pub struct Line {
    outputs: VecDeque<Output>,
    closed: bool,
    /// Time of the runner's last activity.
    heard: Mono,
    ping_at: Mono,
    heartbeat: Duration,
    /// Time since which a text waits to be flushed.
    unflushed_since: Option<Mono>,
    /// The deadline of a token that was not refreshed.
    expires: Option<Expiry>,
    /// Times of malformed messages within [`limits::BAD_MESSAGES_WINDOW`].
    bad: Vec<Mono>,
}

/// The fields that route a message.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    request_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    token: Option<Cow<'a, str>>,
}

// === impl Line ===

impl Line {
    /// Creates the connection of a runner that was just authenticated, and sends `welcome`.
    pub fn new(now: Now, config: &LineConfig) -> Self {
        let heartbeat = limits::HEARTBEAT * config.heartbeat_permille.clamp(500, 2000) / 1000;
        let mut this = Self {
            outputs: VecDeque::new(),
            closed: false,
            heard: now.mono,
            ping_at: now.mono + heartbeat,
            heartbeat,
            unflushed_since: None,
            expires: config.expires.map(|ends| Expiry::new(now, ends)),
            bad: Vec::new(),
        };
        let id = &config.connection_id;
        this.write(now, shown::welcome(now.store, config.node, id, heartbeat, 0, config.expires));
        this
    }
}

impl Machine for Line {
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
            Input::Alive => self.heard = now.mono,
            Input::Tell(word) => self.write(now, word.text(now.store)),
            Input::Leaving => {
                let (within, jitter) = (limits::GO_AWAY_WITHIN, limits::GO_AWAY_JITTER);
                let note = Note::GoAway { reason: "drain", within, jitter };
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
        if self.expires.as_mut().is_some_and(|expiry| expiry.is_over(now)) {
            return self.unauthorized(now, &None, "the token has expired");
        }
        if self.stalled_at().is_some_and(|at| at <= now.mono) {
            return self.close(4508, "the runner did not read its messages in time");
        }
        if self.idle_at() <= now.mono {
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
        let idle = Deadline { at: self.idle_at(), why: "idle" };
        let ping = Deadline { at: self.ping_at, why: "ping" };
        let stall = self.stalled_at().map(|at| Deadline { at, why: "stall" });
        let expiry = self.expires.map(|expiry| Deadline { at: expiry.at(), why: "expiry" });
        [Some(idle), Some(ping), stall, expiry].into_iter().flatten().min()
    }
}

impl Line {
    fn handle_text(&mut self, now: Now, text: &str) {
        self.heard = now.mono;
        // The transport enforces the same limit; this check does not rely on it.
        if text.len() > MESSAGE_BYTES_MAX {
            return self.too_large(now);
        }
        // Serde would also accept a JSON array with the fields in order.
        let head = Some(text).filter(|text| text.trim_ascii_start().starts_with('{'));
        let Some(head) = head.and_then(|text| serde_json::from_str::<Head<'_>>(text).ok()) else {
            return self.handle_bad(now, &None, "not a JSON object with a type");
        };
        let request_id = head.request_id.as_deref().and_then(|id| RequestId::parse(id).ok());
        match (&*head.kind, head.token) {
            ("ping", _) => self.write(now, shown::pong(now.store, &request_id)),
            ("refresh", Some(token)) => {
                let token = Credential(token.into_owned());
                self.outputs.push_back(Output::Refresh { request_id, token });
            }
            ("refresh", None) => self.handle_bad(now, &request_id, "token is missing"),
            (kind, _) => match FromRunner::read(kind, text) {
                Some(Ok(word)) => self.outputs.push_back(Output::Word(Box::new(word))),
                Some(Err(NoWord(why))) => self.handle_bad(now, &request_id, why),
                // A newer runner, or one that uses a client's message: not counted as malformed.
                None => {
                    let why = "this message type is not supported from tool runners";
                    self.refuse(now, &request_id, Refusal::new(Code::InvalidMessage, why));
                }
            },
        }
    }

    fn handle_refreshed(&mut self, now: Now, request_id: &Option<RequestId>, renewal: Renewal) {
        match renewal {
            Renewal::Until(expires) => {
                self.expires = Some(Expiry::new(now, expires));
                self.write(now, shown::refreshed(now.store, request_id, expires));
            }
            Renewal::Needless => {
                let why = "this connection's credential does not expire and cannot be refreshed";
                self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
            }
            Renewal::Denied => {
                self.unauthorized(now, request_id, "expected a valid token of the same user");
            }
            Renewal::Late => {
                let refusal = Refusal::new(Code::RateLimited, "too many requests on this connection");
                self.refuse(now, request_id, refusal);
            }
        }
    }

    fn idle_at(&self) -> Mono {
        self.heard + limits::IDLE_TIMEOUT
    }

    fn stalled_at(&self) -> Option<Mono> {
        self.unflushed_since.map(|since| since + limits::STALL_TIMEOUT)
    }

    fn write(&mut self, now: Now, text: String) {
        self.unflushed_since.get_or_insert(now.mono);
        self.outputs.push_back(Output::Write(text));
    }

    fn refuse(&mut self, now: Now, request_id: &Option<RequestId>, refusal: Refusal) {
        self.write(now, shown::refused(now.store, request_id, &refusal));
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
    fn handle_bad(&mut self, now: Now, request_id: &Option<RequestId>, why: &'static str) {
        self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
        self.bad.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.bad.push(now.mono);
        if self.bad.len() >= limits::BAD_MESSAGES_MAX {
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
            Self::Alive => f.write_str("Alive"),
            Self::Tell(word) => write!(f, "Tell({word:?})"),
            Self::Leaving => f.write_str("Leaving"),
            Self::Refreshed { renewal, .. } => write!(f, "Refreshed({renewal:?})"),
            Self::Flushed => f.write_str("Flushed"),
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(text) => write!(f, "Write(<{} bytes>)", text.len()),
            Self::Word(word) => write!(f, "Word({word:?})"),
            Self::Refresh { token, .. } => write!(f, "Refresh({token:?})"),
            Self::Ping => f.write_str("Ping"),
            Self::Close { code, reason } => write!(f, "Close({code}, {reason})"),
        }
    }
}
