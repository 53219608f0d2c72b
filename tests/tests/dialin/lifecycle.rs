//! Orders and events of dial-in agents, and turns whose connection ends.
use crate::{
    connect_agent, connect_user, next_order, node, run_end, send, start_turn, until_connections, until_message,
};
use serde_json::{Value, json};
use turnway_core::limits;
use turnway_tests::real::http;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};

/// Covers: LN-SR1, SR-K1, MP-D15.
#[tokio::test]
async fn turn_is_sent_to_the_agent_and_its_answer_to_the_user() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    until_connections(&node, 1).await;
    let run = start_turn(&mut ann, "s1", "héllo").await;
    let invoke = next_order(&mut agent, "invoke").await;
    assert_eq!(
        (&invoke["run_id"], &invoke["session_id"], &invoke["agent_id"], &invoke["attempt"]),
        (&json!(run), &json!("s1"), &json!("a"), &json!(1))
    );
    assert_eq!(invoke["input_message"], json!({"role": "user", "content": "héllo"}));
    assert_eq!(invoke["context"], json!({"tenant": "default", "user_id": "ann"}));
    assert!(invoke["epoch"].is_u64() && invoke["ts"].is_u64(), "{invoke}");
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &run, |message| message["name"] == "AGENT_STARTED").await;
    send(&mut agent, &invoke, "state", json!({"state": "thinking", "detail": {"n": 1}})).await;
    let state =
        until_message(&mut ann, &run, |message| message["type"] == "state" && message["scope"] == "agent").await;
    assert_eq!((&state["state"], &state["detail"]), (&json!("thinking"), &json!({"n": 1})));
    for text in ["wörld", " 語"] {
        send(&mut agent, &invoke, "delta", json!({"text": text, "attempt": 1})).await;
    }
    send(&mut agent, &invoke, "done", json!({"usage": {"tokens": 2}, "stop_reason": "max_tokens"})).await;
    let (text, done) = run_end(&mut ann, &run).await;
    assert_eq!((text.as_str(), &done["status"]), ("wörld 語", &json!("completed")));
    assert_eq!((&done["stop_reason"], &done["usage"]), (&json!("max_tokens"), &json!({"tokens": 2})));
    // The next turn ends with the agent's own error.
    let run = start_turn(&mut ann, "s1", "again").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "error", json!({"code": "quota", "message": "come back"})).await;
    let error = until_message(&mut ann, &run, |message| message["type"] == "error").await;
    assert_eq!((&error["code"], &error["detail"]["agent_code"]), (&json!("agent_error"), &json!("quota")));
    assert_eq!(run_end(&mut ann, &run).await.1["status"], "failed");
    agent.say(json!({"type": "ping", "request_id": "p"})).await.expect("said");
    assert_eq!(next_order(&mut agent, "pong").await["request_id"], "p");
    let (_, page) = http::get(node.http, "/v1/agents").await.expect("it answers");
    let page: Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!((&page["agents"][0]["kind"], &page["agents"][0]["healthy"]), (&json!("dial_in"), &json!(true)));
    drop(agent);
    until_connections(&node, 0).await;
}

/// Covers: SR-K2, SR-C7.
#[tokio::test]
async fn cancel_waits_for_the_agents_acknowledgement() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "long").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "delta", json!({"text": "so far"})).await;
    until_message(&mut ann, &run, |message| message["type"] == "delta").await;
    ann.say(json!({"type": "cancel_run", "run_id": run})).await.expect("said");
    let cancel = next_order(&mut agent, "cancel").await;
    assert_eq!((&cancel["run_id"], &cancel["attempt"]), (&json!(run), &json!(1)));
    // Text that was under way before the acknowledgement is no violation.
    send(&mut agent, &invoke, "delta", json!({"text": "!"})).await;
    send(&mut agent, &invoke, "cancel_ack", json!({})).await;
    let (_, done) = run_end(&mut ann, &run).await;
    assert_eq!((&done["status"], &done["text_bytes"]), (&json!("cancelled"), &json!(6)), "{done}");
    agent.say(json!({"type": "ping"})).await.expect("said");
    next_order(&mut agent, "pong").await;

    // An agent that never acknowledges gets the cancel, and the wait for the acknowledgement times out.
    let run = start_turn(&mut ann, "s1", "deaf").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &run, |message| message["name"] == "AGENT_STARTED").await;
    ann.say(json!({"type": "cancel_run", "run_id": run})).await.expect("said");
    next_order(&mut agent, "cancel").await;
    let error = until_message(&mut ann, &run, |message| message["type"] == "error").await;
    assert_eq!(error["code"], "CANCEL_TIMEOUT");
    assert_eq!(run_end(&mut ann, &run).await.1["status"], "cancelled");
    // Late events of the run are ignored, and the connection stays open.
    for kind in ["delta", "done", "cancel_ack"] {
        send(&mut agent, &invoke, kind, json!({"text": "late"})).await;
    }
    agent.say(json!({"type": "ping"})).await.expect("said");
    next_order(&mut agent, "pong").await;
}

/// Covers: SR-K2.
#[tokio::test]
async fn cancel_without_capability_ends_the_run_at_once() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({"cancel": false})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "long").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &run, |message| message["name"] == "AGENT_STARTED").await;
    ann.say(json!({"type": "cancel_run", "run_id": run})).await.expect("said");
    next_order(&mut agent, "cancel").await;
    let (_, done) = run_end(&mut ann, &run).await;
    assert_eq!((&done["status"], &done["stop_reason"]), (&json!("cancelled"), &json!("cancelled")));
}

/// Covers: ST-7, ST-8.
#[tokio::test]
async fn input_during_a_run_is_steered_to_the_agent() {
    let (node, _dir) = node(",steer=true").await;
    let mut agent = connect_agent(&node, json!({"steer": true})).await;
    let mut ann = connect_user(&node).await;
    let host = start_turn(&mut ann, "s1", "first").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &host, |message| message["name"] == "AGENT_STARTED").await;
    let taken = start_turn(&mut ann, "s1", "more").await;
    let steer = next_order(&mut agent, "steer").await;
    assert_eq!(steer["message"], json!({"role": "user", "content": "more"}));
    assert_eq!((&steer["run_id"], &steer["turn_id"]), (&json!(host), &json!(taken)));
    // The acknowledgement names the message alone.
    let ack = json!({"type": "steer_ack", "message_id": steer["message_id"], "outcome": "accepted"});
    agent.say(ack).await.expect("said");
    let left = start_turn(&mut ann, "s1", "other").await;
    let steer = next_order(&mut agent, "steer").await;
    send(&mut agent, &steer, "steer_ack", json!({"message_id": steer["message_id"], "outcome": "refused"})).await;
    send(&mut agent, &invoke, "done", json!({})).await;
    let first = until_message(&mut ann, &taken, |message| message["type"] == "done").await;
    assert_eq!((&first["stop_reason"], &first["host_run_id"]), (&json!("steered"), &json!(host)));
    // The refused input is the next turn.
    let next = next_order(&mut agent, "invoke").await;
    assert_eq!((&next["run_id"], &next["input_message"]["content"]), (&json!(left), &json!("other")));
}

/// Covers: ST-8.
#[tokio::test]
async fn connection_without_steer_capability_refuses_it() {
    let (node, _dir) = node(",steer=true").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let host = start_turn(&mut ann, "s1", "first").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &host, |message| message["name"] == "AGENT_STARTED").await;
    let left = start_turn(&mut ann, "s1", "more").await;
    until_message(&mut ann, &left, |message| message["outcome"] == "refused").await;
    send(&mut agent, &invoke, "done", json!({})).await;
    assert_eq!(next_order(&mut agent, "invoke").await["run_id"], json!(left));
}

/// Covers: G3, SR-I1: another connection takes over where the agent may be asked again, at once.
#[tokio::test]
async fn lost_attempt_is_retried_at_another_connection() {
    let (node, _dir) = node(",on_owner_loss=retry").await;
    let mut one = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoke = next_order(&mut one, "invoke").await;
    send(&mut one, &invoke, "delta", json!({"text": "from the first"})).await;
    until_message(&mut ann, &run, |message| message["type"] == "delta").await;
    let mut two = connect_agent(&node, json!({})).await;
    drop(one);
    let invoke = next_order(&mut two, "invoke").await;
    assert_eq!((&invoke["run_id"], &invoke["attempt"]), (&json!(run), &json!(2)));
    let again = until_message(&mut ann, &run, |message| message["name"] == "RUN_RESTARTED").await;
    assert_eq!((&again["reason"], &again["attempt"]), (&json!("agent_lost"), &json!(2)));
    send(&mut two, &invoke, "delta", json!({"text": "from the second"})).await;
    send(&mut two, &invoke, "done", json!({})).await;
    let (text, done) = run_end(&mut ann, &run).await;
    assert_eq!((text.as_str(), &done["status"]), ("from the second", &json!("completed")));
}

/// Covers: G3, RX-2, BD-I7.
#[tokio::test]
async fn run_that_must_not_be_retried_fails_with_its_connection() {
    let (node, _dir) = node("").await;
    let mut one = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let silent = start_turn(&mut ann, "s1", "silent").await;
    let spoken = start_turn(&mut ann, "s2", "spoken").await;
    let mut orders = [next_order(&mut one, "invoke").await, next_order(&mut one, "invoke").await];
    orders.sort_by_key(|order| order["run_id"] != silent);
    send(&mut one, &orders[1], "delta", json!({"text": "he"})).await;
    until_message(&mut ann, &spoken, |message| message["type"] == "delta").await;
    drop(one);
    // `retry_if_silent`: the run whose text was delivered fails, and the run without text is retried.
    let error = until_message(&mut ann, &spoken, |message| message["type"] == "error").await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("agent_unavailable"), &json!(true)));
    let mut two = connect_agent(&node, json!({})).await;
    let invoke = next_order(&mut two, "invoke").await;
    assert_eq!((&invoke["run_id"], &invoke["attempt"]), (&json!(silent), &json!(2)));
    send(&mut two, &invoke, "done", json!({})).await;
    assert_eq!(until_message(&mut ann, &silent, |message| message["type"] == "done").await["status"], "completed");
}

/// Covers: G3: three connections that were lost over a turn are enough.
#[tokio::test]
async fn turn_fails_after_three_lost_connections() {
    let (node, _dir) = node(",on_owner_loss=retry").await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    for attempt in 1..=3 {
        let mut agent = connect_agent(&node, json!({})).await;
        assert_eq!(next_order(&mut agent, "invoke").await["attempt"], attempt);
    }
    let error = until_message(&mut ann, &run, |message| message["type"] == "error").await;
    assert_eq!(error["code"], "agent_unavailable");
    assert_eq!(run_end(&mut ann, &run).await.1["attempt"], 3);
}

/// Covers: MP-D15.
#[tokio::test]
async fn missing_agent_is_awaited_then_unavailable() {
    let (node, _dir) = node("").await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "anybody?").await;
    let error = until_message(&mut ann, &run, |message| message["type"] == "error").await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("agent_unavailable"), &json!(true)));
    // An agent that connects while a run waits gets the run.
    let run = start_turn(&mut ann, "s1", "and now?").await;
    until_message(&mut ann, &run, |message| message["type"] == "run_started").await;
    let mut agent = connect_agent(&node, json!({})).await;
    assert_eq!(next_order(&mut agent, "invoke").await["run_id"], json!(run));
}

/// Covers: G3, G6: the same attempt goes on at another connection, no byte twice.
#[tokio::test]
async fn answer_resumes_at_the_byte_on_another_connection() {
    let (node, _dir) = node(",on_owner_loss=resume").await;
    let refused = WebSocketClient::open(node.http).await.expect("it connects");
    assert_eq!(forbidden(refused, json!({})).await, ConnectionEnd::Closed(4403), "it cannot resume");
    let mut one = connect_agent(&node, json!({"resume": true})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoke = next_order(&mut one, "invoke").await;
    assert!(invoke.get("resume").is_none(), "{invoke}");
    send(&mut one, &invoke, "delta", json!({"text": "one ", "id": "e1"})).await;
    send(&mut one, &invoke, "delta", json!({"text": "two ", "id": "e2"})).await;
    until_message(&mut ann, &run, |message| message["offset"] == 4).await;
    drop(one);
    let mut two = connect_agent(&node, json!({"resume": true})).await;
    let invoke = next_order(&mut two, "invoke").await;
    assert_eq!((&invoke["attempt"], &invoke["resume"]), (&json!(1), &json!({"last_event_id": "e2"})));
    until_message(&mut ann, &run, |message| message["name"] == "RUN_RESUMED").await;
    send(&mut two, &invoke, "delta", json!({"text": "three", "id": "e3"})).await;
    let delta = until_message(&mut ann, &run, |message| message["type"] == "delta").await;
    assert_eq!((&delta["offset"], &delta["text"], &delta["attempt"]), (&json!(8), &json!("three"), &json!(1)));
    drop(two);
    // The agent's next process does not know the run, so text that was delivered cannot be continued.
    let mut three = connect_agent(&node, json!({"resume": true})).await;
    let invoke = next_order(&mut three, "invoke").await;
    send(&mut three, &invoke, "error", json!({"code": "unknown_run"})).await;
    let error = until_message(&mut ann, &run, |message| message["type"] == "error").await;
    assert_eq!(error["code"], "owner_lost");
}

/// Reads to the close of a connection whose hello is forbidden.
pub(crate) async fn forbidden(wire: WebSocketClient, more: Value) -> ConnectionEnd {
    refused(wire, more, "forbidden").await
}

/// Reads to the close of a connection that is refused with this code.
pub(crate) async fn refused(mut wire: WebSocketClient, more: Value, code: &str) -> ConnectionEnd {
    wire.say(crate::hello(&more)).await.expect("said");
    let error = wire.next().await.expect("an answer");
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!(code)), "{error}");
    wire.until(|_| false).await.expect_err("it is closed")
}

/// Covers: MP-B13.
#[tokio::test]
async fn leaving_node_sends_go_away_and_lets_runs_end() {
    let (mut node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    until_message(&mut ann, &run, |message| message["name"] == "AGENT_STARTED").await;
    node.signal("-TERM").await;
    next_order(&mut agent, "go_away").await;
    send(&mut agent, &invoke, "delta", json!({"text": "to the end"})).await;
    send(&mut agent, &invoke, "done", json!({})).await;
    assert_eq!(run_end(&mut ann, &run).await.0, "to the end");
    assert_eq!(agent.next().await, Err(ConnectionEnd::Closed(4503)));
    assert_eq!(node.exit().await, Some(0));
}

/// Frees the slot of each ended run, so that one connection can serve more runs than it may have at a time.
///
/// Covers: SR-K1, G8.
#[tokio::test]
async fn ended_runs_free_their_slots() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    until_connections(&node, 1).await;
    for n in 0..limits::DIALIN_RUNS_MAX + 2 {
        let run = start_turn(&mut ann, "s1", &n.to_string()).await;
        let invoke = next_order(&mut agent, "invoke").await;
        send(&mut agent, &invoke, "done", json!({})).await;
        assert_eq!(run_end(&mut ann, &run).await.1["status"], "completed", "{n}");
    }
}
