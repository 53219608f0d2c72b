//! The client as a state machine without sockets, clock, or tasks: calls report what happened and when, outputs tell
//! what to do. Driven by the driver task, by tests, or by any caller that has a socket.
use crate::backoff::{Backoff, SplitMix};
use crate::conversation::{SessionTracker, SubscriptionState, is_session_id};
use crate::error::ClientError;
use crate::event::{Bookmark, Event};
use crate::frame::IncomingMessage;
use crate::hello::HelloTemplate;
use crate::invoke::{Open, Subscribe, UserInput};
use crate::keepalive::Keepalive;
use crate::limits;
use crate::members::MemberChange;
use crate::options::Options;
use crate::output::{Lost, Outbound, Output};
use crate::planted::{Planted, planted};
use crate::refusals::failure_of;
use crate::requests::{Decision, SessionRequestKind};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    Waiting { until: Duration },
    Dialing,
    Greeting { until: Duration },
    Ready { since: Duration, leave: Option<Duration> },
    Over,
}

/// The state machine of a client. Times are durations since some fixed moment and never go back; drain
/// [`ClientState::poll_output`] after every call.
#[derive(Clone, Debug)]
pub struct ClientState {
    hello: HelloTemplate,
    /// True if the token sent on this connection is not the latest.
    is_stale: bool,
    backoff: Backoff,
    rng: SplitMix,
    /// True if a failure before the first `welcome` is final.
    fail_fast: bool,
    phase: ConnectionPhase,
    failures: u32,
    keepalive: Keepalive,
    message_bytes_max: usize,
    sessions: BTreeMap<String, SessionTracker>,
    out: Outbound,
}

impl ClientState {
    /// Creates a client that connects at once. The same seed and the same calls give the same outputs; the seed also
    /// names the client's requests, so no two clients may share a seed.
    pub fn new(options: &Options, seed: u64, fail_fast: bool) -> Self {
        Self {
            hello: HelloTemplate::from_options(options),
            is_stale: false,
            backoff: options.backoff,
            rng: SplitMix::from_seed(seed),
            fail_fast,
            phase: ConnectionPhase::Dialing,
            failures: 0,
            keepalive: Keepalive::new(options.is_quic()),
            message_bytes_max: limits::MESSAGE_BYTES_MAX,
            sessions: BTreeMap::new(),
            out: Outbound::new(seed),
        }
    }

    /// Returns the next output; `None` until the next `handle_*` or request.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop()
    }

    /// Returns the time at which [`ClientState::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.phase {
            ConnectionPhase::Waiting { until } | ConnectionPhase::Greeting { until } => Some(until),
            ConnectionPhase::Dialing | ConnectionPhase::Over => None,
            ConnectionPhase::Ready { leave, .. } => {
                let due = self.sessions.values().filter_map(SessionTracker::deadline).min();
                [leave, due, Some(self.keepalive.deadline(self.awaits_answer()))].into_iter().flatten().min()
            }
        }
    }

    /// Returns whether the client has ended permanently.
    pub fn is_over(&self) -> bool {
        self.phase == ConnectionPhase::Over
    }

    // --- handling events ---

    /// Handles an opened connection, as requested by [`Output::Dial`].
    pub fn handle_open(&mut self, now: Duration) {
        self.set_now(now);
        self.keepalive.begin(now);
        self.phase = ConnectionPhase::Greeting { until: now + limits::WELCOME_TIMEOUT };
        self.is_stale = false;
        let hello = self.hello_with_resume();
        self.out.send(hello);
    }

    /// Handles received data of any kind.
    pub fn handle_bytes(&mut self, now: Duration) {
        self.set_now(now);
        if self.keepalive.handle_bytes(now) {
            self.out.drop_spare();
        }
    }

    /// Handles a text message. Messages outside the protocol are ignored.
    pub fn handle_text(&mut self, now: Duration, text: &str) {
        self.handle_bytes(now);
        let Some(frame) = IncomingMessage::parse(text) else { return };
        self.keepalive.handle_message(frame.kind() == "pong");
        match frame.kind() {
            "welcome" => self.handle_welcome(&frame),
            "go_away" => self.handle_go_away(&frame),
            "error" => self.route_error(&frame),
            "pong" | "refreshed" => {}
            _ => self.route(&frame),
        }
        self.send_due();
    }

    /// Returns whether a message is the end of a run whose text has not all arrived. QUIC streams have no mutual
    /// order, so missing text may still arrive, and the end is better delivered after it.
    pub fn lacks_text(&self, text: &str) -> bool {
        // Few messages end a run, and searching is cheaper than parsing.
        let Some(frame) = text.contains("\"done\"").then(|| IncomingMessage::parse(text)).flatten() else {
            return false;
        };
        let (Some(run), Some(session)) = (frame.text("run_id"), frame.text("session_id")) else {
            return false;
        };
        let conversation = self.sessions.get(session);
        frame.kind() == "done" && conversation.is_some_and(|it| it.lacks_text(run, &frame))
    }

    /// Handles a connection that was lost or could not be opened.
    pub fn handle_lost(&mut self, now: Duration, lost: Lost) {
        self.set_now(now);
        let never = self.fail_fast && !matches!(self.phase, ConnectionPhase::Ready { .. });
        self.end_connection();
        let retry_in = if lost.is_final() || never {
            self.phase = ConnectionPhase::Over;
            None
        } else {
            let floor = if lost.code == Some(4429) && !planted(Planted::SdkHurriesBack) {
                limits::BACKOFF_RATE_LIMITED
            } else {
                Duration::ZERO
            };
            let wait = self.backoff.delay(self.failures, &mut self.rng).max(floor);
            self.failures = self.failures.saturating_add(1);
            self.phase = ConnectionPhase::Waiting { until: now + wait };
            Some(wait)
        };
        self.out.emit(Event::Disconnected { reason: lost.reason, code: lost.code, retry_in });
    }

    /// Handles the passing of time. A call before the deadline has no effect.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.set_now(now);
        match self.phase {
            ConnectionPhase::Waiting { until } if until <= now => {
                self.phase = ConnectionPhase::Dialing;
                self.out.dial();
            }
            ConnectionPhase::Greeting { until } if until <= now => self.hang_up("the gateway sent no welcome in time"),
            ConnectionPhase::Ready { leave: Some(leave), .. } if leave <= now => self.reconnect_now(),
            ConnectionPhase::Ready { .. } => self.handle_silence(),
            ConnectionPhase::Waiting { .. }
            | ConnectionPhase::Greeting { .. }
            | ConnectionPhase::Dialing
            | ConnectionPhase::Over => {}
        }
    }

    // --- requests of the application ---

    /// Replaces the token for the current connection and later ones.
    pub fn refresh(&mut self, now: Duration, token: String) -> Result<(), ClientError> {
        self.set_now(now);
        let refresh = self.hello.refresh(token);
        match self.phase {
            ConnectionPhase::Ready { .. } => {
                self.out.send(refresh.to_string());
                // A second connection being tried was sent the previous token.
                self.is_stale = self.keepalive.has_spare();
            }
            // The previous token was sent, and nothing may be sent before `welcome`.
            ConnectionPhase::Greeting { .. } => self.is_stale = !planted(Planted::SdkTokenStale),
            ConnectionPhase::Waiting { .. } | ConnectionPhase::Dialing => {}
            ConnectionPhase::Over => return Err(ClientError::Closed),
        }
        Ok(())
    }

    /// Subscribes to a session's output.
    pub fn subscribe(&mut self, now: Duration, session: &str, request: Subscribe) -> Result<(), ClientError> {
        self.with_session(now, session, |conversation, fx| {
            conversation.subscribe(request, fx.now);
            Ok(())
        })
    }

    /// Sends an input, which is repeated until its turn has ended.
    pub fn invoke(&mut self, now: Duration, session: &str, invoke: UserInput) -> Result<(), ClientError> {
        let bytes_max = self.message_bytes_max;
        self.with_session(now, session, |conversation, _| conversation.invoke(invoke, bytes_max))
    }

    /// Cancels a run, or without a run id whatever is in progress.
    pub fn cancel(&mut self, now: Duration, session: &str, run: Option<String>) -> Result<(), ClientError> {
        self.with_session(now, session, |conversation, fx| conversation.request(SessionRequestKind::Cancel { run }, fx))
    }

    /// Creates or reopens a session.
    pub fn open(&mut self, now: Duration, session: &str, open: Open) -> Result<(), ClientError> {
        self.with_session(now, session, |conversation, fx| conversation.request(SessionRequestKind::Open(open), fx))
    }

    /// Closes a session.
    pub fn close(&mut self, now: Duration, session: &str) -> Result<(), ClientError> {
        self.with_session(now, session, |conversation, fx| conversation.request(SessionRequestKind::Close, fx))
    }

    /// Confirms or rejects a handover.
    pub fn decide(&mut self, now: Duration, session: &str, what: Decision) -> Result<(), ClientError> {
        self.with_session(now, session, |conversation, fx| conversation.request(SessionRequestKind::Decide(what), fx))
    }

    /// Changes the members of a session or the active one.
    pub fn change_members(&mut self, now: Duration, session: &str, change: MemberChange) -> Result<(), ClientError> {
        self.with_session(now, session, |conversation, fx| {
            conversation.request(SessionRequestKind::Members(change), fx)
        })
    }

    /// Delivers a bookmark of the events delivered so far.
    pub fn bookmark(&mut self, now: Duration, session: &str) -> Result<(), ClientError> {
        self.with_session(now, session, |conversation, fx| {
            fx.emit(Event::Bookmark(Box::new(conversation.bookmark())));
            Ok(())
        })
    }

    /// Resumes from a bookmark. A session that this client already has keeps its state.
    pub fn resume(&mut self, now: Duration, mark: Bookmark) -> Result<(), ClientError> {
        if self.sessions.contains_key(&mark.session_id) {
            return Ok(());
        }
        let session = mark.session_id.clone();
        self.with_session(now, &session, |conversation, _| {
            conversation.restore(mark);
            Ok(())
        })
    }

    /// Removes a session and its unfinished inputs; inputs that the gateway accepted continue to run.
    pub fn leave(&mut self, now: Duration, session: &str) {
        self.set_now(now);
        if self.sessions.remove(session).is_some() && matches!(self.phase, ConnectionPhase::Ready { .. }) {
            self.out.send(json!({ "type": "unsubscribe", "ts": 0, "session_id": session }).to_string());
        }
    }

    fn with_session<F>(&mut self, now: Duration, session: &str, ask: F) -> Result<(), ClientError>
    where
        F: FnOnce(&mut SessionTracker, &mut Outbound) -> Result<(), ClientError>,
    {
        self.set_now(now);
        if self.is_over() {
            return Err(ClientError::Closed);
        }
        if !is_session_id(session) {
            return Err(ClientError::BadName { what: "session id" });
        }
        if !self.sessions.contains_key(session) {
            if self.sessions.len() >= limits::SESSIONS_MAX {
                return Err(ClientError::TooMany { what: "sessions", max: limits::SESSIONS_MAX });
            }
            self.sessions.insert(session.to_owned(), SessionTracker::new(session));
        }
        if let Some(conversation) = self.sessions.get_mut(session) {
            ask(conversation, &mut self.out)?;
        }
        self.send_due();
        Ok(())
    }

    // --- the connection ---

    fn set_now(&mut self, now: Duration) {
        self.out.now = self.out.now.max(now);
    }

    /// Returns `hello` with as many sessions to resume as fit; the others subscribe after `welcome`.
    fn hello_with_resume(&mut self) -> String {
        let mut hello = self.hello.message();
        let mut left_bytes = limits::HELLO_BYTES_MAX.saturating_sub(hello.to_string().len() + ",\"resume\":[]".len());
        let mut resume = Vec::new();
        for conversation in self.sessions.values_mut().filter(|session| session.wants_resume()) {
            let request_id = self.out.request_id();
            let body = conversation.subscribe_body(&request_id);
            let bytes = body.to_string().len() + 1;
            if bytes <= left_bytes {
                left_bytes -= if planted(Planted::SdkHelloOverfull) { 0 } else { bytes };
                resume.push(body);
                conversation.subscription = SubscriptionState::Requested(request_id);
            }
        }
        if !resume.is_empty() {
            hello["resume"] = resume.into();
        }
        hello.to_string()
    }

    fn handle_welcome(&mut self, frame: &IncomingMessage) {
        if !matches!(self.phase, ConnectionPhase::Greeting { .. }) {
            return;
        }
        self.phase = ConnectionPhase::Ready { since: self.out.now, leave: None };
        self.fail_fast = false;
        let limit = frame.get("limits").and_then(|limits| limits.get("max_message_bytes")?.as_u64());
        if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) {
            self.message_bytes_max = limit;
        }
        let word = |key| frame.string(key).unwrap_or_default();
        let connection_id = word("connection_id");
        let node_id = word("node_id");
        self.out.emit(Event::Connected { connection_id, node_id });
        if std::mem::take(&mut self.is_stale) {
            self.out.send(self.hello.refresh_message().to_string());
        }
    }

    /// Handles a draining node: reconnects within the time it names, at a random moment so that clients do not return
    /// together.
    fn handle_go_away(&mut self, frame: &IncomingMessage) {
        let span = |key| Duration::from_millis(frame.number(key).unwrap_or(0));
        let spread = span("jitter_ms").min(span("reconnect_within_ms"));
        let wait = if planted(Planted::SdkLeavesAtOnce) { Duration::ZERO } else { self.rng.duration_below(spread) };
        if let ConnectionPhase::Ready { leave, .. } = &mut self.phase
            && leave.is_none()
        {
            *leave = Some(self.out.now + wait);
        }
    }

    fn reconnect_now(&mut self) {
        self.out.hang_up();
        self.end_connection();
        self.phase = ConnectionPhase::Dialing;
        let reason = "the node is draining".to_owned();
        self.out.emit(Event::Disconnected { reason, code: None, retry_in: Some(Duration::ZERO) });
        self.out.dial();
    }

    fn hang_up(&mut self, reason: &str) {
        self.out.hang_up();
        let lost = Lost { code: None, reason: reason.to_owned(), refused: false };
        self.handle_lost(self.out.now, lost);
    }

    fn end_connection(&mut self) {
        if let ConnectionPhase::Ready { since, .. } = self.phase
            && since + limits::STABLE_AFTER <= self.out.now
            && !planted(Planted::SdkFailuresKept)
        {
            self.failures = 0;
        }
        for conversation in self.sessions.values_mut() {
            conversation.handle_lost();
        }
    }

    // --- routing to and from sessions ---

    fn route(&mut self, frame: &IncomingMessage) {
        // A run id begins with its session id, so text messages need no `session_id`.
        let of_run = || frame.text("run_id")?.split('.').next();
        let session = frame.text("session_id").or_else(of_run).unwrap_or_default();
        if let Some(conversation) = self.sessions.get_mut(session) {
            conversation.handle(frame, &mut self.out);
        }
    }

    fn route_error(&mut self, frame: &IncomingMessage) {
        let request_id = frame.text("request_id");
        let session = frame.text("session_id").or_else(|| frame.text("run_id")?.split('.').next());
        let requester = request_id
            .and_then(|id| self.sessions.iter().find(|(_, it)| it.has_request(id)).map(|(session, _)| session.clone()));
        let session = requester.or_else(|| session.map(str::to_owned)).unwrap_or_default();
        match self.sessions.get_mut(&session) {
            Some(conversation) => conversation.handle(frame, &mut self.out),
            None => self.out.emit(Event::Error(Box::new(failure_of(frame)))),
        }
    }

    fn send_due(&mut self) {
        if matches!(self.phase, ConnectionPhase::Ready { .. }) {
            for conversation in self.sessions.values_mut() {
                conversation.send_due(&mut self.out);
            }
        }
    }
}

mod silent;
#[cfg(test)]
mod tests;
