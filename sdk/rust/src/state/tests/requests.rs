//! Tests of requests, their refusals, and their repeats.
use super::*;

fn refused(id: &Value, code: &str, more: Value) -> Value {
    let mut error = json!({"type": "error", "request_id": id, "code": code, "message": "no"});
    if let (Some(error), Value::Object(more)) = (error.as_object_mut(), more) {
        error.extend(more);
    }
    error
}

fn none() -> Vec<String> {
    Vec::new()
}

#[test]
fn transient_error_is_retried_in_order() {
    for code in ["too_many_pending", "store_unavailable", "rate_limited", "draining"] {
        let mut rig = Rig::new();
        rig.invoke("a");
        rig.invoke("b");
        assert_eq!(rig.hear(refused(&json!("a"), code, json!({"retry_after_ms": 1000}))), none());
        assert_eq!(rig.wait(Duration::from_millis(999)), none());
        assert_eq!(rig.wait(Duration::from_millis(1)), ["> invoke a"]);
        let accepted = json!({"type": "turn_accepted", "run_id": "s.r", "message_id": "a"});
        assert_eq!(rig.s(accepted), ["accepted a", "> invoke b"]);
    }
}

#[test]
fn retries_of_one_request_are_bounded() {
    let mut rig = Rig::new();
    rig.invoke("a");
    rig.invoke("b");
    let mut asked = 1;
    let shown = loop {
        let lines = rig.hear(refused(&json!("a"), "store_unavailable", json!({})));
        if !lines.is_empty() {
            break lines;
        }
        while rig.wait(Duration::from_secs(1)) != ["> invoke a"] {
            rig.state.handle_bytes(rig.now);
        }
        asked += 1;
        assert!(asked < 60, "it goes on for ever");
    };
    assert_eq!(shown, ["error agent_invoke store_unavailable", "> invoke b"]);
    assert!(asked >= 10, "{asked}");
}

#[test]
fn permanent_error_is_reported() {
    for code in ["busy", "session_closed", "idempotency_conflict", "invalid_message", "internal_error"] {
        let mut rig = Rig::new();
        rig.invoke("a");
        let lines = rig.hear(refused(&json!("a"), code, json!({})));
        assert_eq!(lines, [format!("error agent_invoke {code}")]);
        let Some(Event::Error(failure)) = rig.events.last() else { panic!("an error") };
        assert_eq!((failure.message_id.as_deref(), failure.session.as_deref()), (Some("a"), Some("s")));
        assert_eq!(rig.reconnect(), ["> hello []", "connected"], "not said again");
    }
}

#[test]
fn oversized_or_excess_requests_are_not_sent() {
    let mut rig = Rig::offline();
    rig.state.handle_open(rig.now);
    rig.hear(json!({"type": "welcome", "limits": {"max_message_bytes": 300}}));
    let long = rig.state.invoke(rig.now, "s", UserInput::text("x".repeat(300)));
    assert!(matches!(long, Err(ClientError::TooLarge { max: 300, .. })));
    for id in ["", "a b", "é", "a.b"] {
        let bad = rig.state.invoke(rig.now, id, UserInput::text("x"));
        assert_eq!(bad, Err(ClientError::BadName { what: "session id" }), "{id:?}");
    }
    let bad = rig.state.invoke(rig.now, "s", UserInput::text("x").message_id("a\n"));
    assert_eq!(bad, Err(ClientError::BadName { what: "message id" }));
    for n in 0..limits::INPUTS_MAX {
        rig.state.invoke(rig.now, "s", UserInput::text("x").message_id(n.to_string())).expect("room");
    }
    let full = rig.state.invoke(rig.now, "s", UserInput::text("x"));
    assert!(matches!(full, Err(ClientError::TooMany { .. })));
    let again = rig.state.invoke(rig.now, "s", UserInput::text("x").message_id("0"));
    assert_eq!(again, Ok(()), "said before");
}

#[test]
fn refused_subscription_is_retried_or_reported() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    let id = rig.last_subscribe()["request_id"].clone();
    assert_eq!(rig.hear(refused(&id, "store_unavailable", json!({"retry_after_ms": 700}))), none());
    assert_eq!(rig.wait(Duration::from_millis(700)), ["> subscribe after 0.null"]);
    let id = rig.last_subscribe()["request_id"].clone();
    assert_eq!(rig.hear(refused(&id, "not_found", json!({}))), ["error subscribe not_found"]);
    // There is no session yet; the first input creates it and subscribes.
    assert_eq!(rig.invoke("a"), ["> invoke a"]);
    rig.s(json!({"type": "turn_accepted", "run_id": "s.r", "message_id": "a"}));
    assert_eq!(rig.s(started(3)), ["started s.r@1"]);
}

#[test]
fn session_open_precedes_inputs_and_sets_the_cursor() {
    let mut rig = Rig::new();
    let open = Open { agents: vec!["echo".to_owned()], active_agent: None };
    rig.state.open(rig.now, "s", open).expect("taken");
    assert_eq!(rig.drain(), ["> session_open"]);
    let id = rig.sent[0]["request_id"].clone();
    assert_eq!(rig.invoke("a"), none(), "not before it is open");
    assert_eq!(rig.reconnect(), ["> hello []", "connected", "> session_open"]);
    let opened = json!({"type": "session_opened", "request_id": id, "seq": 1, "epoch": 4,
        "snapshot": {"session_id": "s", "seq": 1, "epoch": 4}});
    assert_eq!(rig.s(opened), ["opened", "> subscribe after 1.4"]);
    assert_eq!(rig.subscribed(1, json!({})), ["subscribed", "caught up 1", "> invoke a"]);
    let fact = json!({"type": "session_opened", "request_id": id, "seq": 2, "epoch": 4});
    assert_eq!(rig.s(fact), none(), "told by the answer");
}

/// The answer to `session_open` shows the end of a log whose facts are still to come.
#[test]
fn answer_does_not_move_the_cursor() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(5, json!({}));
    rig.state.open(rig.now, "s", Open::default()).expect("taken");
    rig.drain();
    let id = rig.sent.last().map(|message| message["request_id"].clone());
    let opened = json!({"type": "session_opened", "request_id": id, "seq": 5, "epoch": 1,
        "snapshot": {"seq": 5, "epoch": 1}});
    assert_eq!(rig.s(opened), ["opened"]);
    assert_eq!(rig.s(started(1)), ["started s.r@1"]);
}

#[test]
fn close_waits_for_earlier_inputs() {
    let mut rig = Rig::new();
    rig.invoke("a");
    rig.invoke("b");
    rig.state.close(rig.now, "s").expect("taken");
    assert_eq!(rig.drain(), none());
    let accepted = json!({"type": "turn_accepted", "run_id": "s.r", "message_id": "a"});
    assert_eq!(rig.s(accepted), ["accepted a", "> invoke b", "> session_close"]);
    let id = rig.sent.last().map(|message| message["request_id"].clone());
    let closed = json!({"type": "session_closed", "request_id": id, "seq": 7, "epoch": 1});
    assert_eq!(rig.s(closed.clone()), ["closed"]);
    assert_eq!(rig.s(closed), none());
}

#[test]
fn cancel_of_a_run_is_resent_until_the_run_ends() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    rig.subscribed(0, json!({}));
    rig.s(started(1));
    rig.state.cancel(rig.now, "s", Some("s.r".to_owned())).expect("taken");
    rig.state.cancel(rig.now, "s", None).expect("taken");
    assert_eq!(rig.drain(), ["> cancel_run", "> cancel_run"]);
    let lines = rig.reconnect();
    assert_eq!(lines[1..], ["connected", "> cancel_run"], "one without a name might hit the next turn");
    rig.subscribed(1, json!({}));
    rig.s(done(2, 0));
    assert_eq!(rig.reconnect()[1..], ["connected"]);
}

#[test]
fn refusal_of_another_request_leaves_the_subscription() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.state.cancel(rig.now, "s", Some("s.r".to_owned())).expect("taken");
    assert_eq!(rig.drain(), ["> cancel_run"]);
    let id = rig.sent.last().map(|message| message["request_id"].clone()).expect("a message");
    assert_eq!(rig.hear(refused(&id, "not_found", json!({}))), ["error cancel_run not_found"]);
    assert_eq!(rig.subscribed(0, json!({}))[0], "subscribed");
}

#[test]
fn errors_without_a_request_are_reported() {
    let mut rig = Rig::new();
    assert_eq!(rig.hear(json!({"type": "error", "code": "invalid_message"})), ["error  invalid_message"]);
    rig.hear(json!({"type": "error"}));
    for noise in ["", "[]", "{}", "{\"type\":1}", "nonsense", "{\"type\":\"delta\",\"run_id\":5}"] {
        rig.state.handle_text(rig.now, noise);
        assert_eq!(rig.drain(), none(), "{noise}");
    }
}

#[test]
fn session_is_forgotten_after_leave() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    rig.subscribed(3, json!({}));
    rig.state.leave(rig.now, "s");
    assert_eq!(rig.drain(), ["> unsubscribe"]);
    assert_eq!(rig.s(started(4)), none());
    assert_eq!(rig.reconnect(), ["> hello []", "connected"]);
}

/// Enough ends of runs are remembered that no late message is delivered twice, and no more.
#[test]
fn run_ends_are_remembered_for_a_bounded_time() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Now);
    rig.subscribed(0, json!({}));
    for n in 1..=3 * limits::ENDED_RUNS_MAX as u64 {
        let end = json!({"type": "done", "run_id": format!("s.r{n}"), "status": "completed", "text_bytes": 0,
            "seq": n, "epoch": 1});
        assert_eq!(rig.s(end).first().map(String::as_str), Some("done completed "), "{n}");
    }
    let known = rig.state.sessions["s"].ended.len();
    assert_eq!(known, limits::ENDED_RUNS_MAX);
}

/// An error that is a fact answers no request and moves the cursor like any other fact.
#[test]
fn failed_request_of_another_client_is_a_notice() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(2, json!({}));
    rig.s(started(1));
    let error = json!({"type": "error", "code": "ADD_AGENT_FAILED",
        "message": "the agent is not configured on this node", "request_id": "theirs", "seq": 2, "epoch": 1});
    assert_eq!(rig.s(error), ["note ADD_AGENT_FAILED", "caught up 2"]);
}

#[test]
fn input_refused_in_doubt_may_end_before_its_answer() {
    let mut rig = Rig::new();
    rig.subscribe(Start::Beginning);
    rig.subscribed(0, json!({}));
    rig.invoke("m");
    let later = json!({"retry_after_ms": 1000});
    assert_eq!(rig.hear(refused(&json!("m"), "store_unavailable", later)), none());
    assert_eq!(rig.wait(Duration::from_secs(1)), ["> invoke m"]);
    let message = json!({"type": "message", "content": "hi", "message_id": "m", "run_id": "s.r", "seq": 1});
    assert_eq!(rig.s(message), ["accepted m", "message hi"]);
    assert_eq!(rig.s(started(2)), ["started s.r@1"]);
    rig.hear(delta(0, "ab"));
    assert_eq!(rig.s(done(3, 2)), ["done completed ab"]);
    let again = json!({"type": "turn_accepted", "run_id": "s.r", "message_id": "m", "duplicate": true});
    assert_eq!(rig.s(again), none());
    rig.reconnect();
    assert_eq!(rig.subscribed(3, json!({})), ["subscribed", "caught up 3"], "not said again");
}
