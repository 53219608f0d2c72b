//! Order of answers to pipelined requests when the switchboard answers in any order.
use crate::script::{self, Fixture, check_open};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use turnway_core::id::{Epoch, MessageId, RequestId, RunId, Seq, SessionId};
use turnway_core::limits::{ANSWER_ORDER_TIMEOUT, LINK_REQUESTS_MAX};
use turnway_core::machine::Machine;
use turnway_core::protocol::entry::{Fact, SessionFact};
use turnway_core::protocol::input::ControlRequest;
use turnway_core::protocol::refusal::Refusal;
use turnway_core::rng::Rng;
use turnway_node::link::{Input, LinkEvent, Output};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::notification::{
    AcceptedTurn, CommandReply, MembersReply, Notification, SessionStateSnapshot,
};

const RUN: &str = "s1.abcdefghijklmnopqrstuvwxyz";

fn session(name: &str) -> SessionId {
    SessionId::parse(name).expect("a name")
}

fn fact(of: &str, seq: u64, fact: Fact) -> Notification {
    script::fact(session(of), seq, fact)
}

/// Returns a fact that every link receives.
fn notice() -> Fact {
    Fact::Session(SessionFact::Notice { name: "NO_ACTIVE_SPEAKING".to_owned(), request_id: None })
}

fn snapshot(of: &SessionId) -> Box<SessionStateSnapshot> {
    Box::new(SessionStateSnapshot {
        session: of.clone(),
        state: "open",
        active_agent: None,
        agents: Vec::new(),
        runs: Vec::new(),
        handover: None,
        seq: Seq(0),
        epoch: Epoch(1),
    })
}

fn refused(request_id: Option<RequestId>, of: Option<SessionId>) -> Notification {
    Notification::Reply(CommandReply::Refused { request_id, session: of, run_id: None, refusal: Refusal::not_found() })
}

/// Returns the answer to a request, if it has one.
fn answer(command: &LinkCommand) -> Option<Notification> {
    let request_id = command.request_id().cloned();
    Some(match command {
        LinkCommand::Open { session: Some(session), .. } => {
            Notification::Reply(CommandReply::Opened { request_id, snapshot: snapshot(session) })
        }
        LinkCommand::Subscribe(subscribe) => Notification::Reply(CommandReply::Subscribed {
            request_id,
            snapshot: snapshot(&subscribe.session),
            reset: None,
        }),
        LinkCommand::Control { session, request: ControlRequest::Close, .. } => {
            Notification::Reply(CommandReply::Performed {
                kind: "session_closed",
                request_id,
                session: session.clone(),
            })
        }
        LinkCommand::Control { session, request: ControlRequest::Switch { .. }, .. } => {
            Notification::Reply(CommandReply::Members(Box::new(MembersReply {
                request_id,
                session: session.clone(),
                agents: Vec::new(),
                active_agent: None,
            })))
        }
        LinkCommand::Invoke(invoke) => Notification::Reply(CommandReply::TurnAccepted(Box::new(AcceptedTurn {
            request_id,
            session: invoke.session.clone()?,
            run_id: RunId::parse(RUN).expect("a run"),
            message_id: MessageId::parse("m").expect("a name"),
            duplicate: false,
        }))),
        LinkCommand::Open { session: None, .. }
        | LinkCommand::Unsubscribe { .. }
        | LinkCommand::GetSnapshot { .. }
        | LinkCommand::ListDeliveries { .. }
        | LinkCommand::List { .. }
        | LinkCommand::Binding { .. }
        | LinkCommand::BindChild(_)
        | LinkCommand::Account { .. }
        | LinkCommand::Send(_)
        | LinkCommand::Inbound(_)
        | LinkCommand::PrepareFiles(_)
        | LinkCommand::Delivered(_)
        | LinkCommand::Capabilities(_)
        | LinkCommand::Blob { .. }
        | LinkCommand::FindRun { .. }
        | LinkCommand::Delete { .. }
        | LinkCommand::Control { .. }
        | LinkCommand::Cancel { .. } => return None,
    })
}

/// Returns a numbered request of this kind about a session.
fn request(kind: &str, of: &str, number: usize) -> Value {
    let mut message = json!({"type": kind, "session_id": of, "request_id": format!("r{number}")});
    match kind {
        "agent_invoke" => message["message"] = json!({"content": "hi"}),
        "switch_agent" => message["agent_id"] = json!("echo"),
        _ => {}
    }
    message
}

/// A link with the commands that the switchboard has not answered yet.
struct PipelineFixture {
    stage: Fixture,
    pending: Vec<LinkCommand>,
    written: Vec<Value>,
}

impl PipelineFixture {
    fn new() -> Self {
        let mut stage = Fixture::new();
        stage.play("hello; admit; flush");
        Self { stage, pending: Vec::new(), written: Vec::new() }
    }
    fn take(&mut self, input: Input) {
        self.stage.link.handle_input(self.stage.now, input);
        self.drain();
    }
    fn drain(&mut self) {
        while let Some(output) = self.stage.link.poll_output() {
            match output {
                Output::Event(LinkEvent::Command(command)) => self.pending.push(command),
                Output::Write(text) => self.written.push(serde_json::from_str(&text).expect("JSON")),
                Output::Event(_) | Output::Refresh { .. } | Output::Ping | Output::Close { .. } => {}
            }
        }
    }
    fn ask(&mut self, kind: &str, of: &str, number: usize) {
        self.take(Input::Text(request(kind, of, number).to_string()));
    }
    fn begun(&self) -> Vec<&str> {
        self.pending.iter().filter_map(|command| command.request_id().map(RequestId::as_str)).collect()
    }
    /// Returns the ids of the answered requests and the sequence numbers of the facts written since the last
    /// call.
    fn take_written(&mut self) -> Vec<String> {
        let brief = |message: Value| match message["request_id"].as_str() {
            Some(id) => id.to_owned(),
            None => message["seq"].to_string(),
        };
        std::mem::take(&mut self.written).into_iter().map(brief).collect()
    }
    fn answer(&mut self, id: &str) {
        let named = |command: &LinkCommand| command.request_id().is_some_and(|request| request.as_str() == id);
        let at = self.pending.iter().position(named).unwrap_or_else(|| panic!("{id} is not begun"));
        let note = answer(&self.pending.remove(at)).expect("it is answered");
        self.take(Input::Note(note));
    }
}

#[test]
fn requests_wait_for_the_session_to_open() {
    let mut board = PipelineFixture::new();
    board.ask("session_open", "s1", 1);
    board.ask("subscribe", "s1", 2);
    board.ask("agent_invoke", "s1", 3);
    board.ask("agent_invoke", "s2", 4);
    board.ask("ping", "s1", 5);
    assert_eq!(board.begun(), ["r1", "r4"]);
    assert_eq!(board.take_written(), ["r5"]);
    board.answer("r1");
    assert_eq!(board.begun(), ["r4", "r2"]);
    board.answer("r2");
    board.answer("r3");
    assert_eq!(board.take_written(), ["r1", "r2", "r3"]);
}

#[test]
fn early_answer_and_later_facts_wait_for_their_order() {
    let mut board = PipelineFixture::new();
    for number in 1..=3 {
        board.ask("agent_invoke", "s1", number);
    }
    assert_eq!(board.begun(), ["r1", "r2", "r3"]);
    board.take(Input::Note(fact("s1", 1, notice())));
    board.answer("r3");
    board.take(Input::Note(fact("s1", 2, notice())));
    board.take(Input::Note(fact("s2", 7, notice())));
    assert_eq!(board.take_written(), ["1", "7"], "facts before it, and other sessions, do not wait");
    board.answer("r2");
    assert_eq!(board.take_written(), [""; 0]);
    board.answer("r1");
    assert_eq!(board.take_written(), ["r1", "r2", "r3", "2"]);
    board.take(Input::Note(fact("s1", 3, notice())));
    assert_eq!(board.take_written(), ["3"], "nothing is held any more");
}

#[test]
fn refusal_counts_as_the_answer() {
    for session in [Some(session("s1")), None] {
        let mut board = PipelineFixture::new();
        board.ask("session_open", "s1", 1);
        board.ask("agent_invoke", "s1", 2);
        let Some(LinkCommand::Open { request_id, .. }) = board.pending.pop() else { panic!("an opening") };
        board.take(Input::Note(refused(request_id, session)));
        assert_eq!(board.begun(), ["r2"]);
        assert_eq!(board.take_written(), ["r1"]);
    }
}

#[test]
fn closed_fact_answers_the_close_request() {
    let mut board = PipelineFixture::new();
    board.ask("session_close", "s1", 1);
    board.ask("session_open", "s1", 2);
    assert_eq!(board.begun(), ["r1"]);
    board.take(Input::Note(fact(
        "s1",
        4,
        Fact::Session(SessionFact::Closed { request_id: RequestId::parse("r1").ok() }),
    )));
    assert_eq!(board.begun(), ["r1", "r2"]);
}

#[test]
fn cancel_is_not_delayed_by_pending_requests() {
    let mut board = PipelineFixture::new();
    board.ask("session_close", "s1", 1);
    board.ask("cancel_run", "s1", 2);
    assert_eq!(board.begun(), ["r1", "r2"]);
    board.take(Input::Note(refused(RequestId::parse("r2").ok(), Some(session("s1")))));
    assert_eq!(board.take_written(), ["r2"]);
}

#[test]
fn late_answer_stops_delaying_others() {
    let mut board = PipelineFixture::new();
    board.ask("session_open", "s1", 1);
    board.ask("agent_invoke", "s1", 2);
    board.stage.now.mono = board.stage.now.mono + (ANSWER_ORDER_TIMEOUT - Duration::from_millis(1));
    board.stage.link.handle_timeout(board.stage.now);
    board.drain();
    assert_eq!(board.begun(), ["r1"]);
    board.stage.now.mono = board.stage.now.mono + Duration::from_millis(1);
    assert_eq!(board.stage.link.poll_timeout().map(|next| next.at), Some(board.stage.now.mono));
    board.stage.link.handle_timeout(board.stage.now);
    board.drain();
    assert_eq!(board.begun(), ["r1", "r2"]);
    board.answer("r2");
    board.answer("r1");
    assert_eq!(board.take_written(), ["r2", "r1"]);
}

/// Covers: S-13, S-17.
#[test]
fn pending_requests_are_bounded() {
    let mut board = PipelineFixture::new();
    for number in 0..=LINK_REQUESTS_MAX + 1 {
        board.ask("subscribe", "s1", number);
    }
    assert_eq!(board.begun(), ["r0"]);
    let last = format!("r{}", LINK_REQUESTS_MAX + 1);
    assert_eq!(board.written[0]["code"], "rate_limited");
    assert_eq!(board.take_written(), [last], "the last is refused");
    let long = "x".repeat(40_000);
    let say = format!(r#"say {{"type":"agent_invoke","session_id":"s1","message":{{"content":"{long}"}}}}"#);
    check_open(&format!("type-open s1; {say}; {say}; flush"), "open; waits; waits; error rate_limited");
}

/// Covers: RX-3.
#[test]
fn random_pipelined_requests_are_answered_in_order() {
    const KINDS: [&str; 7] =
        ["session_open", "subscribe", "agent_invoke", "agent_invoke", "agent_invoke", "session_close", "switch_agent"];
    for seed in 0..300 {
        let mut rng = Rng::from_number(seed);
        let mut board = PipelineFixture::new();
        let mut asked: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut number = 0;
        let mut seq = BTreeMap::from([("s1", 0), ("s2", 0)]);
        for _ in 0..120 {
            let of = if rng.chance(60) { "s1" } else { "s2" };
            match rng.below(3) {
                0 if number < 50 => {
                    number += 1;
                    board.ask(KINDS[rng.below(7) as usize], of, number);
                    asked.entry(of).or_default().push(format!("r{number}"));
                }
                1 => {
                    let next = seq.get_mut(of).expect("a session");
                    *next += 1;
                    let note = fact(of, *next, notice());
                    board.take(Input::Note(note));
                }
                _ if board.pending.is_empty() => {}
                _ => {
                    let at = rng.below(board.pending.len() as u64) as usize;
                    let command = board.pending.remove(at);
                    let note = if rng.chance(20) {
                        refused(command.request_id().cloned(), None)
                    } else {
                        answer(&command).expect("an answer")
                    };
                    board.take(Input::Note(note));
                }
            }
        }
        while !board.pending.is_empty() {
            let last = board.pending.len() as u64;
            let command = board.pending.remove(rng.below(last) as usize);
            board.take(Input::Note(answer(&command).expect("an answer")));
        }
        let mut facts: BTreeMap<String, u64> = BTreeMap::new();
        let mut answers = Vec::new();
        for message in &board.written {
            if let Some(id) = message["request_id"].as_str() {
                answers.push(id.to_owned());
            } else if let Some(at) = message["seq"].as_u64() {
                let of = message["session_id"].as_str().expect("a session").to_owned();
                assert_eq!(facts.insert(of, at).unwrap_or(0) + 1, at, "seed {seed}: facts in order");
            }
        }
        for (of, ids) in &asked {
            let here: Vec<_> = answers.iter().filter(|id| ids.contains(id)).cloned().collect();
            assert_eq!(here, *ids, "seed {seed}: {of}");
        }
        assert_eq!(facts.get("s1").copied().unwrap_or(0), seq["s1"], "seed {seed}: all facts are shown");
    }
}
