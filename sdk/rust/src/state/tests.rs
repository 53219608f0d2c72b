//! Scripted tests of the state machine: inputs and expected outputs.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at some events only")]
use super::*;
use crate::event::{LogCursor, Status};
use crate::invoke::Start;
use serde_json::Value;

mod members;
mod model;
mod reconnect;
mod requests;
mod runs;
mod silent;

/// A client whose outputs are converted to short lines.
pub(super) struct Rig {
    pub(super) state: ClientState,
    pub(super) now: Duration,
    /// All delivered events.
    pub(super) events: Vec<Event>,
    /// Messages sent since the last clearing.
    pub(super) sent: Vec<Value>,
}

impl Rig {
    /// Creates a connected client without requests.
    pub(super) fn new() -> Self {
        let mut rig = Self::offline();
        rig.connect();
        rig.sent.clear();
        rig.events.clear();
        rig
    }
    pub(super) fn offline() -> Self {
        Self::to("ws://test")
    }
    pub(super) fn to(url: &str) -> Self {
        let state = ClientState::new(&Options::new(url).user("ann"), 7, false);
        let mut rig = Self { state, now: Duration::from_secs(1), events: Vec::new(), sent: Vec::new() };
        rig.drain();
        rig
    }
    pub(super) fn drain(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(output) = self.state.poll_output() {
            match output {
                Output::Dial => lines.push("dial".to_owned()),
                Output::Hangup => lines.push("hangup".to_owned()),
                Output::DialSpare(hello) => lines.push(format!("spare {hello}")),
                Output::DropSpare => lines.push("drop spare".to_owned()),
                Output::Send(text) => {
                    let message: Value = serde_json::from_str(&text).expect("we send JSON");
                    lines.push(format!("> {}", wire(&message)));
                    self.sent.push(message);
                }
                Output::Event(event) => {
                    lines.push(told(&event));
                    self.events.push(event);
                }
            }
        }
        lines
    }
    pub(super) fn connect(&mut self) -> Vec<String> {
        self.state.handle_open(self.now);
        let mut lines = self.drain();
        lines.extend(self.hear(json!({"type": "welcome", "connection_id": "c", "node_id": "n"})));
        lines
    }
    pub(super) fn lose(&mut self) -> Vec<String> {
        self.state.handle_lost(self.now, Lost { reason: "cut".to_owned(), ..Lost::default() });
        self.drain()
    }
    /// Loses the connection and opens the next one.
    pub(super) fn reconnect(&mut self) -> Vec<String> {
        self.lose();
        self.wait(Duration::from_secs(60));
        self.connect()
    }
    /// Advances time from deadline to deadline.
    pub(super) fn wait(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        let mut lines = Vec::new();
        while let Some(at) = self.state.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.state.handle_timeout(self.now);
            lines.extend(self.drain());
            let next = self.state.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "no progress: {next:?} at {:?}", self.now);
        }
        self.now = end;
        lines
    }
    pub(super) fn hear(&mut self, message: Value) -> Vec<String> {
        self.state.handle_text(self.now, &message.to_string());
        self.drain()
    }
    /// Receives a message of session `s`.
    pub(super) fn s(&mut self, mut message: Value) -> Vec<String> {
        message["session_id"] = "s".into();
        self.hear(message)
    }
    pub(super) fn invoke(&mut self, id: &str) -> Vec<String> {
        let invoke = UserInput::text("hi").message_id(id);
        self.state.invoke(self.now, "s", invoke).expect("taken");
        self.drain()
    }
    pub(super) fn subscribe(&mut self, start: Start) {
        self.state.subscribe(self.now, "s", Subscribe::from(start)).expect("taken");
        self.drain();
    }
    /// Answers the last `subscribe`, standalone or in `hello`.
    pub(super) fn subscribed(&mut self, seq: u64, more: Value) -> Vec<String> {
        let id = self.last_subscribe()["request_id"].clone();
        let mut answer = json!({"type": "subscribed", "request_id": id, "seq": seq, "epoch": 1,
            "snapshot": {"session_id": "s", "state": "open", "runs": [], "seq": seq, "epoch": 1}});
        if let (Some(answer), Value::Object(more)) = (answer.as_object_mut(), more) {
            answer.extend(more);
        }
        self.s(answer)
    }
    pub(super) fn last_subscribe(&self) -> Value {
        let alone = |message: &Value| (message["type"] == "subscribe").then(|| message.clone());
        let resumed = |message: &Value| message["resume"].as_array()?.first().cloned();
        let found = self.sent.iter().rev().find_map(|message| alone(message).or_else(|| resumed(message)));
        found.expect("a subscribe")
    }
    /// Returns the text delivered for a run since its last restart.
    pub(super) fn text(&self, id: &str) -> String {
        let mut whole = String::new();
        for event in &self.events {
            match event {
                Event::Text { run, text, .. } if run == id => whole.push_str(text),
                Event::Restarted { run, .. } if run == id => whole.clear(),
                Event::Reset { .. } => whole.clear(),
                _ => {}
            }
        }
        whole
    }
}

fn wire(message: &Value) -> String {
    let word = |key: &str| message[key].as_str().unwrap_or("?").to_owned();
    match word("type").as_str() {
        "subscribe" => {
            let runs = message["runs"]
                .as_object()
                .map(|runs| runs.iter().map(|(id, at)| format!(" {id}@{}+{}", at["attempt"], at["offset"])).collect());
            let runs: String = runs.unwrap_or_default();
            format!("subscribe after {}.{}{runs}", message["after_seq"], message["after_epoch"])
        }
        "agent_invoke" => format!("invoke {}", word("request_id")),
        "hello" => {
            let resume = message["resume"].as_array().map(|list| list.iter().map(wire).collect::<Vec<_>>());
            format!("hello [{}]", resume.unwrap_or_default().join("; "))
        }
        other => other.to_owned(),
    }
}

fn told(event: &Event) -> String {
    match event {
        Event::Connected { .. } => "connected".to_owned(),
        Event::Disconnected { code, retry_in, .. } => {
            format!("disconnected {} {}", code.unwrap_or(0), if retry_in.is_some() { "retry" } else { "final" })
        }
        Event::Subscribed { .. } => "subscribed".to_owned(),
        Event::CaughtUp { seq, .. } => format!("caught up {seq}"),
        Event::Accepted(accepted) => format!("accepted {}", accepted.message_id),
        Event::Message(message) => format!("message {}", message.text),
        Event::RunStarted { run, attempt, .. } => format!("started {run}@{attempt}"),
        Event::Text { text, .. } => format!("text {text}"),
        Event::Reasoning { text, .. } => format!("reasoning {text}"),
        Event::Restarted { attempt, .. } => format!("restarted @{attempt}"),
        Event::State { state, .. } => format!("state {state}"),
        Event::Note(note) => format!("note {}", note.name),
        Event::Done(done) => {
            let code = done.error.as_ref().map(|error| format!(" {}", error.code)).unwrap_or_default();
            let short = if done.complete { "" } else { " incomplete" };
            format!("done {} {}{code}{short}", done.status.as_str(), done.text)
        }
        Event::Error(failure) => format!("error {} {}", failure.request_type, failure.code),
        Event::Reset { reason, .. } => format!("reset {reason}"),
        Event::Opened { .. } => "opened".to_owned(),
        Event::Closed { .. } => "closed".to_owned(),
        Event::Members(members) => {
            format!("members {} active {}", members.agents.join(","), members.active_agent.as_deref().unwrap_or("-"))
        }
        Event::Bookmark(_) => "bookmark".to_owned(),
        Event::Fact { position, .. } => format!("fact {}", position.seq),
    }
}

pub(super) fn delta(offset: usize, text: &str) -> Value {
    json!({"type": "delta", "run_id": "s.r", "attempt": 1, "offset": offset, "text": text})
}

pub(super) fn started(seq: u64) -> Value {
    json!({"type": "run_started", "run_id": "s.r", "agent_id": "echo", "attempt": 1, "seq": seq, "epoch": 1})
}

pub(super) fn done(seq: u64, bytes: usize) -> Value {
    json!({"type": "done", "run_id": "s.r", "status": "completed", "stop_reason": "end_turn",
        "attempt": 1, "text_bytes": bytes, "seq": seq, "epoch": 1})
}

/// A complete turn.
#[test]
fn complete_turn_yields_its_events() {
    let mut rig = Rig::new();
    assert_eq!(rig.invoke("m"), ["> invoke m"]);
    let accepted = json!({"type": "turn_accepted", "run_id": "s.r", "message_id": "m", "duplicate": false});
    assert_eq!(rig.s(accepted.clone()), ["accepted m"]);
    let message = json!({"type": "message", "role": "user", "content": [{"type": "text", "text": "hi"}],
        "message_id": "m", "run_id": "s.r", "seq": 2, "epoch": 1});
    assert_eq!(rig.s(message), ["message hi"]);
    assert_eq!(rig.s(started(3)), ["started s.r@1"]);
    // A text message has only the run id, which names the session.
    assert_eq!(rig.hear(delta(0, "hé")), ["text hé"]);
    assert_eq!(rig.s(accepted), Vec::<String>::new(), "told once");
    assert_eq!(
        rig.s(json!({"type": "delta", "kind": "reasoning", "run_id": "s.r", "attempt": 1,
        "offset": 0, "text": "hm"})),
        ["reasoning hm"]
    );
    assert_eq!(rig.hear(delta(3, "llo")), ["text llo"]);
    assert_eq!(rig.s(json!({"type": "wonder", "shade": 7})), ["note wonder"]);
    assert_eq!(rig.hear(json!({"type": "wonder"})), Vec::<String>::new());
    assert_eq!(rig.s(done(9, 6)), ["done completed héllo"]);
    let Some(Event::Done(last)) = rig.events.last() else { panic!("done") };
    assert_eq!((last.message_id.as_deref(), last.agent.as_deref()), (Some("m"), Some("echo")));
    assert_eq!(rig.hear(delta(6, "late")), Vec::<String>::new());
    // Nothing is open, so nothing is repeated; the cursor is at the end of the log.
    assert_eq!(rig.reconnect(), ["> hello [subscribe after 9.1]", "connected"]);
}

/// For every amount of text received before the loss, and every position from which the gateway continues.
#[test]
fn text_resumes_at_every_byte() {
    let whole = "aé日🙂 z\u{301}ß";
    let bounds: Vec<usize> = (0..=whole.len()).filter(|n| whole.is_char_boundary(*n)).collect();
    for have in &bounds {
        for from in bounds.iter().filter(|from| *from <= have) {
            let mut rig = Rig::new();
            rig.subscribe(Start::Beginning);
            rig.subscribed(1, json!({}));
            rig.s(started(1));
            rig.hear(delta(0, &whole[..*have]));
            let lines = rig.reconnect();
            assert_eq!(lines[0], format!("> hello [subscribe after 1.1 s.r@1+{have}]"));
            rig.hear(delta(0, "of the old subscription"));
            rig.subscribed(1, json!({}));
            rig.hear(delta(*from, &whole[*from..]));
            assert_eq!(rig.s(done(2, whole.len())), [format!("done completed {whole}")]);
            assert_eq!(rig.text("s.r"), whole);
        }
    }
}

#[test]
fn repeated_text_is_dropped() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    assert_eq!(rig.subscribed(2, json!({})), ["subscribed"]);
    assert_eq!(rig.s(started(1)), ["started s.r@1"]);
    assert_eq!(rig.s(started(1)), Vec::<String>::new());
    rig.hear(delta(0, "ab"));
    assert_eq!(rig.hear(delta(0, "ab")), Vec::<String>::new());
    assert_eq!(rig.hear(delta(1, "bc")), ["text c"]);
    assert_eq!(rig.s(done(2, 3)), ["done completed abc", "caught up 2"]);
    assert_eq!(rig.s(done(2, 3)), Vec::<String>::new());
}

#[test]
fn text_gap_is_requested_again() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(0, json!({}));
    rig.s(started(1));
    rig.hear(delta(0, "ab"));
    assert_eq!(rig.hear(delta(3, "d")), ["> subscribe after 1.1 s.r@1+2"]);
    assert_eq!(rig.hear(delta(4, "e")), Vec::<String>::new(), "of the old subscription");
    rig.subscribed(1, json!({}));
    assert_eq!(rig.hear(delta(2, "cde")), ["text cde"]);
}

#[test]
fn run_end_waits_for_missing_text() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(0, json!({}));
    rig.s(started(1));
    rig.hear(delta(0, "ab"));
    assert_eq!(rig.s(done(2, 4)), ["> subscribe after 1.1 s.r@1+2"]);
    rig.subscribed(2, json!({}));
    rig.hear(delta(2, "cd"));
    assert_eq!(rig.s(done(2, 4)), ["done completed abcd", "caught up 2"]);
}

#[test]
fn missing_text_is_given_up_after_some_attempts() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(0, json!({}));
    for _ in 0..limits::REPAIRS_MAX {
        let lines = [rig.s(done(2, 4)), rig.wait(limits::TEXT_TIMEOUT)].concat();
        assert_eq!(lines.iter().filter(|line| *line != "> ping").count(), 1, "asks again: {lines:?}");
        rig.subscribed(2, json!({}));
    }
    assert_eq!(rig.s(done(2, 4)), ["done completed  incomplete", "caught up 2"]);
}

#[test]
fn text_beyond_the_run_end_is_truncated() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(0, json!({}));
    rig.s(started(1));
    rig.hear(delta(0, "abcdef"));
    assert_eq!(rig.s(done(2, 3)), ["done completed abc"]);
}

#[test]
fn new_attempt_discards_the_text() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(0, json!({}));
    rig.s(started(1));
    rig.hear(delta(0, "first"));
    let again = json!({"type": "event", "name": "RUN_RESTARTED", "run_id": "s.r", "attempt": 2,
        "seq": 2, "epoch": 2});
    assert_eq!(rig.s(again), ["restarted @2"]);
    assert_eq!(rig.hear(delta(5, "late")), Vec::<String>::new());
    let second = json!({"type": "delta", "run_id": "s.r", "attempt": 2, "offset": 0, "text": "2nd"});
    assert_eq!(rig.hear(second), ["text 2nd"]);
    let mut end = done(3, 3);
    end["attempt"] = 2.into();
    assert_eq!(rig.s(end), ["done completed 2nd"]);
}

/// A run's end consists of several messages of which only the last has a position: if the connection is lost in
/// between, all of them are repeated.
#[test]
fn messages_of_one_run_end_are_delivered_together() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(0, json!({}));
    rig.s(started(1));
    let error = json!({"type": "error", "run_id": "s.r", "code": "CANCEL_TIMEOUT", "terminal": false});
    let cancelled = json!({"type": "event", "name": "CANCELED", "run_id": "s.r"});
    assert_eq!(rig.s(error.clone()), Vec::<String>::new());
    assert_eq!(rig.s(cancelled.clone()), Vec::<String>::new());
    rig.reconnect();
    rig.subscribed(2, json!({}));
    rig.s(error);
    rig.s(cancelled);
    let mut end = done(2, 0);
    end["status"] = "cancelled".into();
    assert_eq!(rig.s(end), ["note CANCELED", "done cancelled  CANCEL_TIMEOUT", "caught up 2"]);
    let Some(Event::Done(last)) = rig.events.iter().rev().nth(1) else { panic!("done") };
    assert_eq!(last.status, Status::Cancelled);
}

#[test]
fn subscribed_checkpoints_count_as_text() {
    let mut rig = Rig::new();
    let request = Subscribe::from(Start::Beginning).with_types([">"]).with_facts();
    rig.state.subscribe(rig.now, "s", request).expect("taken");
    rig.drain();
    assert_eq!(rig.last_subscribe()["types"], json!([">"]));
    rig.subscribed(2, json!({}));
    rig.s(started(1));
    let data = json!({"attempt": 1, "offset": 0, "text": "abc"});
    let checkpoint = json!({"type": "event", "name": "agent.stream.delta", "run_id": "s.r", "data": data,
        "seq": 2, "epoch": 1});
    assert_eq!(rig.s(checkpoint), ["fact 2", "text abc", "note agent.stream.delta", "caught up 2"]);
    assert_eq!(rig.hear(delta(0, "abc")), Vec::<String>::new());
}

#[test]
fn bookmark_resumes_in_another_process() {
    let mut rig = Rig::new();
    rig.invoke("m");
    rig.s(json!({"type": "turn_accepted", "run_id": "s.r", "message_id": "m"}));
    rig.s(started(5));
    rig.hear(delta(0, "ab"));
    rig.state.bookmark(rig.now, "s").expect("taken");
    rig.drain();
    let Some(Event::Bookmark(mark)) = rig.events.last() else { panic!("a bookmark") };
    assert_eq!(mark.cursor, Some(LogCursor { seq: 5, epoch: Some(1) }));
    let json = serde_json::to_string(mark).expect("serialises");
    let mut later = Rig::offline();
    later.state.resume(later.now, serde_json::from_str(&json).expect("a bookmark")).expect("taken");
    assert_eq!(later.connect(), ["> hello [subscribe after 5.1 s.r@1+2]", "connected"]);
    assert_eq!(later.subscribed(5, json!({})), ["subscribed", "caught up 5", "> invoke m"]);
    later.hear(delta(2, "cd"));
    later.s(json!({"type": "turn_accepted", "run_id": "s.r", "message_id": "m", "duplicate": true}));
    assert_eq!(later.s(done(6, 4)), ["done completed abcd"]);
}
