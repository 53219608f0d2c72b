//! The state machine of a dial-in agent's connection, driven by scripts: orders to the agent, its messages,
//! and the end of the connection.
use serde_json::{Value, json};
use std::time::Duration;
use turnway_core::id::{AgentId, Epoch, MessageId, NodeId, RequestId, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::{AgentFailure, Invoke, Order, Resume};
use turnway_core::protocol::input::{Content, Message, Role};
use turnway_core::protocol::steer::Steer;
use turnway_core::time::{Millis, Mono, Now};
use turnway_node::connection::{ConnectionConfig, RefreshOutcome};
use turnway_node::dialin::{DialIn, DialInCommand, DialInConfig, DialInEvent, Input, Output};
use turnway_simulator::laws::{Step, laws};
use turnway_wire::agent::AttemptEvent;
use turnway_wire::agent::message::AgentMessage;

fn config(named: bool) -> DialInConfig {
    let connection =
        ConnectionConfig { node: NodeId(1), connection_id: "c1".to_owned(), expires: None, heartbeat_permille: 1000 };
    DialInConfig { connection, has_event_ids: named }
}

fn key() -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") }
}

/// Rejects an order of an earlier owner, in whichever order two owners send theirs.
/// Covers: G1: of two owners the later one is obeyed, in whichever order they give theirs.
#[test]
fn order_of_an_earlier_epoch_is_rejected() {
    let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1) };
    let mut agent = DialIn::new(now, &config(true));
    let under = |name: &str, epoch| match invoke(name, 1, None) {
        Order::Invoke(invoke) => Invoke { epoch: Epoch(epoch), ..invoke },
        order @ (Order::Cancel { .. }
        | Order::Steer(_)
        | Order::Drop { .. }
        | Order::Stop { .. }
        | Order::News(_)
        | Order::Credit { .. }) => panic!("{order:?}"),
    };
    assert!(agent.accepts(&under("m1", 7)));
    agent.handle_input(now, Input::Command(DialInCommand::Order(Box::new(Order::Invoke(under("m1", 7))))));
    let taken = [6, 7, 8].map(|epoch| agent.accepts(&under("m1", epoch)));
    assert_eq!((taken, agent.accepts(&under("m2", 1))), ([false, true, true], true));
}

/// Returns the id of the run with this name.
fn run(name: &str) -> RunId {
    RunId::derive(&key(), &UserId::local(), &MessageId::parse(name).expect("a name"))
}

fn message(text: &str) -> Message {
    Message { role: Role::User, content: Content::Text(text.to_owned()) }
}

fn invoke(name: &str, attempt: u32, resume: Option<Resume>) -> Order {
    Order::Invoke(Invoke {
        key: key(),
        run_id: run(name),
        attempt,
        epoch: Epoch(7),
        agent_id: AgentId::parse("a").expect("a name"),
        user: UserId::local(),
        message: message("canary-input"),
        history: None,
        origin: None,
        traceparent: None,
        handover: None,
        actions: None,
        system_prompt: None,
        run_token: None,
        messages_url: None,
        resume,
    })
}

fn steer(name: &str, message_id: &str) -> Order {
    Order::Steer(Box::new(Steer {
        key: key(),
        run_id: run(name),
        attempt: 1,
        epoch: Epoch(7),
        agent_id: AgentId::parse("a").expect("a name"),
        turn_id: run(message_id),
        user: UserId::local(),
        message_id: MessageId::parse(message_id).expect("a name"),
        message: message("canary-more"),
        actions: None,
        traceparent: None,
    }))
}

/// Returns the input for one step of a script: words in capitals are orders or events, all others messages of
/// the agent.
fn input(words: &str) -> Input {
    let order = |order| Input::Command(DialInCommand::Order(Box::new(order)));
    if let Some(text) = words.strip_prefix("raw ") {
        return Input::Text(text.to_owned());
    }
    let parts: Vec<&str> = words.split(' ').collect();
    match parts[..] {
        ["INVOKE", name] => order(invoke(name, 1, None)),
        ["AGAIN", name] => order(invoke(name, 2, None)),
        ["RESUME", name] => order(invoke(name, 1, Some(Resume { after: None, saved: 0 }))),
        ["CANCEL", name] => {
            order(Order::Cancel { tenant: key().tenant, run_id: run(name), attempt: 1, epoch: Epoch(7) })
        }
        ["DROP", name] => order(Order::Drop { run_id: run(name), attempt: 1 }),
        ["CREDIT", name] => order(Order::Credit { run_id: run(name), attempt: 1, upto: 5 }),
        ["STEER", name, id] => order(steer(name, id)),
        ["STOP", name] => {
            let agent_id = AgentId::parse("a").expect("a name");
            order(Order::Stop { tenant: key().tenant, agent_id, run_id: run(name), attempt: 1, epoch: Epoch(7) })
        }
        ["LEAVE"] => Input::Draining,
        ["FLUSH"] => Input::Flushed,
        ["ALIVE"] => Input::SignOfLife,
        ["PART"] => Input::Command(DialInCommand::PartialMessage),
        ["BINARY"] => Input::Binary,
        ["TOO-LARGE"] => Input::TooLarge,
        ["UNTIL", at] => renewed(RefreshOutcome::Until(Millis(1_000_000 + at.parse::<u64>().expect("ms")))),
        ["DENIED"] => renewed(RefreshOutcome::Denied),
        ["NEEDLESS"] => renewed(RefreshOutcome::NotRequired),
        ["steer_ack", id] => said(json!({"type": "steer_ack", "message_id": id, "outcome": "accepted"})),
        ["steer_ack", id, name] => {
            said(json!({"type": "steer_ack", "message_id": id, "run_id": run(name), "outcome": "accepted"}))
        }
        ["unknown", name] => said(json!({"type": "error", "run_id": run(name), "code": "unknown_run"})),
        [kind] => said(json!({"type": kind, "request_id": "r1", "token": "canary-token"})),
        [kind, name] => {
            said(json!({"type": kind, "run_id": run(name), "text": "canary", "state": "thinking", "to": "bob"}))
        }
        [kind, name, attempt] => {
            let attempt: u32 = attempt.parse().expect("a number");
            said(json!({"type": kind, "run_id": run(name), "text": "canary", "attempt": attempt}))
        }
        _ => panic!("no such words: {words}"),
    }
}

fn renewed(renewal: RefreshOutcome) -> Input {
    Input::Refreshed { request_id: RequestId::parse("r1").ok(), renewal }
}

fn said(message: Value) -> Input {
    Input::Text(message.to_string())
}

fn describe(output: &Output) -> String {
    match output {
        Output::Write(text) => {
            let message: Value = serde_json::from_str(text).expect("JSON");
            assert!(message["ts"].is_u64(), "{text}");
            let kind = message["type"].as_str().expect("a type").to_uppercase();
            message["code"].as_str().map_or(kind.clone(), |code| format!("{kind} {code}"))
        }
        Output::Event(DialInEvent::AttemptEvent { attempt, event: word, .. }) => {
            let word = match word {
                AttemptEvent::Acked => "acked",
                AttemptEvent::CancelAcked => "stopped",
                AttemptEvent::Message(AgentMessage::Delta { .. }) => "delta",
                AttemptEvent::Message(AgentMessage::State { .. }) => "state",
                AttemptEvent::Message(AgentMessage::Steered { .. }) => "steered",
                AttemptEvent::Message(AgentMessage::Handover { .. }) => "handover",
                AttemptEvent::Message(AgentMessage::Action { .. }) => "action",
                AttemptEvent::Message(AgentMessage::Subscribe { .. }) => "wants events",
                AttemptEvent::Message(AgentMessage::Done { .. }) => "done",
                AttemptEvent::Message(AgentMessage::Failed(AgentFailure::Reported { .. })) => "error",
                AttemptEvent::Message(AgentMessage::Failed(AgentFailure::NotKnown)) => "not-known",
                AttemptEvent::Message(AgentMessage::Failed(AgentFailure::TooLarge)) => "too-large",
                AttemptEvent::Message(AgentMessage::Failed(_)) => "broken",
                AttemptEvent::Message(AgentMessage::Unknown) => "unknown",
                AttemptEvent::Message(AgentMessage::Alive) => "alive",
            };
            format!("{word}/{attempt}")
        }
        Output::Event(DialInEvent::AttemptAlive { attempt, .. }) => format!("lives/{attempt}"),
        Output::Refresh { .. } => "asks again".to_owned(),
        Output::Ping => "PING".to_owned(),
        Output::Close { code, .. } => format!("CLOSE {code}"),
    }
}

/// Plays a script after the welcome and returns the outputs; `+N` lets N ms pass and handles timeouts when
/// they are due.
fn play(named: bool, script: &str) -> String {
    let mut now = Now { mono: Now::default().mono + Duration::from_secs(1000), store: Millis(1_000_000) };
    let mut machine = DialIn::new(now, &config(named));
    let mut lines = Vec::new();
    let drain = |machine: &mut DialIn, lines: &mut Vec<String>| {
        lines.extend(std::iter::from_fn(|| machine.poll_output()).map(|output| describe(&output)));
    };
    drain(&mut machine, &mut lines);
    assert_eq!(lines, ["WELCOME"]);
    lines.clear();
    machine.handle_input(now, Input::Flushed);
    for words in script.split("; ") {
        match words.strip_prefix('+') {
            Some(ms) => {
                let end = now.mono + Duration::from_millis(ms.parse().expect("ms"));
                while let Some(deadline) = machine.poll_timeout().filter(|deadline| deadline.at <= end) {
                    now = Now { mono: deadline.at, store: now.store.after(deadline.at - now.mono) };
                    machine.handle_timeout(now);
                    drain(&mut machine, &mut lines);
                }
                now = Now { mono: end, store: now.store.after(end - now.mono) };
            }
            None => machine.handle_input(now, input(words)),
        }
        drain(&mut machine, &mut lines);
    }
    lines.join("; ")
}

#[track_caller]
fn check(script: &str, expected: &str) {
    assert_eq!(play(false, script), expected, "{script}");
}

/// Covers: SR-K1, SR-K2, MP-G4, MP-G5, MP-G6, MP-G7.
#[test]
fn events_of_own_runs_are_reported_and_of_others_rejected() {
    check("INVOKE m; input_ack m; delta m; state m; done m", "INVOKE; acked/1; delta/1; state/1; done/1");
    check("INVOKE m; delta m; input_ack m; error m", "INVOKE; acked/1; delta/1; acked/1; error/1");
    check("INVOKE m; handover_request m; done m", "INVOKE; acked/1; handover/1; done/1");
    check("INVOKE m; done m; done m", "INVOKE; acked/1; done/1; ERROR invalid_message");
    check("delta m", "ERROR invalid_message");
    check("INVOKE m; delta n; delta m", "INVOKE; ERROR invalid_message; acked/1; delta/1");
    check(
        "INVOKE m; CANCEL m; CANCEL m; delta m; cancel_ack m; delta m",
        "INVOKE; CANCEL; acked/1; delta/1; stopped/1; ERROR invalid_message",
    );
    check("INVOKE m; cancel_ack m; done m", "INVOKE; acked/1; done/1");
    check("INVOKE m; DROP m; DROP m; delta m; done m; cancel_ack m", "INVOKE; CANCEL");
    check("INVOKE m; CANCEL m; DROP m; done m", "INVOKE; CANCEL");
    check("INVOKE m; done m; DROP m; CANCEL m; CREDIT m", "INVOKE; acked/1; done/1");
    check("STOP m; done m", "CANCEL");
    // An unknown message type is a sign of life of the run that it names, once the run has been acknowledged.
    check("INVOKE m; input_ack m; tokens m", "INVOKE; acked/1; unknown/1; ERROR invalid_message");
    check("INVOKE m; tokens m; input_ack m", "INVOKE; ERROR invalid_message; acked/1");
    check("INVOKE m; input_ack m; tokens n; ping", "INVOKE; acked/1; ERROR invalid_message; PONG");
    // After a new attempt of the same run, messages of the older attempt are ignored.
    check("INVOKE m; DROP m; AGAIN m; done m 1; done m 2", "INVOKE; CANCEL; INVOKE; acked/2; done/2");
}

/// Counts bytes of an incomplete message as a sign of life of the connection and of its acknowledged runs
/// that have no cancel.
#[test]
fn bytes_of_an_incomplete_message_are_a_sign_of_life() {
    check("PART", "");
    check("INVOKE m; PART", "INVOKE");
    check("INVOKE m; input_ack m; PART; done m; PART", "INVOKE; acked/1; lives/1; done/1");
    check("INVOKE m; input_ack m; CANCEL m; PART", "INVOKE; acked/1; CANCEL");
    check("INVOKE m; DROP m; AGAIN m; input_ack m 2; PART", "INVOKE; CANCEL; INVOKE; acked/2; lives/2");
    check("+45000; PART; +59999", "PING; PING; PING; PING");
    check("+45000; PART; +60000", "PING; PING; PING; PING; CLOSE 1001");
}

/// Asks for a timeout every second while an attempt runs, so that the driver reports such bytes, and
/// otherwise only for heartbeats.
#[test]
fn connection_with_an_attempt_wakes_every_second() {
    let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1) };
    let mut agent = DialIn::new(now, &config(false));
    agent.handle_input(now, Input::Flushed);
    let wait = |agent: &DialIn| agent.poll_timeout().map(|deadline| deadline.at - now.mono);
    assert_eq!(wait(&agent), Some(limits::HEARTBEAT));
    agent.handle_input(now, input("INVOKE m"));
    agent.handle_input(now, Input::Flushed);
    assert_eq!(wait(&agent), Some(limits::DIALIN_SILENCE_CHECK));
    let later = Now { mono: now.mono + limits::DIALIN_SILENCE_CHECK, ..now };
    agent.handle_timeout(later);
    assert_eq!(wait(&agent), Some(limits::DIALIN_SILENCE_CHECK * 2));
}

/// Accepts a run of tenant `acme` in plain and qualified form, and rejects it under the name of another
/// tenant.
#[test]
fn qualified_run_name_of_another_tenant_is_rejected() {
    let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1) };
    let key = SessionKey { tenant: TenantId::parse("acme").expect("a name"), ..key() };
    let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m").expect("a name"));
    let of_its = format!("acme~{run_id}");
    let of_other = format!("evil~{run_id}");
    for (named, told) in [
        (run_id.as_str(), ["delta/1", "stopped/1"].as_slice()),
        (&of_its, &["delta/1", "stopped/1"]),
        (&of_other, &["ERROR invalid_message"]),
    ] {
        let mut agent = DialIn::new(now, &config(false));
        let Order::Invoke(order) = invoke("m", 1, None) else { panic!("an invoke") };
        let order = Invoke { key: key.clone(), run_id: run_id.clone(), ..order };
        agent.handle_input(now, Input::Command(DialInCommand::Order(Box::new(Order::Invoke(order)))));
        // A node of the previous release does not send the tenant in a cancel; the connection has it from the
        // invoke.
        let cancel =
            Order::Cancel { tenant: TenantId::default_tenant(), run_id: run_id.clone(), attempt: 1, epoch: Epoch(7) };
        agent.handle_input(now, Input::Command(DialInCommand::Order(Box::new(cancel))));
        let written: Vec<Value> = std::iter::from_fn(|| agent.poll_output())
            .filter_map(|output| match output {
                Output::Write(text) => serde_json::from_str(&text).ok(),
                Output::Event(_) | Output::Refresh { .. } | Output::Ping | Output::Close { .. } => None,
            })
            .collect();
        for (message, kind) in written[1..].iter().zip(["invoke", "cancel"]) {
            assert_eq!((&message["type"], &message["session_id"]), (&json!(kind), &json!("acme~s1")));
            assert_eq!(message["run_id"], of_its);
        }
        assert_eq!((written.len(), &written[1]["context"]["tenant"]), (3, &json!("acme")));
        agent.handle_input(now, said(json!({"type": "delta", "run_id": named, "text": "x"})));
        agent.handle_input(now, said(json!({"type": "cancel_ack", "run_id": named})));
        let words: Vec<String> = std::iter::from_fn(|| agent.poll_output()).map(|output| describe(&output)).collect();
        assert_eq!(words.iter().filter(|word| *word != "acked/1").collect::<Vec<_>>(), told, "{named}");
    }
}

/// A message of an unknown type keeps the named run alive, whether the name is plain or qualified by the run's tenant.
#[test]
fn unknown_message_keeps_a_qualified_run_alive() {
    let now = Now { mono: Mono(Duration::from_secs(1)), store: Millis(1) };
    let key = SessionKey { tenant: TenantId::parse("acme").expect("a name"), ..key() };
    let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m").expect("a name"));
    for (named, is_alive) in
        [(run_id.to_string(), true), (format!("acme~{run_id}"), true), (format!("evil~{run_id}"), false)]
    {
        let mut agent = DialIn::new(now, &config(false));
        let Order::Invoke(order) = invoke("m", 1, None) else { panic!("an invoke") };
        let order = Invoke { key: key.clone(), run_id: run_id.clone(), ..order };
        agent.handle_input(now, Input::Command(DialInCommand::Order(Box::new(Order::Invoke(order)))));
        agent.handle_input(now, said(json!({"type": "input_ack", "run_id": named.replace("evil", "acme")})));
        agent.handle_input(now, said(json!({"type": "tokens", "run_id": named})));
        let words: Vec<String> = std::iter::from_fn(|| agent.poll_output()).map(|output| describe(&output)).collect();
        assert_eq!(words.contains(&"unknown/1".to_owned()), is_alive, "{named}: {words:?}");
    }
}

/// Covers: ST-8, LN-TP6.
#[test]
fn steer_ack_is_matched_by_message_id() {
    check("INVOKE m; STEER m x; steer_ack x", "INVOKE; STEER; steered/1");
    check("INVOKE m; steer_ack x; STEER n x; done m; steer_ack x", "INVOKE; acked/1; done/1");
    // Two sessions, for example of two tenants, may have inputs with equal names.
    check(
        "INVOKE m; INVOKE n; STEER m x; STEER n x; steer_ack x; steer_ack x n; done n; steer_ack x",
        "INVOKE; INVOKE; STEER; STEER; ERROR invalid_message; steered/1; acked/1; done/1; steered/1",
    );
}

#[test]
fn resume_may_be_answered_with_unknown_run() {
    check("RESUME m; unknown m", "INVOKE; acked/1; not-known/1");
    check("INVOKE m; unknown m", "INVOKE; acked/1; error/1");
    // Events of a resumable agent must have ids.
    assert_eq!(play(true, "INVOKE m; delta m"), "INVOKE; acked/1; CANCEL; broken/1");
}

/// Covers: S-11, S-13, S-48.
#[test]
fn malformed_messages_get_errors_until_the_limit() {
    for wrong in ["raw x", "raw []", "raw {}", "raw {\"type\":1}", "hello", "raw {\"type\":\"refresh\"}"] {
        check(wrong, "ERROR invalid_message");
    }
    check("agent_invoke; later", "ERROR invalid_message; ERROR invalid_message");
    let ten = ["raw x"; limits::BAD_MESSAGES_MAX].join("; ");
    assert!(play(false, &format!("{ten}; ping")).ends_with("ERROR invalid_message; CLOSE 4400"));
    check("BINARY; ping", "CLOSE 1003");
    check("TOO-LARGE; ping", "ERROR too_large; CLOSE 4413");
    let long = format!("raw {}", "x".repeat(limits::MESSAGE_BYTES_MAX + 1));
    check(&long, "ERROR too_large; CLOSE 4413");
    check("INVOKE m; TOO-LARGE; delta m; CANCEL m", "INVOKE; ERROR too_large; CLOSE 4413");
}

/// Covers: S-03.
#[test]
fn heartbeat_write_and_expiry_timeouts_close() {
    check("+24999; +1; +25000; +10000", "PING; PING; CLOSE 1001");
    check("+50000; ALIVE; +50000", "PING; PING; PING; PING");
    check("INVOKE m; +29999; FLUSH; +10000", "INVOKE; PING");
    check("INVOKE m; ALIVE; +30000", "INVOKE; PING; CLOSE 4508");
    check("ping; LEAVE; refresh; NEEDLESS", "PONG; GO_AWAY; asks again; ERROR invalid_message");
    check("refresh; DENIED", "asks again; ERROR unauthorized; CLOSE 4401");
    check("UNTIL 1000; FLUSH; +20000; ALIVE; +6000", "REFRESHED; PING; ERROR unauthorized; CLOSE 4401");
}

#[test]
fn dial_in_machine_obeys_the_machine_laws() {
    let words = "INVOKE m; input_ack m; delta m; STEER m x; steer_ack x; CANCEL m; cancel_ack m; raw x; FLUSH; \
                 INVOKE n; AGAIN n; delta n; DROP n; ping; LEAVE; FLUSH; refresh; UNTIL 90000; done m; hello";
    let step = |(n, words): (usize, &str)| {
        let after = Duration::from_millis(if n % 3 == 0 { 4_000 } else { 1 });
        Step { after, input: Some(input(words)) }
    };
    let script: Vec<Step<Input>> = words.split("; ").enumerate().map(step).collect();
    let outputs = laws(|now| DialIn::new(now, &config(false)), &script, 4, describe);
    assert!(outputs.len() > 15, "{outputs:?}");
}

/// Covers: S-38.
#[test]
fn debug_output_contains_no_content() {
    let mut machine = DialIn::new(Now::default(), &config(false));
    let mut printed = String::new();
    for words in ["INVOKE m", "delta m", "STEER m x", "refresh", "raw canary"] {
        machine.handle_input(Now::default(), input(words));
        printed += &format!("{machine:?}");
        while let Some(output) = machine.poll_output() {
            printed += &format!("{output:?}");
        }
    }
    assert!(!printed.contains("canary"), "{printed}");
}
