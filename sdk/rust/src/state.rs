//! The client's brain: no sockets, no clock, no tasks. It is told what happened and when, and says
//! what to do; whoever has a socket can drive it.
use crate::ask::{AskKind, Decision};
use crate::backoff::{Backoff, Chance};
use crate::conversation::{Attach, Conversation, is_session_id};
use crate::error::ClientError;
use crate::event::{Bookmark, Event};
use crate::frame::Frame;
use crate::fx::{Fx, Lost, Output};
use crate::hello::Hello;
use crate::invoke::{Invoke, Open, Subscribe};
use crate::limits;
use crate::members::MemberChange;
use crate::options::Options;
use crate::planted::{Planted, planted};
use crate::refuse::failure_of;
use crate::silence::Silence;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Waiting { until: Duration },
    Dialing,
    Greeting { until: Duration },
    Ready { since: Duration, leave: Option<Duration> },
    Over,
}

/// The client as a state machine. Times are durations since some fixed moment and never go back;
/// drain [`ClientState::poll_output`] after every call.
#[derive(Clone, Debug)]
pub struct ClientState {
    hello: Hello,
    /// The token that was shown on this connection is not the latest.
    is_stale: bool,
    backoff: Backoff,
    chance: Chance,
    /// The first failure is final, as long as there has been no `welcome`.
    impatient: bool,
    phase: Phase,
    failures: u32,
    silence: Silence,
    message_bytes_max: usize,
    conversations: BTreeMap<String, Conversation>,
    fx: Fx,
}

impl ClientState {
    /// A client that dials at once. The same seed and the same calls give the same outputs; the
    /// seed also names its requests, so no two clients may have the same.
    pub fn new(options: &Options, seed: u64, impatient: bool) -> Self {
        Self {
            hello: Hello::of(options),
            is_stale: false,
            backoff: options.backoff,
            chance: Chance::from_seed(seed),
            impatient,
            phase: Phase::Dialing,
            failures: 0,
            silence: Silence::new(options.is_quic()),
            message_bytes_max: limits::MESSAGE_BYTES_MAX,
            conversations: BTreeMap::new(),
            fx: Fx::new(seed),
        }
    }

    /// Drains what it wants done; `None` means quiet until the next `handle_*` or request.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.fx.poll()
    }

    /// When it next wants [`ClientState::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.phase {
            Phase::Waiting { until } | Phase::Greeting { until } => Some(until),
            Phase::Dialing | Phase::Over => None,
            Phase::Ready { leave, .. } => {
                let due = self.conversations.values().filter_map(Conversation::deadline).min();
                [leave, due, Some(self.silence.deadline(self.is_waiting()))].into_iter().flatten().min()
            }
        }
    }

    /// Whether it has ended for good.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    // --- what happens ---

    /// The connection asked for is open.
    pub fn handle_open(&mut self, now: Duration) {
        self.set_now(now);
        self.silence.begin(now);
        self.phase = Phase::Greeting { until: now + limits::WELCOME_TIMEOUT };
        self.is_stale = false;
        let hello = self.hello_with_resume();
        self.fx.send(hello);
    }

    /// Something came, whatever it was.
    pub fn handle_bytes(&mut self, now: Duration) {
        self.set_now(now);
        if self.silence.handle_bytes(now) {
            self.fx.drop_spare();
        }
    }

    /// A text message came. What is not a message of the protocol is ignored.
    pub fn handle_text(&mut self, now: Duration, text: &str) {
        self.handle_bytes(now);
        let Some(frame) = Frame::parse(text) else { return };
        self.silence.handle_message(frame.kind() == "pong");
        match frame.kind() {
            "welcome" => self.handle_welcome(&frame),
            "go_away" => self.handle_go_away(&frame),
            "error" => self.route_error(&frame),
            "pong" | "refreshed" => {}
            _ => self.route(&frame),
        }
        self.pump();
    }

    /// Whether this is the end of a run of whose text not all has come: streams of QUIC are in no order among
    /// each other, so what is missing may still be on its way, and the end is better told after it.
    pub fn lacks_text(&self, text: &str) -> bool {
        // Most messages are no ends; looking is cheaper than reading.
        let Some(frame) = text.contains("\"done\"").then(|| Frame::parse(text)).flatten() else {
            return false;
        };
        let (Some(run), Some(session)) = (frame.text("run_id"), frame.text("session_id")) else {
            return false;
        };
        let conversation = self.conversations.get(session);
        frame.kind() == "done" && conversation.is_some_and(|it| it.lacks_text(run, &frame))
    }

    /// The connection is gone, or could not be had.
    pub fn handle_lost(&mut self, now: Duration, lost: Lost) {
        self.set_now(now);
        let never = self.impatient && !matches!(self.phase, Phase::Ready { .. });
        let is_final =
            lost.code.is_some_and(|code| (4400..4500).contains(&code) && code != 4408 && code != 4429);
        self.end_connection();
        let retry_in = if is_final || lost.refused || never {
            self.phase = Phase::Over;
            None
        } else {
            let floor = if lost.code == Some(4429) && !planted(Planted::SdkHurriesBack) {
                limits::BACKOFF_RATE_LIMITED
            } else {
                Duration::ZERO
            };
            let wait = self.backoff.wait(self.failures, &mut self.chance).max(floor);
            self.failures = self.failures.saturating_add(1);
            self.phase = Phase::Waiting { until: now + wait };
            Some(wait)
        };
        self.fx.tell(Event::Disconnected { reason: lost.reason, code: lost.code, retry_in });
    }

    /// Time has passed. A call before the deadline does nothing.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.set_now(now);
        match self.phase {
            Phase::Waiting { until } if until <= now => {
                self.phase = Phase::Dialing;
                self.fx.dial();
            }
            Phase::Greeting { until } if until <= now => self.hang_up("the gateway says no welcome"),
            Phase::Ready { leave: Some(leave), .. } if leave <= now => self.go_elsewhere(),
            Phase::Ready { .. } => self.handle_silence(),
            Phase::Waiting { .. } | Phase::Greeting { .. } | Phase::Dialing | Phase::Over => {}
        }
    }

    // --- what the application asks ---

    /// Shows this token from now on: on the connection that stands, and on those that follow.
    pub fn refresh(&mut self, now: Duration, token: String) -> Result<(), ClientError> {
        self.set_now(now);
        let refresh = self.hello.refresh(token);
        match self.phase {
            Phase::Ready { .. } => {
                self.fx.send(refresh.to_string());
                // Another connection that is tried was shown the one before.
                self.is_stale = self.silence.is_spared();
            }
            // The one before has been shown, and nothing else may be said yet.
            Phase::Greeting { .. } => self.is_stale = !planted(Planted::SdkTokenStale),
            Phase::Waiting { .. } | Phase::Dialing => {}
            Phase::Over => return Err(ClientError::Closed),
        }
        Ok(())
    }

    /// Asks to see a session's output.
    pub fn subscribe(&mut self, now: Duration, session: &str, wish: Subscribe) -> Result<(), ClientError> {
        self.with(now, session, |conversation, fx| {
            conversation.subscribe(wish, fx.now);
            Ok(())
        })
    }

    /// Says something; it is said again until its turn has ended.
    pub fn invoke(&mut self, now: Duration, session: &str, invoke: Invoke) -> Result<(), ClientError> {
        let bytes_max = self.message_bytes_max;
        self.with(now, session, |conversation, _| conversation.invoke(invoke, bytes_max))
    }

    /// Cancels a run, or with none whatever is in flight.
    pub fn cancel(&mut self, now: Duration, session: &str, run: Option<String>) -> Result<(), ClientError> {
        self.with(now, session, |conversation, fx| conversation.ask(AskKind::Cancel { run }, fx))
    }

    /// Creates a session, or opens it again.
    pub fn open(&mut self, now: Duration, session: &str, open: Open) -> Result<(), ClientError> {
        self.with(now, session, |conversation, fx| conversation.ask(AskKind::Open(open), fx))
    }

    /// Closes a session.
    pub fn close(&mut self, now: Duration, session: &str) -> Result<(), ClientError> {
        self.with(now, session, |conversation, fx| conversation.ask(AskKind::Close, fx))
    }

    /// Decides on a handover.
    pub fn decide(&mut self, now: Duration, session: &str, what: Decision) -> Result<(), ClientError> {
        self.with(now, session, |conversation, fx| conversation.ask(AskKind::Decide(what), fx))
    }

    /// Changes who is a member of a session, or which of them is active.
    pub fn change_members(
        &mut self,
        now: Duration,
        session: &str,
        change: MemberChange,
    ) -> Result<(), ClientError> {
        self.with(now, session, |conversation, fx| conversation.ask(AskKind::Members(change), fx))
    }

    /// Tells a bookmark, between what it holds and what it does not.
    pub fn bookmark(&mut self, now: Duration, session: &str) -> Result<(), ClientError> {
        self.with(now, session, |conversation, fx| {
            fx.tell(Event::Bookmark(Box::new(conversation.bookmark())));
            Ok(())
        })
    }

    /// Goes on from a bookmark. A session this client already knows keeps what it knows.
    pub fn resume(&mut self, now: Duration, mark: Bookmark) -> Result<(), ClientError> {
        if self.conversations.contains_key(&mark.session_id) {
            return Ok(());
        }
        let session = mark.session_id.clone();
        self.with(now, &session, |conversation, _| {
            conversation.restore(mark);
            Ok(())
        })
    }

    /// Forgets a session, its unfinished inputs too; what the gateway has accepted runs on.
    pub fn leave(&mut self, now: Duration, session: &str) {
        self.set_now(now);
        if self.conversations.remove(session).is_some() && matches!(self.phase, Phase::Ready { .. }) {
            self.fx.send(json!({ "type": "unsubscribe", "ts": 0, "session_id": session }).to_string());
        }
    }

    fn with<F>(&mut self, now: Duration, session: &str, ask: F) -> Result<(), ClientError>
    where
        F: FnOnce(&mut Conversation, &mut Fx) -> Result<(), ClientError>,
    {
        self.set_now(now);
        if self.is_over() {
            return Err(ClientError::Closed);
        }
        if !is_session_id(session) {
            return Err(ClientError::BadName { what: "session id" });
        }
        if !self.conversations.contains_key(session) {
            if self.conversations.len() >= limits::SESSIONS_MAX {
                return Err(ClientError::TooMany { what: "sessions", max: limits::SESSIONS_MAX });
            }
            self.conversations.insert(session.to_owned(), Conversation::new(session));
        }
        if let Some(conversation) = self.conversations.get_mut(session) {
            ask(conversation, &mut self.fx)?;
        }
        self.pump();
        Ok(())
    }

    // --- the connection ---

    fn set_now(&mut self, now: Duration) {
        self.fx.now = self.fx.now.max(now);
    }

    /// `hello`, with as many sessions to resume as fit; the others subscribe after `welcome`.
    fn hello_with_resume(&mut self) -> String {
        let mut hello = self.hello.message();
        let mut room =
            limits::HELLO_BYTES_MAX.saturating_sub(hello.to_string().len() + ",\"resume\":[]".len());
        let mut resume = Vec::new();
        for conversation in self.conversations.values_mut().filter(|session| session.wants_resume()) {
            let request_id = self.fx.request_id();
            let body = conversation.subscribe_body(&request_id);
            let bytes = body.to_string().len() + 1;
            if bytes <= room {
                room -= if planted(Planted::SdkHelloOverfull) { 0 } else { bytes };
                resume.push(body);
                conversation.attach = Attach::Asking(request_id);
            }
        }
        if !resume.is_empty() {
            hello["resume"] = resume.into();
        }
        hello.to_string()
    }

    fn handle_welcome(&mut self, frame: &Frame) {
        if !matches!(self.phase, Phase::Greeting { .. }) {
            return;
        }
        self.phase = Phase::Ready { since: self.fx.now, leave: None };
        self.impatient = false;
        let limit = frame.get("limits").and_then(|limits| limits.get("max_message_bytes")?.as_u64());
        if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) {
            self.message_bytes_max = limit;
        }
        let word = |key| frame.string(key).unwrap_or_default();
        let (connection_id, node_id) = (word("connection_id"), word("node_id"));
        self.fx.tell(Event::Connected { connection_id, node_id });
        if std::mem::take(&mut self.is_stale) {
            self.fx.send(self.hello.again().to_string());
        }
    }

    /// The node leaves: come back within the time it names, spread so that not all come at once.
    fn handle_go_away(&mut self, frame: &Frame) {
        let span = |key| Duration::from_millis(frame.number(key).unwrap_or(0));
        let spread = span("jitter_ms").min(span("reconnect_within_ms"));
        let wait = if planted(Planted::SdkLeavesAtOnce) { Duration::ZERO } else { self.chance.below(spread) };
        if let Phase::Ready { leave, .. } = &mut self.phase
            && leave.is_none()
        {
            *leave = Some(self.fx.now + wait);
        }
    }

    fn go_elsewhere(&mut self) {
        self.fx.hang_up();
        self.end_connection();
        self.phase = Phase::Dialing;
        let reason = "the node goes away".to_owned();
        self.fx.tell(Event::Disconnected { reason, code: None, retry_in: Some(Duration::ZERO) });
        self.fx.dial();
    }

    fn hang_up(&mut self, reason: &str) {
        self.fx.hang_up();
        let lost = Lost { code: None, reason: reason.to_owned(), refused: false };
        self.handle_lost(self.fx.now, lost);
    }

    fn end_connection(&mut self) {
        if let Phase::Ready { since, .. } = self.phase
            && since + limits::STABLE_AFTER <= self.fx.now
            && !planted(Planted::SdkFailuresKept)
        {
            self.failures = 0;
        }
        for conversation in self.conversations.values_mut() {
            conversation.lost();
        }
    }

    // --- to and from the sessions ---

    fn route(&mut self, frame: &Frame) {
        // A run is named after its session, so text needs no session_id.
        let of_run = || frame.text("run_id")?.split('.').next();
        let session = frame.text("session_id").or_else(of_run).unwrap_or_default();
        if let Some(conversation) = self.conversations.get_mut(session) {
            conversation.handle(frame, &mut self.fx);
        }
    }

    fn route_error(&mut self, frame: &Frame) {
        let asked = frame.text("request_id");
        let session = frame.text("session_id").or_else(|| frame.text("run_id")?.split('.').next());
        let asker = asked.and_then(|id| {
            self.conversations.iter().find(|(_, it)| it.asked(id)).map(|(session, _)| session.clone())
        });
        let session = asker.or_else(|| session.map(str::to_owned)).unwrap_or_default();
        match self.conversations.get_mut(&session) {
            Some(conversation) => conversation.handle(frame, &mut self.fx),
            None => self.fx.tell(Event::Error(Box::new(failure_of(frame)))),
        }
    }

    fn pump(&mut self) {
        if matches!(self.phase, Phase::Ready { .. }) {
            for conversation in self.conversations.values_mut() {
                conversation.pump(&mut self.fx);
            }
        }
    }
}

mod silent;
#[cfg(test)]
mod tests;
