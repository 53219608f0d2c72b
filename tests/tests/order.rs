//! Tests pipelined requests: a client sends requests without waiting, and requests behind `session_open` find the
//! opened session.
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Notify;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::WebSocketClient;

/// Connections per test; the race was seen in every second connection.
const CONNECTIONS: usize = 20;

async fn write_all(wire: &mut WebSocketClient, messages: impl IntoIterator<Item = Value>) {
    for message in messages {
        wire.say(message).await.expect("it takes it");
    }
}

fn invoke(session: &str, id: &str, text: &str) -> Value {
    json!({"type": "agent_invoke", "request_id": id, "session_id": session, "agent_id": "echo",
        "message": {"content": text}})
}

/// Reads until every one of these requests is answered; returns the requests in the order of their answers.
async fn answers(wire: &mut WebSocketClient, requests: &[&str]) -> Vec<(String, String)> {
    let mut answered = Vec::new();
    while answered.len() < requests.len() {
        let message = wire.next().await.expect("a message");
        let kind = message["type"].as_str().expect("a type");
        let kinds = ["session_opened", "session_closed", "subscribed", "turn_accepted", "members", "error", "pong"];
        let is_fact = message.get("seq").is_some() && kind != "subscribed";
        if let Some(id) = message["request_id"].as_str().filter(|_| kinds.contains(&kind) && !is_fact) {
            answered.push((id.to_owned(), kind.to_owned()));
        }
    }
    answered
}

async fn pipelined_on(node: &Node, connection: usize) {
    let session = format!("p{connection}");
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    write_all(
        &mut wire,
        [
            json!({"type": "session_open", "session_id": session, "request_id": "open"}),
            json!({"type": "subscribe", "session_id": session, "after_seq": 0, "request_id": "subscribe"}),
            invoke(&session, "m", "one two"),
        ],
    )
    .await;
    let mut answered = Vec::new();
    let mut seq = 0;
    loop {
        let message = wire.next().await.expect("a message");
        let kind = message["type"].as_str().expect("a type").to_owned();
        assert_ne!(kind, "error", "{message}");
        if let Some(at) = message["seq"].as_u64().filter(|_| kind != "subscribed") {
            assert!(at > seq, "{message} after {seq}");
            seq = at;
        }
        if ["session_opened", "subscribed", "turn_accepted"].contains(&kind.as_str()) && message.get("seq").is_none()
            || kind == "subscribed"
        {
            answered.push(kind.clone());
        }
        if kind == "done" {
            break;
        }
    }
    assert_eq!(answered, ["session_opened", "subscribed", "turn_accepted"]);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let dir = tempfile::tempdir().expect("a directory");
    for store in ["memory:".to_owned(), format!("embedded:{}", dir.path().join("data").display())] {
        let mut node = Node::start_on(&store, dir.path(), &["--demo"]).await;
        for connection in 0..CONNECTIONS {
            pipelined_on(&node, connection).await;
        }
        node.terminate().await;
    }
}

#[tokio::test]
async fn pipelined_requests_in_a_fleet_are_answered_in_order() {
    let data = tempfile::tempdir().expect("a directory");
    let redis = Redis::start(data.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let one = tempfile::tempdir().expect("a directory");
    let two = tempfile::tempdir().expect("a directory");
    let owner = Node::start_on(&redis.url(), one.path(), &["--demo"]).await;
    let other = Node::start_on(&redis.url(), two.path(), &["--demo"]).await;
    for connection in 0..CONNECTIONS {
        pipelined_on(if connection % 2 == 0 { &owner } else { &other }, connection).await;
    }
}

/// A cancel does not wait for the run that it ends, and requests for other sessions do not wait for this session.
#[tokio::test]
async fn cancel_and_other_sessions_overtake_a_waiting_close() {
    let dir = tempfile::tempdir().expect("a directory");
    let release = Arc::new(Notify::new());
    let released = Arc::clone(&release);
    // Its run does not end when the close cancels it, but when the test lets it.
    let agents = Agents::start(move |_| {
        let released = Arc::clone(&released);
        Reply::speak(move |stream| async move {
            stream.delta("words").await?;
            released.notified().await;
            stream.done().await
        })
    })
    .await;
    let slow = format!("{},cancel=true", agents.flag("slow"));
    let node = Node::start(dir.path(), &["--agent", &slow]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    wire.say(json!({"type": "agent_invoke", "session_id": "s", "agent_id": "slow", "message": {"content": "hi"}}))
        .await
        .expect("it takes it");
    wire.until(|message| message["type"] == "delta").await.expect("it speaks");
    // `session_close` waits for the end of the open run, and later requests for the same session wait for the
    // close.
    write_all(
        &mut wire,
        [
            json!({"type": "session_close", "session_id": "s", "request_id": "close"}),
            json!({"type": "session_open", "session_id": "s", "request_id": "open"}),
            json!({"type": "session_open", "session_id": "t", "request_id": "other"}),
            json!({"type": "ping", "request_id": "ping"}),
            json!({"type": "cancel_run", "session_id": "s", "request_id": "cancel"}),
        ],
    )
    .await;
    let mut overtaking = answers(&mut wire, &["other", "ping"]).await;
    overtaking.sort();
    let expected = [("other", "session_opened"), ("ping", "pong")].map(|(id, kind)| (id.to_owned(), kind.to_owned()));
    assert_eq!(overtaking, expected);
    release.notify_one();
    wire.until(|message| message["type"] == "done").await.expect("it ends");
    assert_eq!(answers(&mut wire, &["open"]).await, [("open".to_owned(), "session_opened".to_owned())]);
}
