//! Messages of conversations whose session was closed or deleted.
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;

/// Returns the types of the facts in a session's log that match a pattern, in order.
async fn facts(node: &Node, session: &str, types: &str) -> Vec<String> {
    let path = format!("/v1/sessions/{session}/events?types={types}&limit=500");
    let page = Web::new(node.http, None).json(&path).await;
    let events = page["events"].as_array().expect("events").iter();
    events.map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Brings a message and has its answer sent; returns the receipt.
async fn talk(adapter: &mut TestAdapter, id: &str) -> Value {
    let accepted = adapter.bring_message("lobby", id, &format!("say {id}")).await;
    assert_eq!((&accepted["disposition"], &accepted["duplicate"]), (&json!("run"), &json!(false)), "{accepted}");
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], id, "{part}");
    assert!(part["text"].as_str().is_some_and(|text| text.contains(&format!("say {id}"))), "{part}");
    adapter.confirm(&part, &format!("x-{id}")).await;
    accepted
}

async fn close(adapter: &mut TestAdapter, session: &str) {
    let closed = adapter.client.ask("c", json!({"type": "session_close", "session_id": session})).await;
    let closed = closed.expect("an answer");
    assert_eq!(closed["type"], "session_closed", "{closed}");
}

async fn next_message_reopens(store: &str, dir: &TempDir) {
    let mut node = Node::start_on(store, dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let first = talk(&mut adapter, "m1").await;
    let session = first["session_id"].as_str().expect("a session").to_owned();
    await_recorded(&node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    close(&mut adapter, &session).await;
    let repeated = adapter.bring_message("lobby", "m1", "say m1").await;
    assert_eq!((&repeated["duplicate"], &repeated["run_id"]), (&json!(true), &first["run_id"]), "{repeated}");
    assert_eq!(facts(&node, &session, "session.*").await.last().map(String::as_str), Some("session.closed"));
    let second = talk(&mut adapter, "m2").await;
    assert_eq!(second["session_id"], session.as_str(), "{second}");
    // An accepted message survives a crash right after the receipt, and is not accepted twice.
    close(&mut adapter, &session).await;
    let third = adapter.bring_message("lobby", "m3", "say m3").await;
    assert_eq!((&third["disposition"], &third["duplicate"]), (&json!("run"), &json!(false)), "{third}");
    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], "m3", "{part}");
    adapter.confirm(&part, "x-m3").await;
    let again = adapter.bring_message("lobby", "m3", "say m3").await;
    assert_eq!((&again["duplicate"], &again["run_id"]), (&json!(true), &third["run_id"]), "{again}");
    let opened = facts(&node, &session, "session.opened,session.closed").await;
    let open = "session.opened";
    let closed = "session.closed";
    assert_eq!(opened, [open, closed, open, closed, open]);
    assert_eq!(facts(&node, &session, "user.message").await.len(), 3);
}

/// Covers: BD-I4, BR-26.
#[tokio::test]
async fn next_message_reopens_a_closed_session_embedded() {
    let dir = tempdir().expect("a directory");
    next_message_reopens(&format!("embedded:{}", dir.path().join("data").display()), &dir).await;
}

/// Covers: BD-I4, BR-26.
#[tokio::test]
async fn next_message_reopens_a_closed_session_redis() {
    let dir = tempdir().expect("a directory");
    let server = tempdir().expect("a directory");
    let redis = Redis::start(server.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    next_message_reopens(&redis.url(), &dir).await;
}

/// Covers: BD-I4.
#[tokio::test]
async fn messages_at_once_reopen_a_session_once() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let first = talk(&mut adapter, "m0").await;
    let session = first["session_id"].as_str().expect("a session").to_owned();
    close(&mut adapter, &session).await;
    let ids = ["m1", "m2", "m3", "m4", "m5"];
    for id in ids {
        let message = adapter.message("lobby", id, "hello");
        adapter.client.say(message).await.expect("it is sent");
    }
    let mut answered = BTreeSet::new();
    while answered.len() < ids.len() {
        let message = adapter.next().await;
        if message["type"] == "inbound_accepted" {
            assert_eq!((&message["disposition"], &message["duplicate"]), (&json!("run"), &json!(false)), "{message}");
            answered.insert(message["request_id"].as_str().expect("an id").to_owned());
        }
        assert_ne!(message["type"], "error", "{message}");
    }
    let mut replies = BTreeSet::new();
    while replies.len() < ids.len() {
        let part = adapter.next_part().await;
        assert!(replies.insert(part["reply_to"].as_str().expect("an id").to_owned()), "answered twice: {part}");
        adapter.confirm(&part, "x").await;
    }
    assert_eq!(answered, replies);
    assert_eq!(facts(&node, &session, "session.opened").await.len(), 2);
}

/// Covers: BD-I4.
#[tokio::test]
async fn message_of_a_deleted_session_is_refused_as_its_open_is() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let first = talk(&mut adapter, "m1").await;
    let session = first["session_id"].as_str().expect("a session").to_owned();
    await_recorded(&node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    let deleted = Web::new(node.http, None).ask("DELETE", &format!("/v1/sessions/{session}"), &[], "").await;
    assert_eq!(deleted.status, 204, "{}", deleted.text);
    let open = adapter.client.ask("o", json!({"type": "session_open", "session_id": session})).await;
    let open = open.expect("an answer");
    for id in ["m1", "m2"] {
        let refused = adapter.bring_message("lobby", id, "hello?").await;
        assert_eq!((&refused["type"], &refused["code"]), (&open["type"], &open["code"]), "{refused}");
        assert_eq!((&refused["code"], &refused["retryable"]), (&json!("not_found"), &json!(false)), "{refused}");
        assert!(refused["message"].as_str().is_some_and(|why| why.contains("deleted")), "{refused}");
    }
    // Bound to another session, the conversation goes on.
    let mut operator = super::WebSocketClient::open(node.http).await.expect("a connection");
    operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    operator.ask("o", json!({"type": "session_open", "session_id": "s2"})).await.expect("an answer");
    let bind = json!({"type": "bind", "session_id": "s2", "conversation": adapter.place("lobby")});
    let bound = operator.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
    let accepted = talk(&mut adapter, "m3").await;
    assert_eq!(accepted["session_id"], "s2", "{accepted}");
}
