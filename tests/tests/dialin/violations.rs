//! Dial-in connections that violate the protocol: their messages about foreign runs are ignored, and only
//! their own runs end.
use crate::{
    connect_agent, connect_user, next_order, node, run_end, send, start_turn, until_connections, until_message,
};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// Covers: G7, S-13.
#[tokio::test]
async fn messages_about_foreign_runs_are_ignored_and_close_4400() {
    let (node, _dir) = node("").await;
    let mut honest = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoked = next_order(&mut honest, "invoke").await;
    let mut liar = connect_agent(&node, json!({})).await;
    for kind in ["input_ack", "delta", "state", "done", "error"] {
        send(&mut liar, &invoked, kind, json!({"text": "lies", "state": "lies"})).await;
        let error = next_order(&mut liar, "error").await;
        assert_eq!(error["code"], "invalid_message", "{kind}: {error}");
    }
    // Acknowledgements may cross the end of a run and are no violation.
    for kind in ["cancel_ack", "steer_ack"] {
        send(&mut liar, &invoked, kind, json!({"message_id": "m", "outcome": "accepted"})).await;
    }
    for _ in 5..10 {
        send(&mut liar, &invoked, "done", json!({})).await;
    }
    let gone = liar.until(|_| false).await.expect_err("it is closed");
    assert_eq!(gone, ConnectionEnd::Closed(4400));
    send(&mut honest, &invoked, "delta", json!({"text": "the truth"})).await;
    send(&mut honest, &invoked, "done", json!({})).await;
    let (text, done) = run_end(&mut ann, &run).await;
    assert_eq!((text.as_str(), &done["status"]), ("the truth", &json!("completed")));
}

/// Covers: G3.
#[tokio::test]
async fn repeated_done_is_ignored_and_ten_close_4400() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoked = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoked, "delta", json!({"text": "all"})).await;
    for _ in 0..11 {
        send(&mut agent, &invoked, "done", json!({})).await;
    }
    let (text, done) = run_end(&mut ann, &run).await;
    assert_eq!((text.as_str(), &done["status"], &done["text_bytes"]), ("all", &json!("completed"), &json!(3)));
    let gone = agent.until(|_| false).await.expect_err("it is closed");
    assert_eq!(gone, ConnectionEnd::Closed(4400));
    // The session continues at the next connection.
    let mut agent = connect_agent(&node, json!({})).await;
    let run = start_turn(&mut ann, "s1", "again").await;
    let invoked = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoked, "done", json!({})).await;
    assert_eq!(run_end(&mut ann, &run).await.1["status"], "completed");
}

/// Covers: S-11, S-48.
#[tokio::test]
async fn oversized_message_closes_and_keeps_earlier_text() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "hello").await;
    let invoked = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoked, "delta", json!({"text": "before"})).await;
    send(&mut agent, &invoked, "delta", json!({"text": "x".repeat(70_000)})).await;
    let gone = agent.until(|_| false).await.expect_err("it is closed");
    assert_eq!(gone, ConnectionEnd::Closed(4413));
    let (text, done) = run_end(&mut ann, &run).await;
    assert_eq!((text.as_str(), &done["status"], &done["text_bytes"]), ("before", &json!("failed"), &json!(6)));
}

/// Covers: S-13, S-48: of one run, and only of that.
#[tokio::test]
async fn malformed_event_fails_only_its_run() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    for (n, (kind, wrong, code)) in [
        ("delta", json!({"text": 3}), "agent_error"),
        ("delta", json!({}), "agent_error"),
        ("state", json!({"state": "a\u{0}b"}), "agent_error"),
        ("state", json!({"state": "x", "detail": "y".repeat(17_000)}), "too_large"),
        ("done", json!({"usage": "y".repeat(17_000)}), "too_large"),
    ]
    .into_iter()
    .enumerate()
    {
        let run = start_turn(&mut ann, "s1", &format!("turn {n}")).await;
        let invoked = next_order(&mut agent, "invoke").await;
        send(&mut agent, &invoked, kind, wrong.clone()).await;
        // The agent gets a cancel, since the run has not ended for the agent.
        assert_eq!(next_order(&mut agent, "cancel").await["run_id"], json!(run));
        let error = until_message(&mut ann, &run, |message| message["type"] == "error").await;
        assert_eq!(error["code"], code, "{kind} {wrong}");
        run_end(&mut ann, &run).await;
    }
}

/// Covers: S-11, S-13, MP-A6.
#[tokio::test]
async fn malformed_messages_get_errors_and_the_tenth_closes() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    for wrong in ["x", "[]", "{}", r#"["delta"]"#, r#"{"type":7}"#, r#"{"type":"delta"}"#, r#"{"type":"refresh"}"#] {
        agent.frame(Message::text(wrong)).await.expect("sent");
        assert_eq!(next_order(&mut agent, "error").await["code"], "invalid_message", "{wrong}");
    }
    // A client's messages and unknown types do not count as violations.
    for _ in 0..20 {
        agent.say(invoke("s1", "echo", "x")).await.expect("said");
        assert_eq!(next_order(&mut agent, "error").await["code"], "invalid_message");
    }
    for _ in 7..10 {
        agent.say(json!({"type": "hello"})).await.expect("said");
    }
    assert_eq!(agent.until(|_| false).await.expect_err("closed"), ConnectionEnd::Closed(4400));
    let mut agent = connect_agent(&node, json!({})).await;
    agent.frame(Message::binary(vec![1])).await.expect("sent");
    assert_eq!(agent.until(|_| false).await.expect_err("closed"), ConnectionEnd::Closed(1003));
    until_connections(&node, 0).await;
}

/// Refuses one connection more than the maximum of an agent.
#[tokio::test]
async fn connections_over_the_agent_limit_are_refused() {
    let (node, _dir) = node("").await;
    let mut all: Vec<WebSocketClient> = Vec::new();
    for _ in 0..turnway_core::limits::DIALIN_CONNECTIONS_MAX {
        all.push(connect_agent(&node, json!({})).await);
    }
    let one_more = WebSocketClient::open(node.http).await.expect("it connects");
    assert_eq!(crate::lifecycle::refused(one_more, json!({}), "rate_limited").await, ConnectionEnd::Closed(4429));
    all.pop();
    until_connections(&node, turnway_core::limits::DIALIN_CONNECTIONS_MAX - 1).await;
    connect_agent(&node, json!({})).await;
}
