//! The state that a connection of any role has, and the outputs that follow from it. The machine that owns the state
//! decides in which order its deadlines count.
use super::expiry::TokenExpiry;
use super::{Output, RefreshOutcome};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;
use turnway_core::id::{NodeId, RequestId};
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::{Deadline, Millis, Mono, Now};
use turnway_wire::channel::close_code;
use turnway_wire::channel::hello::Credential;
use turnway_wire::channel::json::render;

/// The outputs, deadlines and counts of a connection; `E` is an event of its role.
///
/// Kept small, because a node has many links and most are idle.
#[derive(Debug)]
pub struct ConnectionState<E> {
    outputs: VecDeque<Output<E>>,
    /// Time of the peer's last activity.
    last_activity: Mono,
    ping_at: Mono,
    /// Time since which a text waits to be flushed.
    unflushed_since: Option<Mono>,
    /// Expiry of a token that must be refreshed. Boxed, because most links have none.
    expires: Option<Box<TokenExpiry>>,
    /// Times of malformed messages within [`limits::BAD_MESSAGES_WINDOW`].
    malformed_times: Vec<Mono>,
    heartbeat_ms: u32,
    closed: bool,
}

// === outputs ===

impl<E> ConnectionState<E> {
    /// Creates the state of a connection that was just accepted.
    pub(crate) fn new(now: Now, heartbeat_permille: u32) -> Self {
        // The driver draws the value within 10 %; a heartbeat of zero length would loop forever.
        let heartbeat = limits::HEARTBEAT * heartbeat_permille.clamp(500, 2000) / 1000;
        Self {
            outputs: VecDeque::new(),
            last_activity: now.mono,
            ping_at: now.mono + heartbeat,
            unflushed_since: None,
            expires: None,
            malformed_times: Vec::new(),
            heartbeat_ms: u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX),
            closed: false,
        }
    }

    pub(crate) fn poll_output(&mut self) -> Option<Output<E>> {
        self.outputs.pop_front()
    }

    /// Appends an event of the role.
    pub(crate) fn push_event(&mut self, event: E) {
        self.outputs.push_back(Output::Event(event));
    }

    pub(crate) fn write(&mut self, now: Now, text: String) {
        self.unflushed_since.get_or_insert(now.mono);
        self.outputs.push_back(Output::Write(text));
    }

    /// Writes `welcome`, and starts the heartbeat and the expiry of the credential.
    pub(crate) fn welcome(
        &mut self,
        now: Now,
        node: NodeId,
        connection_id: &str,
        resume_window_ms: u64,
        expires: Option<Millis>,
    ) {
        let heartbeat = self.heartbeat();
        self.ping_at = now.mono + heartbeat;
        self.expires = expires.map(|ends| Box::new(TokenExpiry::new(now, ends)));
        self.write(now, render::welcome(now.store, node, connection_id, heartbeat, resume_window_ms, expires));
    }

    /// Answers a `ping` message.
    pub(crate) fn pong(&mut self, now: Now, request_id: &Option<RequestId>) {
        self.write(now, render::pong(now.store, request_id));
    }

    /// Requests the authentication of a refreshed credential.
    pub(crate) fn request_refresh(&mut self, request_id: Option<RequestId>, token: Credential) {
        self.outputs.push_back(Output::Refresh { request_id, token });
    }

    /// Handles the answer to [`Output::Refresh`]; `denied` tells the peer what a refreshed token needs.
    pub(crate) fn handle_refreshed(
        &mut self,
        now: Now,
        request_id: &Option<RequestId>,
        renewal: RefreshOutcome,
        denied: &'static str,
    ) {
        match renewal {
            RefreshOutcome::Until(expires) => {
                self.expires = Some(Box::new(TokenExpiry::new(now, expires)));
                self.write(now, render::refreshed(now.store, request_id, expires));
            }
            RefreshOutcome::NotRequired => {
                let why = "this connection's credential does not expire and cannot be refreshed";
                self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
            }
            RefreshOutcome::Denied => self.unauthorized(now, request_id, denied),
            RefreshOutcome::RateLimited => {
                let refusal = Refusal::new(Code::RateLimited, "too many requests on this connection");
                self.refuse(now, request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
        }
    }
}

// === refusals and the close ===

impl<E> ConnectionState<E> {
    pub(crate) fn refuse(&mut self, now: Now, request_id: &Option<RequestId>, refusal: Refusal) {
        self.write(now, render::render_error(now.store, request_id, &refusal));
    }

    /// Refuses a malformed message without counting it.
    pub(crate) fn refuse_message(
        &mut self,
        now: Now,
        request_id: &Option<RequestId>,
        why: impl Into<Cow<'static, str>>,
    ) {
        self.refuse(now, request_id, Refusal::new(Code::InvalidMessage, why));
    }

    /// Counts a malformed message; closes the connection after `max` of them.
    pub(crate) fn count_malformed(&mut self, now: Now, max: usize) {
        self.malformed_times.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.malformed_times.push(now.mono);
        if self.malformed_times.len() >= max {
            self.close(close_code::MALFORMED, "too many malformed messages");
        }
    }

    pub(crate) fn unauthorized(&mut self, now: Now, request_id: &Option<RequestId>, why: impl Into<Cow<'static, str>>) {
        self.refuse(now, request_id, Refusal::new(Code::Unauthorized, why));
        self.close(close_code::UNAUTHORIZED, "unauthorized");
    }

    /// Refuses a message of more than `max` bytes, and closes the connection.
    pub(crate) fn too_large(&mut self, now: Now, max: usize) {
        let why = format!("message exceeds the limit of {max} bytes");
        self.refuse(now, &None, Refusal::new(Code::TooLarge, why));
        self.close(close_code::TOO_LARGE, "message too large");
    }

    /// Closes the connection after a binary message.
    pub(crate) fn refuse_binary(&mut self) {
        self.close(close_code::BINARY, "binary messages are not supported");
    }

    /// Closes the connection once. The machine must ignore every later input.
    pub(crate) fn close(&mut self, code: u16, reason: &'static str) {
        if !std::mem::replace(&mut self.closed, true) {
            self.outputs.push_back(Output::Close { code, reason: Cow::Borrowed(reason) });
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

// === deadlines ===

impl<E> ConnectionState<E> {
    /// Records activity of the peer.
    pub(crate) fn record_activity(&mut self, now: Now) {
        self.last_activity = now.mono;
    }

    /// Records that every text drained so far was written.
    pub(crate) fn record_flush(&mut self) {
        self.unflushed_since = None;
    }

    pub(crate) fn unflushed_since(&self) -> Option<Mono> {
        self.unflushed_since
    }

    /// Returns the time at which silence of the peer closes the connection.
    pub(crate) fn idle_deadline(&self) -> Deadline {
        Deadline { at: self.last_activity + limits::IDLE_TIMEOUT, label: "idle" }
    }

    pub(crate) fn ping_deadline(&self) -> Deadline {
        Deadline { at: self.ping_at, label: "ping" }
    }

    /// Returns the time at which a text that was not flushed closes the connection.
    pub(crate) fn stall_deadline(&self) -> Option<Deadline> {
        let since = self.unflushed_since?;
        Some(Deadline { at: since + limits::STALL_TIMEOUT, label: "stall" })
    }

    pub(crate) fn expiry_deadline(&self) -> Option<Deadline> {
        let expiry = self.expires.as_ref()?;
        Some(Deadline { at: expiry.deadline(), label: "expiry" })
    }

    /// Closes the connection if its credential has expired although its timer was not yet handled, and returns whether
    /// that is so. Each input is preceded by this check: what arrives beside the timer is not written after the end.
    pub(crate) fn close_if_over(&mut self, now: Now) -> bool {
        self.expires.as_ref().is_some_and(|expiry| expiry.is_over(now)) && self.close_if_expired(now)
    }

    /// Closes the connection if its credential has expired, and returns whether that is so.
    pub(crate) fn close_if_expired(&mut self, now: Now) -> bool {
        let expired = self.expires.as_mut().is_some_and(|expiry| expiry.has_expired(now));
        if expired {
            self.unauthorized(now, &None, "the token has expired");
        }
        expired
    }

    /// Closes the connection if the peer was silent for too long, and returns whether that is so.
    pub(crate) fn close_if_idle(&mut self, now: Now) -> bool {
        let idle = self.idle_deadline().at <= now.mono;
        if idle {
            self.close(close_code::IDLE, "idle");
        }
        idle
    }

    /// Sends a heartbeat if one is due, and returns whether that is so.
    pub(crate) fn send_due_ping(&mut self, now: Now) -> bool {
        let due = self.ping_at <= now.mono;
        if due {
            self.ping_at = now.mono + self.heartbeat();
            self.outputs.push_back(Output::Ping);
        }
        due
    }

    /// Releases memory that a burst of messages used.
    pub(crate) fn shrink(&mut self, now: Now) {
        self.malformed_times.retain(|at| now.mono - *at < limits::BAD_MESSAGES_WINDOW);
        self.malformed_times.shrink_to_fit();
        self.outputs.shrink_to_fit();
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms.into())
    }
}
