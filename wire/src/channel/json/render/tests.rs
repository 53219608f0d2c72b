//! Rendering of notifications, one kind at a time.
use super::*;
use crate::channel::json::documented;
use crate::channel::notification::{HandoverReply, ResetReason, RunSnapshot};
use serde_json::{Value, json};
use turnway_core::id::{AgentId, EventId, MessageId};
use turnway_core::private::Private;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::handover::HandoverRejection;
use turnway_core::session::{AnswerTail, Handover, HandoverStatus};

mod facts;

const RUN: &str = "s1.abcdefghijklmnopqrstuvwxyz";

fn agent(id: &str) -> AgentId {
    AgentId::parse(id).expect("a name")
}

fn session() -> SessionId {
    SessionId::parse("s1").expect("a name")
}

fn run() -> RunId {
    RunId::parse(RUN).expect("a run")
}

fn request() -> Option<RequestId> {
    RequestId::parse("r1").ok()
}

fn texts(note: &Notification) -> Vec<Value> {
    let mut texts = Vec::new();
    render(Millis(5), "fsync", note, &mut |text| texts.push(text));
    texts.iter().map(|text| parsed(text)).collect()
}

/// Parses a message, which must be as documented.
fn parsed(text: &str) -> Value {
    let message = serde_json::from_str(text).expect("JSON");
    documented::assert_documented("to_client", &message);
    message
}

fn only(note: &Notification) -> Value {
    let texts = texts(note);
    assert_eq!(texts.len(), 1, "{texts:?}");
    texts[0].clone()
}

/// Returns the frame that every message of a run's fact has, around `body`.
fn framed(kind: &str, body: Value) -> Value {
    let mut message = json!({"type": kind, "ts": 5, "session_id": "s1", "run_id": RUN});
    for (key, value) in body.as_object().expect("an object") {
        message[key] = value.clone();
    }
    message
}

/// Returns the frame of the last or only message, with its log position.
fn placed(kind: &str, body: Value) -> Value {
    let mut message = framed(kind, body);
    (message["seq"], message["epoch"]) = (json!(9), json!(4));
    message
}

/// Returns the frame of a fact that belongs to no run.
fn of_session(kind: &str, body: Value) -> Value {
    let mut message = placed(kind, body);
    message.as_object_mut().expect("an object").remove("run_id");
    message
}

/// Covers: MP-C8, ST-23, S-38.
#[test]
fn text_is_rendered_as_deltas() {
    let delta = |kind| {
        let text = Private("hé\"\n".into());
        let chunk = TextChunk { run_id: run(), attempt: 2, offset: 7, kind, text };
        Notification::Chunk { session: session(), chunk }
    };
    let expected = framed("delta", json!({"attempt": 2, "offset": 7, "text": "hé\"\n"}));
    assert_eq!(only(&delta(TextKind::Text)), expected);
    assert_eq!(only(&delta(TextKind::Reasoning))["kind"], "reasoning");
}

fn snapshot(active: Option<AgentId>) -> Box<SessionStateSnapshot> {
    let state = "open";
    let agents = vec![agent("a")];
    let one = RunSnapshot {
        run_id: run(),
        agent_id: agent("a"),
        user: turnway_core::id::UserId::local(),
        state: "RUNNING",
        attempt: 1,
        text_bytes: 3,
    };
    let seq = Seq(9);
    let epoch = Epoch(4);
    Box::new(SessionStateSnapshot {
        session: session(),
        state,
        active_agent: active,
        agents,
        runs: vec![one],
        handover: None,
        seq,
        epoch,
    })
}

/// Covers: SR-F2, SR-F4.
#[test]
fn pending_handover_is_in_the_snapshot() {
    let id = EventId(facts::TX.parse().expect("a UUID"));
    let handover = Handover {
        id,
        run_id: run(),
        from: agent("a"),
        to: agent("b"),
        reason: Private("sums".to_owned()),
        summary: Private("2+2".to_owned()),
        deadline: Millis(9),
        joining: None,
        answer_tail: AnswerTail::default(),
    };
    let there = SessionStateSnapshot { handover: Some(Box::new(handover)), ..*snapshot(None) };
    let message = only(&Notification::Reply(CommandReply::Subscribed {
        request_id: None,
        snapshot: Box::new(there),
        reset: None,
    }));
    let prompt = json!({"run_id": RUN, "handover_id": facts::TX, "from": "a", "to": "b", "reason": "sums",
        "summary": "2+2", "deadline_ts": 9});
    assert_eq!(message["snapshot"]["pending"]["handover"], prompt);
    for (standing, state) in [
        (HandoverStatus::Open, json!({"state": "pending"})),
        (HandoverStatus::Confirmed, json!({"state": "confirmed"})),
        (HandoverStatus::Rejected(HandoverRejection::Expired), json!({"state": "rejected", "reason": "expired"})),
    ] {
        let decided = HandoverReply { request_id: request(), session: session(), handover_id: id, standing };
        let mut body = state;
        (body["handover_id"], body["request_id"]) = (facts::TX.into(), "r1".into());
        let message = only(&Notification::Reply(CommandReply::Handover(Box::new(decided))));
        body["type"] = "handover".into();
        body["session_id"] = "s1".into();
        body["ts"] = message["ts"].clone();
        assert_eq!(message, body);
    }
}

/// Covers: SR-A8, SR-H1, SR-H2, MP-A6, LN-MP16.
#[test]
fn answers_echo_their_request_id() {
    let view = json!({"session_id": "s1", "state": "open", "active_agent": "a", "agents": ["a"],
        "runs": [{"run_id": RUN, "agent_id": "a", "state": "RUNNING", "attempt": 1, "text_bytes": 3}],
        "pending": {"approvals": [], "tool_requests": []}, "seq": 9, "epoch": 4});
    let note = Notification::Reply(CommandReply::Subscribed {
        request_id: request(),
        snapshot: snapshot(Some(agent("a"))),
        reset: None,
    });
    assert_eq!(only(&note), of_session("subscribed", json!({"request_id": "r1", "snapshot": view})));
    for (reset, reason) in [(ResetReason::Trimmed { floor: Seq(4) }, "trimmed"), (ResetReason::Regressed, "regressed")]
    {
        let note = Notification::Reply(CommandReply::Subscribed {
            request_id: None,
            snapshot: snapshot(None),
            reset: Some(reset),
        });
        let message = only(&note);
        assert_eq!((&message["reset"], &message["reason"]), (&json!(true), &json!(reason)));
        assert_eq!(message["snapshot"]["active_agent"], Value::Null);
    }
    let note =
        Notification::Reply(CommandReply::Opened { request_id: request(), snapshot: snapshot(Some(agent("a"))) });
    let body = json!({"request_id": "r1", "agents": ["a"], "active_agent": "a", "snapshot": view});
    let mut opened = of_session("session_opened", body);
    // The snapshot may be ahead of what the link has been shown, so the message has no log position of its own.
    opened.as_object_mut().expect("an object").retain(|key, _| key != "seq" && key != "epoch");
    assert_eq!(only(&note), opened);
    let note = Notification::Reply(CommandReply::Performed {
        kind: "session_closed",
        request_id: request(),
        session: session(),
    });
    assert_eq!(only(&note), json!({"type": "session_closed", "ts": 5, "request_id": "r1", "session_id": "s1"}));
    let message_id = MessageId::parse("m1").expect("a name");
    let accepted =
        AcceptedTurn { request_id: request(), session: session(), run_id: run(), message_id, duplicate: true };
    let body = json!({"request_id": "r1", "turn_id": RUN, "message_id": "m1", "duplicate": true,
        "durability": "fsync"});
    assert_eq!(
        only(&Notification::Reply(CommandReply::TurnAccepted(Box::new(accepted)))),
        framed("turn_accepted", body)
    );
}

/// Covers: MP-C12, LN-MP7, S-46.
#[test]
fn refusals_and_link_messages_are_rendered() {
    let refusal = Refusal::new(Code::TooManyPending, "wait").retry_after(Duration::from_secs(2));
    let note = Notification::Reply(CommandReply::Refused {
        request_id: request(),
        session: Some(session()),
        run_id: Some(run()),
        refusal: refusal.clone(),
    });
    let body = json!({"request_id": "r1", "code": "too_many_pending", "message": "wait", "retryable": true,
        "retry_after_ms": 2000});
    assert_eq!(only(&note), framed("error", body));
    let bare = Notification::Reply(CommandReply::Refused {
        request_id: None,
        session: None,
        run_id: None,
        refusal: Refusal::not_found(),
    });
    assert!(only(&bare).get("session_id").is_none() && only(&bare).get("retry_after_ms").is_none());
    let away =
        Notification::GoAway { reason: "drain", within: Duration::from_secs(10), jitter: Duration::from_secs(3) };
    let expected =
        json!({"type": "go_away", "ts": 5, "reason": "drain", "reconnect_within_ms": 10000, "jitter_ms": 3000});
    assert_eq!(only(&away), expected);
    assert_eq!(pong(Millis(5), &request()), r#"{"type":"pong","ts":5,"request_id":"r1"}"#);
    parsed(&pong(Millis(5), &request()));
    let renewed = refreshed(Millis(5), &request(), Millis(9));
    parsed(&renewed);
    assert_eq!(renewed, r#"{"type":"refreshed","ts":5,"request_id":"r1","expires_ts":9}"#);
    let hello = welcome(Millis(5), NodeId(10), "c1", Duration::from_secs(25), 0, Some(Millis(9)));
    let hello = parsed(&hello);
    assert_eq!(hello["node_id"], "0000000000000000000000000000000a");
    assert_eq!((&hello["protocol"], &hello["connection_id"]), (&json!("turnway.v1"), &json!("c1")));
    assert_eq!(hello["limits"]["max_message_bytes"], 65536);
    assert_eq!((&hello["heartbeat_ms"], &hello["resume_window_ms"]), (&json!(25000), &json!(0)));
    assert_eq!(hello["expires_ts"], 9);
    let text = parsed(&render_error(Millis(5), &None, &refusal));
    assert_eq!((&text["type"], &text["code"]), (&json!("error"), &json!("too_many_pending")));
}
