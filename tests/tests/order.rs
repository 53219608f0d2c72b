//! Requests that a client writes without waiting: each connection's requests about one session are answered in order.
use serde_json::{Value, json};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::Wire;

/// Connections that a test opens: the race was seen in every second one.
const CONNECTIONS: usize = 20;

async fn write_all(wire: &mut Wire, messages: impl IntoIterator<Item = Value>) {
    for message in messages {
        wire.say(message).await.expect("it takes it");
    }
}

fn invoke(session: &str, id: &str, text: &str) -> Value {
    json!({"type": "agent_invoke", "request_id": id, "session_id": session, "agent_id": "echo",
        "message": {"content": text}})
}

/// Reads until every one of these requests is answered; returns the requests in the order of their answers.
async fn answers(wire: &mut Wire, requests: &[&str]) -> Vec<(String, String)> {
    let mut answered = Vec::new();
    while answered.len() < requests.len() {
        let message = wire.next().await.expect("a message");
        let kind = message["type"].as_str().expect("a type");
        let kinds =
            ["session_opened", "session_closed", "subscribed", "turn_accepted", "members", "error", "pong"];
        let is_fact = message.get("seq").is_some() && kind != "subscribed";
        if let Some(id) = message["request_id"].as_str().filter(|_| kinds.contains(&kind) && !is_fact) {
            answered.push((id.to_owned(), kind.to_owned()));
        }
    }
    answered
}

async fn pipelined_on(node: &Node, connection: usize) {
    let session = format!("p{connection}");
    let mut wire = Wire::hello(node.http, "ann", vec![]).await.expect("it connects");
    write_all(
        &mut wire,
        [
            json!({"type": "session_open", "session_id": session, "request_id": "open"}),
            json!({"type": "subscribe", "session_id": session, "after_seq": 0, "request_id": "subscribe"}),
            invoke(&session, "m", "one two"),
        ],
    )
    .await;
    let (mut answered, mut seq) = (Vec::new(), 0);
    loop {
        let message = wire.next().await.expect("a message");
        let kind = message["type"].as_str().expect("a type").to_owned();
        assert_ne!(kind, "error", "{message}");
        if let Some(at) = message["seq"].as_u64().filter(|_| kind != "subscribed") {
            assert!(at > seq, "{message} after {seq}");
            seq = at;
        }
        if ["session_opened", "subscribed", "turn_accepted"].contains(&kind.as_str())
            && message.get("seq").is_none()
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
    let (one, two) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let owner = Node::start_on(&redis.url(), one.path(), &["--demo"]).await;
    let other = Node::start_on(&redis.url(), two.path(), &["--demo"]).await;
    for connection in 0..CONNECTIONS {
        pipelined_on(if connection % 2 == 0 { &owner } else { &other }, connection).await;
    }
}

/// Every kind of request, the refused ones too, and requests of other sessions in between.
#[tokio::test]
async fn refusals_keep_the_order_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = Wire::hello(node.http, "ann", vec![]).await.expect("it connects");
    write_all(
        &mut wire,
        [
            json!({"type": "subscribe", "session_id": "s", "request_id": "1"}),
            json!({"type": "switch_agent", "session_id": "s", "agent_id": "counter", "request_id": "2"}),
            json!({"type": "session_open", "session_id": "s", "agents": ["nobody"], "request_id": "3"}),
            json!({"type": "session_open", "session_id": "s", "agents": ["echo"], "request_id": "4"}),
            json!({"type": "agent_invoke", "session_id": "s", "agent_id": "nobody", "request_id": "5",
                "message": {"content": "x"}}),
            invoke("s", "6", "x"),
            json!({"type": "subscribe", "session_id": "s", "request_id": "7"}),
            json!({"type": "unsubscribe", "session_id": "s", "request_id": "8"}),
            json!({"type": "session_close", "session_id": "s", "request_id": "9"}),
            invoke("s", "10", "x"),
            json!({"type": "session_open", "session_id": "s", "request_id": "11"}),
        ],
    )
    .await;
    let expected = [
        ("1", "error"),
        ("2", "error"),
        ("3", "error"),
        ("4", "session_opened"),
        ("5", "error"),
        ("6", "turn_accepted"),
        ("7", "subscribed"),
        ("9", "session_closed"),
        ("10", "error"),
        ("11", "session_opened"),
    ];
    let ids: Vec<&str> = expected.iter().map(|(id, _)| *id).collect();
    let answered = answers(&mut wire, &ids).await;
    let answered: Vec<(&str, &str)> =
        answered.iter().map(|(id, kind)| (id.as_str(), kind.as_str())).collect();
    assert_eq!(answered, expected);
}

/// A cancel does not wait for what it ends, and other sessions do not wait for this one.
#[tokio::test]
async fn a_cancel_and_other_sessions_overtake() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--default-agent", "counter"]).await;
    let mut wire = Wire::hello(node.http, "ann", vec![]).await.expect("it connects");
    wire.say(json!({"type": "agent_invoke", "session_id": "s", "agent_id": "counter", "request_id": "long",
        "message": {"content": "1000"}}))
        .await
        .expect("it takes it");
    wire.until(|message| message["type"] == "delta").await.expect("it speaks");
    // Removing who speaks waits for its end; the requests behind it wait for that.
    write_all(
        &mut wire,
        [
            json!({"type": "session_close", "session_id": "s", "request_id": "close"}),
            json!({"type": "session_open", "session_id": "s", "request_id": "open"}),
            json!({"type": "ping", "request_id": "ping"}),
            json!({"type": "cancel_run", "session_id": "s", "request_id": "cancel"}),
        ],
    )
    .await;
    wire.until(|message| message["type"] == "pong").await.expect("it does not wait");
    wire.until(|message| message["type"] == "done").await.expect("it ends");
    assert_eq!(answers(&mut wire, &["open"]).await, [("open".to_owned(), "session_opened".to_owned())]);
}
