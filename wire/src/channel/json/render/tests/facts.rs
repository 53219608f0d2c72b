//! Rendering of every fact.
use super::*;
mod actions;
mod deliveries;
mod models;
use std::sync::Arc;
use turnway_core::id::{Cursor, UserId};
use turnway_core::protocol::entry::{Admission, Scope};
use turnway_core::protocol::entry::{HandoverFact, MemberFact};
use turnway_core::protocol::handover::{HandoverConfirmed, HandoverRejected, HandoverRejection, HandoverRequested};
use turnway_core::protocol::input::{Content, Message, Role, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::member::{Member, MemberChangeFailed, MemberChangeRequested, MemberChanged};
use turnway_core::protocol::steer::SteerOutcome;

fn shown(fact: Fact, asked: bool) -> Vec<Value> {
    texts(&told(fact, asked))
}

fn told(fact: Fact, asked: bool) -> Notification {
    let of_a_session =
        ["session.", "agent.add", "agent.remov", "agent.switched", "handover.confirmed", "handover.rejected"];
    let of_a_run = !of_a_session.iter().any(|kind| fact.name().starts_with(kind));
    let entry = Entry {
        id: EventId::default(),
        time: Millis(5),
        source: "turnway".into(),
        correlation_id: "c".into(),
        causation_id: None,
        traceparent: None,
        run_id: of_a_run.then(run),
        fact,
    };
    Notification::Fact { session: session(), seq: Seq(9), epoch: Epoch(4), entry: Arc::new(entry), requested: asked }
}

fn said(content: Content) -> Fact {
    Fact::Input(InputFact::UserMessage {
        message_id: MessageId::parse("m1").expect("a name"),
        request_id: request(),
        user: UserId::parse("ann").expect("a name"),
        message: Message { role: Role::User, content },
        history_sha256: Some("5".repeat(64)),
        agent_id: Some(agent("a")),
        strategy: Strategy::Enqueue,
        metadata: Some(Json(json!({"k": 1}))),
        origin: None,
    })
}

fn failed(code: Code, agent_code: Option<&str>) -> Fact {
    let message = "why".to_owned();
    let agent_code = agent_code.map(str::to_owned);
    Fact::Run(RunFact::Failed {
        attempt: 2,
        code,
        message,
        agent_code,
        retry_after_ms: None,
        agent_body: None,
        text_bytes: 3,
    })
}

fn cancelled(forced: bool) -> Fact {
    Fact::Run(RunFact::Cancelled { attempt: 2, reason: "user".to_owned(), forced, text_bytes: 3 })
}

/// Returns facts of a session with their expected messages.
fn of_the_session() -> Vec<(Fact, Vec<Value>)> {
    let why = || "why".to_owned();
    vec![
        (
            Fact::Session(SessionFact::Opened {
                user: UserId::parse("ann").expect("a name"),
                agents: vec![agent("a"), agent("b")],
                active_agent: agent("b"),
                request_id: request(),
            }),
            vec![of_session("session_opened", json!({"agents": ["a", "b"], "active_agent": "b", "request_id": "r1"}))],
        ),
        (
            Fact::Session(SessionFact::Closing { request_id: request() }),
            vec![of_session("event", json!({"name": "SESSION_CLOSING", "request_id": "r1"}))],
        ),
        (Fact::Session(SessionFact::Closed { request_id: None }), vec![of_session("session_closed", json!({}))]),
        (
            Fact::Session(SessionFact::Notice { name: "NO_ACTIVE_SPEAKING".to_owned(), request_id: request() }),
            vec![of_session("event", json!({"name": "NO_ACTIVE_SPEAKING", "request_id": "r1"}))],
        ),
        (
            Fact::Member(MemberFact::Switched {
                from: agent("a"),
                to: agent("b"),
                reason: why(),
                trigger: "mention".to_owned(),
                request_id: request(),
            }),
            vec![of_session(
                "event",
                json!({"name": "ACTIVE_AGENT_CHANGED", "from": "a", "to": "b", "reason": "why", "trigger": "mention", "request_id": "r1"}),
            )],
        ),
    ]
}

/// The transaction id of a member change.
pub(super) const TX: &str = "00000000-0000-7000-8000-000000000001";

/// Returns facts of joining and leaving members.
fn of_members() -> Vec<(Fact, Vec<Value>)> {
    let tx_id = EventId(TX.parse().expect("a UUID"));
    let asked = MemberChangeRequested {
        tx_id,
        agent_id: agent("a"),
        user: UserId::parse("ann").expect("a name"),
        reason: Some("why".to_owned()),
        activate: true,
        deadline_ms: Millis(9),
        request_id: request(),
        handover_id: None,
    };
    let done = MemberChanged {
        tx_id,
        agent_id: agent("a"),
        member: Member::default(),
        reason: None,
        restored: true,
        request_id: request(),
    };
    let failed = |code| MemberChangeFailed {
        tx_id,
        agent_id: agent("a"),
        code,
        message: "why".to_owned(),
        request_id: request(),
    };
    let change = |mut body: Value| {
        for (name, value) in [("agent_id", "a"), ("tx_id", TX), ("request_id", "r1")] {
            body[name] = value.into();
        }
        vec![of_session("event", body)]
    };
    let asks = |name| change(json!({"name": name, "reason": "why", "deadline_ts": 9}));
    let error = |code: &str, retryable: bool| {
        let detail = json!({"agent_id": "a", "tx_id": TX});
        let body =
            json!({"code": code, "message": "why", "retryable": retryable, "detail": detail, "request_id": "r1"});
        vec![of_session("error", body)]
    };
    vec![
        (Fact::Member(MemberFact::Adding(asked.clone())), asks("ADDING_AGENT")),
        (Fact::Member(MemberFact::Added(done.clone())), change(json!({"name": "AGENT_ADDED", "restored": true}))),
        (
            Fact::Member(MemberFact::AddFailed(failed(Code::AddAgentFailed))),
            error("ADD_AGENT_FAILED", Code::AddAgentFailed.retryable()),
        ),
        (Fact::Member(MemberFact::Removing(asked)), asks("AGENT_REMOVING")),
        (
            Fact::Member(MemberFact::Removed(MemberChanged { restored: false, ..done })),
            change(json!({"name": "AGENT_REMOVED"})),
        ),
        (
            Fact::Member(MemberFact::RemoveFailed(failed(Code::RemoveAgentFailed))),
            error("REMOVE_AGENT_FAILED", Code::RemoveAgentFailed.retryable()),
        ),
    ]
}

/// Returns facts of a handover.
fn of_the_handover() -> Vec<(Fact, Vec<Value>)> {
    let handover_id = EventId(TX.parse().expect("a UUID"));
    let from = agent("a");
    let to = agent("b");
    let told = |mut body: Value| {
        for (name, value) in [("handover_id", TX), ("from", "a"), ("to", "b")] {
            body[name] = value.into();
        }
        body
    };
    let asked = HandoverRequested {
        handover_id,
        from: from.clone(),
        to: to.clone(),
        reason: Private("sums".to_owned()),
        summary: Private("2+2".to_owned()),
        deadline_ms: Millis(9),
        mark: None,
    };
    let prompt = told(json!({"reason": "sums", "summary": "2+2", "deadline_ts": 9}));
    let confirmed = HandoverConfirmed { handover_id, from: from.clone(), to: to.clone(), request_id: request() };
    let rejected = HandoverRejected { handover_id, from, to, why: HandoverRejection::Refused, request_id: request() };
    let no = json!({"name": "HANDOVER_REJECTED", "reason": "refused", "request_id": "r1"});
    vec![
        (Fact::Handover(HandoverFact::Requested(asked)), vec![placed("handover_prompt", prompt)]),
        (
            Fact::Handover(HandoverFact::Confirmed(confirmed)),
            vec![of_session("event", told(json!({"name": "HANDOVER_CONFIRMED", "request_id": "r1"})))],
        ),
        (Fact::Handover(HandoverFact::Rejected(rejected)), vec![of_session("event", told(no))]),
    ]
}

/// Covers: SR-M6: a notice named after an error code is rendered as an error to every subscriber.
#[test]
fn failed_request_is_rendered_as_an_error() {
    let notice = Fact::Session(SessionFact::Notice { name: "agent_not_in_session".to_owned(), request_id: request() });
    let [told] = &shown(notice, false)[..] else { panic!("one message") };
    assert_eq!((&told["type"], &told["code"]), (&"error".into(), &"agent_not_in_session".into()));
    assert_eq!((&told["request_id"], told["seq"].is_u64()), (&"r1".into(), true));
}

/// Returns facts on the way through a turn.
fn of_the_turn() -> Vec<(Fact, Vec<Value>)> {
    vec![
        (
            said(Content::Text("hi".to_owned())),
            vec![placed(
                "message",
                json!({"role": "user", "message": {"role": "user", "content": "hi"}, "content": "hi",
                    "message_id": "m1", "user_id": "ann", "request_id": "r1", "agent_id": "a"}),
            )],
        ),
        (
            Fact::Input(InputFact::Admitted {
                agent_id: agent("a"),
                strategy: Admission::Queued,
                position: Some(2),
                host_run_id: None,
                replaces: None,
            }),
            vec![placed(
                "event",
                json!({"name": "TURN_ADMITTED", "agent_id": "a", "strategy": "queued", "position": 2}),
            )],
        ),
        (
            Fact::Run(RunFact::Started {
                agent_id: agent("a"),
                attempt: 1,
                request_id: request(),
                deadline_ms: Millis(9),
                resumable: false,
            }),
            vec![placed("run_started", json!({"agent_id": "a", "attempt": 1, "request_id": "r1"}))],
        ),
        (
            Fact::Run(RunFact::AgentStarted { agent_id: agent("a"), attempt: 1 }),
            vec![placed("event", json!({"name": "AGENT_STARTED", "agent_id": "a", "attempt": 1}))],
        ),
        (Fact::Run(RunFact::TextDelta { attempt: 1, offset: 3, text: Private("höh".to_owned()), mark: None }), vec![]),
        (Fact::Run(RunFact::AgentDone { agent_id: agent("a"), attempt: 1 }), vec![]),
        (
            Fact::Run(RunFact::State {
                scope: Scope::Agent,
                state: "THINKING".to_owned(),
                detail: Some(Json(json!([1]))),
                mark: None,
            }),
            vec![placed("state", json!({"scope": "agent", "state": "THINKING", "detail": [1]}))],
        ),
        (
            Fact::Run(RunFact::Cancelling { reason: "user".to_owned(), deadline_ms: Millis(7), request_id: request() }),
            vec![placed(
                "event",
                json!({"name": "CANCEL_SENT", "reason": "user", "deadline_ts": 7, "request_id": "r1"}),
            )],
        ),
    ]
}

/// Returns facts of an input that is handed to a running run.
fn of_the_steered() -> Vec<(Fact, Vec<Value>)> {
    let host = run();
    let agent_id = agent("a");
    let strategy = Admission::Steered;
    let admitted = json!({"name": "TURN_ADMITTED", "agent_id": "a", "strategy": "steered", "host_run_id": host});
    let acked = json!({"name": "STEER_ACK", "agent_id": "a", "attempt": 2, "host_run_id": host,
        "outcome": "accepted"});
    let done = json!({"status": "completed", "stop_reason": "steered", "text_bytes": 0, "attempt": 0,
        "host_run_id": host});
    vec![
        (
            Fact::Input(InputFact::Admitted {
                agent_id: agent_id.clone(),
                strategy,
                position: None,
                host_run_id: Some(host.clone()),
                replaces: None,
            }),
            vec![placed("event", admitted)],
        ),
        (
            // Shown on request only.
            Fact::Input(InputFact::Gathered { host_run_id: host.clone() }),
            vec![],
        ),
        (
            Fact::Input(InputFact::SteerAcked {
                agent_id,
                host_run_id: host.clone(),
                attempt: 2,
                outcome: SteerOutcome::Accepted,
            }),
            vec![placed("event", acked)],
        ),
        (
            Fact::Run(RunFact::Done {
                attempt: 0,
                stop_reason: StopReason::Steered,
                text_bytes: 0,
                text_sha256: "x".to_owned(),
                usage: None,
                host_run_id: Some(host),
            }),
            vec![placed("done", done)],
        ),
    ]
}

/// Returns facts of an attempt whose owner node was lost.
fn of_the_lost() -> Vec<(Fact, Vec<Value>)> {
    let why = || "why".to_owned();
    let restarted = "RUN_RESTARTED";
    let resumed = "RUN_RESUMED";
    let again = |name: &str| placed("event", json!({"name": name, "agent_id": "a", "attempt": 2, "reason": "why"}));
    vec![
        (
            Fact::Run(RunFact::Restarted { agent_id: agent("a"), attempt: 2, reason: why(), resumable: false }),
            vec![again(restarted)],
        ),
        (Fact::Run(RunFact::Resumed { agent_id: agent("a"), attempt: 2, reason: why() }), vec![again(resumed)]),
        (
            Fact::Run(RunFact::Suspended { attempt: 1, reason: why() }),
            vec![placed("event", json!({"name": "RUN_SUSPENDED", "attempt": 1, "reason": "why"}))],
        ),
    ]
}

/// Returns facts that end a turn.
fn of_the_end() -> Vec<(Fact, Vec<Value>)> {
    let done =
        |status, stop| placed("done", json!({"status": status, "stop_reason": stop, "text_bytes": 3, "attempt": 2}));
    vec![
        (
            Fact::Run(RunFact::Done {
                attempt: 2,
                stop_reason: StopReason::MaxTokens,
                text_bytes: 3,
                text_sha256: "x".to_owned(),
                usage: Some(Json(json!({"tokens": 123}))),
                host_run_id: None,
            }),
            vec![placed(
                "done",
                json!({"status": "completed", "stop_reason": "max_tokens", "text_bytes": 3, "attempt": 2,
                    "usage": {"tokens": 123}}),
            )],
        ),
        (
            failed(Code::AgentError, Some("E7")),
            vec![
                framed(
                    "error",
                    json!({"code": "agent_error", "message": "why", "retryable": true, "terminal": true,
                        "detail": {"agent_code": "E7"}}),
                ),
                done("failed", "error"),
            ],
        ),
        (
            cancelled(true),
            vec![
                framed(
                    "error",
                    json!({"code": "CANCEL_TIMEOUT", "retryable": false, "terminal": false,
                        "message": "the agent did not acknowledge the cancel in time"}),
                ),
                framed("event", json!({"name": "CANCELED", "reason": "user"})),
                done("cancelled", "cancelled"),
            ],
        ),
    ]
}

/// Returns one fact of each kind, in the order of the table.
fn samples() -> Vec<(Fact, Vec<Value>)> {
    let mut samples = [
        of_the_session(),
        of_members(),
        of_the_handover(),
        actions::samples(),
        deliveries::samples(),
        models::samples(),
        of_the_turn(),
        of_the_steered(),
        of_the_lost(),
        of_the_end(),
    ]
    .concat();
    samples.sort_by_key(|(fact, _)| Fact::kinds().position(|kind| kind.name == fact.name()));
    samples
}

/// Covers: SR-M6, SR-M9, SR-M10, SR-W4, SR-D7, SR-E3, MP-C1, MP-C7, MP-C9, MP-C12, MP-C13, MP-A6, ST-10, LN-MP16,
/// LN-MP25, EV-E1; seq on the last message only.
#[test]
fn each_fact_is_rendered_as_documented() {
    for (fact, expected) in samples() {
        assert_eq!(shown(fact.clone(), false), expected, "{}", fact.name());
    }
}

/// The published table equals the rendered messages.
#[test]
fn the_table_names_every_fact_and_its_messages() {
    let samples = samples();
    let mut names: Vec<&str> = samples.iter().map(|(fact, _)| fact.name()).collect();
    // Some facts have several samples.
    names.dedup();
    // `plain_facts_are_rendered_as_their_data` makes samples of plain facts.
    let known = Fact::kinds().filter(|kind| !kind.is_plain || names.contains(&kind.name));
    assert_eq!(names, known.map(|kind| kind.name).collect::<Vec<_>>());
    for (fact, messages) in &samples {
        let row = Fact::kinds().find(|kind| kind.name == fact.name()).expect("its row").messages;
        let name = |message: &Value| match message["name"].as_str() {
            Some("NO_ACTIVE_SPEAKING") => " <its name>".to_owned(),
            Some(name) => format!(" {name}"),
            None => String::new(),
        };
        let kind = |message: &Value| format!("{}{}", message["type"].as_str().expect("a type"), name(message));
        let told = messages.iter().map(kind).collect::<Vec<_>>().join(", ");
        assert_eq!(told, row.replace("(error,)", "error,"), "{}", fact.name());
    }
}

/// Covers: ST-39, EV-R1, LN-EV3: a fact without messages is sent as an event to a link that requests its type.
#[test]
fn hidden_facts_are_rendered_on_request() {
    let delta = Fact::Run(RunFact::TextDelta { attempt: 1, offset: 3, text: Private("höh".to_owned()), mark: None });
    let data = json!({"attempt": 1, "offset": 3, "text": "höh"});
    assert_eq!(shown(delta, true), [placed("event", json!({"name": "agent.stream.delta", "data": data}))]);
    let over = Fact::Run(RunFact::AgentDone { agent_id: agent("a"), attempt: 1 });
    let data = json!({"agent_id": "a", "attempt": 1});
    assert_eq!(shown(over, true), [placed("event", json!({"name": "agent.invoke.done", "data": data}))]);
    // A request changes nothing for a fact that has a message of its own.
    for (fact, expected) in samples().into_iter().filter(|(_, messages)| !messages.is_empty()) {
        assert_eq!(shown(fact, true), expected);
    }
}

/// Covers: SR-A10, LN-SR2, ST-19.
#[test]
fn run_ends_include_their_reason() {
    for (code, stop) in [
        (Code::RouteTimeout, "timeout"),
        (Code::AgentTimeout, "timeout"),
        (Code::PoisonTurn, "error"),
        (Code::SessionClosed, "error"),
    ] {
        let messages = shown(failed(code, None), false);
        assert_eq!(messages[0]["code"], code.as_str());
        assert!(messages[0].get("detail").is_none() && messages[0].get("seq").is_none());
        assert_eq!((&messages[1]["stop_reason"], &messages[1]["seq"]), (&json!(stop), &json!(9)));
    }
    let messages = shown(cancelled(false), false);
    assert_eq!((messages.len(), &messages[0]["name"]), (2, &json!("CANCELED")));
}

/// Covers: ST-37: content parts are returned unchanged.
#[test]
fn content_parts_are_rendered_unchanged() {
    let parts = vec![json!({"type": "text", "text": "hi", "x": 1.5})];
    let message = shown(said(Content::Parts(parts.clone())), false).remove(0);
    assert_eq!((&message["content"], &message["message"]["content"]), (&json!(parts), &json!(parts)));
}

/// Covers: MP-C1, MP-T10: a fact keeps its time, whenever it is shown.
#[test]
fn fact_is_rendered_with_its_own_time() {
    let mut shown = Vec::new();
    let note = told(Fact::Session(SessionFact::Closed { request_id: None }), false);
    render(Millis(99), "fsync", &note, &mut |text| shown.push(text));
    assert!(shown.iter().all(|text| text.contains(r#""ts":5"#)), "{shown:?}");
}

/// Covers: LN-EV1, MP-T9, LN-SR4.
#[test]
fn each_fact_round_trips_through_its_envelope() {
    let mut names: Vec<String> = Vec::new();
    for (fact, _) in samples() {
        let Notification::Fact { session, seq, epoch, entry, .. } = told(fact, true) else { panic!("a fact") };
        let text = crate::channel::json::envelope::envelope(&session, Cursor { seq, epoch }, &entry);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        for (key, expected) in [
            ("specversion", json!("1.0")),
            ("session_id", json!("s1")),
            ("seq", json!(9)),
            ("epoch", json!(4)),
            ("type", json!(entry.fact.name())),
            ("source", json!("turnway")),
            ("time", json!("1970-01-01T00:00:00.005Z")),
            ("correlation_id", json!("c")),
        ] {
            assert_eq!(value[key], expected, "{text}");
        }
        assert!(value["id"].is_string() && value["data"].is_object(), "{text}");
        assert_eq!(Entry::from_json(&text).expect("an envelope").entry, *entry);
        documented::assert_valid("fact", &value);
        names.push(entry.fact.name().to_owned());
    }
    names.sort_unstable();
    names.dedup();
    let known = Fact::kinds().filter(|kind| !kind.is_plain || names.iter().any(|name| name == kind.name));
    assert_eq!(names.len(), known.count(), "{names:?}");
}
