//! The script language of the connection tests, and the fixture that plays scripts.
use serde_json::{Value, json};
use std::time::Duration;
use turnway_core::id::{Epoch, EventId, NodeId, Principal, RequestId, RunId, Seq, SessionId, TenantId, UserId};
use turnway_core::machine::Machine;
use turnway_core::private::Private;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::protocol::input::ControlRequest;
use turnway_core::protocol::refusal::Refusal;
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::connection::RefreshOutcome;
use turnway_node::link::{
    Input, Link, LinkConfig, LinkEvent, Output, ServiceRefusal, SideStreamPace, SideStreamProgress,
};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{CommandReply, Notification};

pub(crate) fn config() -> LinkConfig {
    LinkConfig {
        node: NodeId(1),
        connection_id: "c1".to_owned(),
        resume_window_ms: 0,
        durability: "fsync",
        heartbeat_permille: 1000,
        side_streams: false,
    }
}

pub(crate) fn session() -> SessionId {
    SessionId::parse("s1").expect("a name")
}

pub(crate) fn hello(extra: Value) -> Input {
    let mut message = json!({"type": "hello", "user_id": "ann", "api_key": "canary-key"});
    for (key, value) in extra.as_object().expect("an object") {
        message[key] = value.clone();
    }
    Input::Text(message.to_string())
}

pub(crate) fn admitted(expires: Option<Millis>) -> Input {
    let tenant = TenantId::default_tenant();
    let user = UserId::parse("ann").expect("a name");
    let principal = Principal { tenant, user, operator: false, writes: true };
    Input::Admitted { principal, expires }
}

fn refreshed(renewal: RefreshOutcome) -> Input {
    Input::Refreshed { request_id: RequestId::parse("r1").ok(), renewal }
}

pub(crate) fn text_note(bytes: usize) -> Input {
    let run_id = RunId::parse("s1.abcdefghijklmnopqrstuvwxyz").expect("a run");
    let text = Private("x".repeat(bytes).into());
    let chunk = TextChunk { run_id, attempt: 1, offset: 0, kind: TextKind::Text, text };
    Input::Note(Notification::Chunk { session: session(), chunk })
}

/// Returns a fact of a session without a run.
pub(crate) fn fact(session: SessionId, seq: u64, fact: Fact) -> Notification {
    let entry = Entry {
        id: EventId::default(),
        time: Millis(1),
        source: "turnway".into(),
        correlation_id: "c".into(),
        causation_id: None,
        traceparent: None,
        run_id: None,
        fact,
    };
    Notification::Fact { session, seq: Seq(seq), epoch: Epoch(1), entry: entry.into(), requested: false }
}

/// Returns a checkpoint, which is not written to the peer but counts as delivered bytes.
pub(crate) fn silent_note(bytes: usize) -> Input {
    let text = Private("x".repeat(bytes));
    Input::Note(fact(session(), 1, Fact::Run(RunFact::TextDelta { attempt: 1, offset: 0, text, mark: None })))
}

pub(crate) fn refused_note() -> Input {
    let request_id = RequestId::parse("r1").ok();
    Input::Note(Notification::Reply(CommandReply::Refused {
        request_id,
        session: None,
        run_id: None,
        refusal: Refusal::not_found(),
    }))
}

pub(crate) fn go_away() -> Input {
    let within = Duration::from_secs(10);
    let jitter = Duration::from_secs(3);
    Input::Note(Notification::GoAway { reason: "drain", within, jitter })
}

/// Returns the input for one step of a script.
pub(crate) fn input(word: &str) -> Input {
    let (verb, rest) = word.split_once(' ').unwrap_or((word, ""));
    match verb {
        "hello" => hello(json!({})),
        "hello-as" => hello(json!({"role": rest})),
        "hello-resuming" => {
            let count: usize = rest.parse().expect("a number");
            hello(json!({"resume": vec![json!({"session_id": "s1", "after_seq": 3}); count]}))
        }
        "big-hello" => hello(json!({"client_meta": "x".repeat(4096)})),
        "admit" => admitted(None),
        // The fixture's store clock starts at 1,000 ms.
        "admit-for" => admitted(Some(Millis(1_000 + rest.parse::<u64>().expect("milliseconds")))),
        "refresh" => Input::Text(json!({"type": "refresh", "token": "canary-token", "request_id": "r1"}).to_string()),
        "refreshed-for" => refreshed(RefreshOutcome::Until(Millis(1_000 + rest.parse::<u64>().expect("milliseconds")))),
        "nothing-to-refresh" => refreshed(RefreshOutcome::NotRequired),
        "not-refreshed" => refreshed(RefreshOutcome::Denied),
        "deny" => Input::Denied,
        "forbid" => Input::NotServing(ServiceRefusal::Forbidden),
        "binary" => Input::Binary,
        "too-large" => Input::TooLarge,
        "alive" => Input::SignOfLife,
        "flush" => Input::Flushed,
        "ping" => Input::Text(json!({"type": "ping", "request_id": "r1"}).to_string()),
        "invoke" => Input::Text(json!({"type": "agent_invoke", "message": {"content": "hi"}}).to_string()),
        "padded" => {
            let padding = "x".repeat(rest.parse().expect("a number"));
            Input::Text(json!({"type": "ping", "x": padding}).to_string())
        }
        "type-open" => Input::Text(json!({"type": "session_open", "session_id": rest, "request_id": "r1"}).to_string()),
        "type" => Input::Text(json!({"type": rest, "request_id": "r1"}).to_string()),
        "say" => Input::Text(rest.to_owned()),
        "text" => text_note(rest.parse().expect("a number")),
        "silent" => silent_note(rest.parse().expect("a number")),
        "refused" => refused_note(),
        "go-away" => go_away(),
        "flows" | "fills" | "creeps" | "stands" => {
            let written = rest.parse().unwrap_or(0);
            let pace = match verb {
                "flows" => SideStreamPace::Draining,
                "fills" => SideStreamPace::Filling,
                "creeps" => SideStreamPace::Slow,
                _ => SideStreamPace::Stalled,
            };
            Input::SideStreamProgress(SideStreamProgress { written, pace })
        }
        other => panic!("no such word: {other}"),
    }
}

/// Returns a short description of an output.
pub(crate) fn describe(output: &Output) -> String {
    match output {
        Output::Event(LinkEvent::Hello(_)) => "asks the door".to_owned(),
        Output::Refresh { .. } => "asks again".to_owned(),
        Output::Event(LinkEvent::Command(command)) => match command {
            LinkCommand::Open { .. } => "open".to_owned(),
            LinkCommand::Control { request: ControlRequest::Close, .. } => "close".to_owned(),
            LinkCommand::Subscribe(_) => "subscribe".to_owned(),
            LinkCommand::Unsubscribe { .. } => "unsubscribe".to_owned(),
            LinkCommand::Invoke(_) => "invoke".to_owned(),
            LinkCommand::Cancel { .. } => "cancel".to_owned(),
            LinkCommand::Control { request: ControlRequest::Handover { .. }, .. } => "decide".to_owned(),
            LinkCommand::Control { .. } => "members".to_owned(),
            LinkCommand::GetSnapshot { .. } => "look".to_owned(),
            LinkCommand::ListDeliveries { .. } => "deliveries".to_owned(),
            LinkCommand::Delete { .. } => "delete".to_owned(),
            LinkCommand::List { .. } => "list".to_owned(),
            LinkCommand::FindRun { .. } => "find".to_owned(),
            LinkCommand::Blob { .. } => "blob".to_owned(),
            LinkCommand::Binding { .. } => "binding".to_owned(),
            LinkCommand::BindChild(_) => "child".to_owned(),
            LinkCommand::Account { .. } => "account".to_owned(),
            LinkCommand::Send(_) => "send".to_owned(),
            LinkCommand::Inbound(_) => "inbound".to_owned(),
            LinkCommand::PrepareFiles(_) => "prepare files".to_owned(),
            LinkCommand::Delivered(_) => "delivered".to_owned(),
            LinkCommand::Capabilities(_) => "capabilities".to_owned(),
        },
        Output::Write(text) => {
            let message: Value = serde_json::from_str(text).expect("JSON");
            assert!(message["ts"].is_u64(), "{text}");
            let kind = message["type"].as_str().expect("a type");
            let echo = message["request_id"].as_str().map(|id| format!(" {id}")).unwrap_or_default();
            let code = message["code"].as_str().map(|code| format!(" {code}")).unwrap_or_default();
            format!("{kind}{code}{echo}")
        }
        Output::Event(LinkEvent::CommandDeferred) => "waits".to_owned(),
        Output::Event(LinkEvent::WriteSideStream(aside)) => format!("aside {} {}", aside.attempt, aside.text),
        Output::Event(LinkEvent::EndSideStreams { run_id, .. }) => format!("no more aside, {run_id:?}"),
        Output::Ping => "PING".to_owned(),
        Output::Event(LinkEvent::Written(weight)) => format!("written {weight}"),
        Output::Close { code, .. } => format!("CLOSE {code}"),
    }
}

/// A link with its clock and its outputs.
pub(crate) struct Fixture {
    pub(crate) link: Link,
    pub(crate) now: Now,
    pub(crate) outputs: Vec<String>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let now = Now { mono: Mono(Duration::from_secs(500)), store: Millis(1_000) };
        Self { link: Link::new(now, config()), now, outputs: Vec::new() }
    }
    pub(crate) fn drain(&mut self) {
        while let Some(output) = self.link.poll_output() {
            self.outputs.push(describe(&output));
        }
    }
    pub(crate) fn pass(&mut self, wait: Duration) {
        let end = self.now.mono + wait;
        while let Some(next) = self.link.poll_timeout().filter(|next| next.at <= end) {
            self.reach(next.at);
            self.link.handle_timeout(self.now);
            self.drain();
        }
        self.reach(end);
    }
    /// Advances both clocks together.
    fn reach(&mut self, at: Mono) {
        self.now = Now { mono: at, store: self.now.store.after(at - self.now.mono) };
    }
    pub(crate) fn play(&mut self, script: &str) {
        for word in script.split("; ") {
            let (word, times) =
                word.split_once(" *").map_or((word, 1), |(word, times)| (word, times.parse().expect("how many times")));
            for _ in 0..times {
                if let Some(ms) = word.strip_prefix('+') {
                    self.pass(Duration::from_millis(ms.parse().expect("milliseconds")));
                } else {
                    self.link.handle_input(self.now, input(word));
                    self.drain();
                }
            }
        }
    }
}

/// Plays a script and compares all outputs.
pub(crate) fn check(script: &str, expected: &str) {
    let mut stage = Fixture::new();
    stage.play(script);
    assert_eq!(stage.outputs.join("; "), expected, "after: {script}");
}

/// Plays a script on an admitted link whose welcome was flushed, and compares all outputs.
pub(crate) fn check_open(script: &str, expected: &str) {
    let mut stage = Fixture::new();
    stage.play("hello; admit; flush");
    stage.outputs.clear();
    stage.play(script);
    assert_eq!(stage.outputs.join("; "), expected, "after: {script}");
}
