//! Labels of sessions on real nodes: set, listed, kept by both stores, and held back while a node of an earlier release
//! is running.
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{interval, timeout};
use turnway_core::id::NodeId;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

async fn connect(node: &Node) -> WebSocketClient {
    WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects")
}

/// Returns the answer; a subscriber may get the fact, which has the same request id, before.
async fn label(wire: &mut WebSocketClient, request_id: &str, label: &str) -> Value {
    let request = json!({"type": "session_label", "session_id": "s1", "label": label, "request_id": request_id});
    wire.say(request).await.expect("sent");
    let answers = |message: &Value| message["request_id"] == request_id && message["type"] != "event";
    wire.until(answers).await.expect("an answer")
}

/// Returns the label of the user's only session, as a list shows it.
async fn listed(node: &Node) -> Value {
    let list = Web::new(node.http, Some("ann")).json("/v1/sessions").await;
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(1), "{list}");
    list["sessions"][0]["annotations"]["label"].clone()
}

/// Starts a node with an open session.
async fn node(store: &str, dir: &TempDir) -> (Node, WebSocketClient) {
    let node = Node::start_on(store, dir.path(), &["--demo"]).await;
    let mut ann = connect(&node).await;
    let opened = ann.ask("o", json!({"type": "session_open", "session_id": "s1"})).await.expect("an answer");
    assert_eq!(opened["type"], "session_opened", "{opened}");
    (node, ann)
}

/// Sets, replaces and removes labels; every acknowledged one is listed after a crash.
async fn is_kept_by(store: &str, dir: &TempDir) {
    let (mut node, mut ann) = node(store, dir).await;
    assert_eq!(listed(&node).await, Value::Null);
    let follow = json!({"session_id": "s1", "after_seq": 0});
    let mut watcher = WebSocketClient::hello(node.http, "ann", vec![follow]).await.expect("it connects");
    let answer = label(&mut ann, "l1", "blue").await;
    assert_eq!((&answer["type"], &answer["session_id"]), (&json!("session_labelled"), &json!("s1")), "{answer}");
    assert_eq!(listed(&node).await, "blue");
    let event = watcher.until(|message| message["name"] == "SESSION_LABELLED").await.expect("the fact");
    assert_eq!((&event["label"], &event["request_id"]), (&json!("blue"), &json!("l1")), "{event}");
    assert!(event["seq"].is_u64(), "{event}");
    node.kill_and_restart().await;
    assert_eq!(listed(&node).await, "blue");
    let mut ann = connect(&node).await;
    for text in ["日本 \"x\"", "日本 \"x\""] {
        // A client that did not get an answer resends its request.
        let answer = label(&mut ann, "l2", text).await;
        assert_eq!(answer["type"], "session_labelled", "{answer}");
        assert_eq!(listed(&node).await, text);
    }
    let refused = label(&mut ann, "l3", &"x".repeat(65)).await;
    assert_eq!(refused["code"], "invalid_message", "{refused}");
    let answer = label(&mut ann, "l4", "").await;
    assert_eq!(answer["type"], "session_labelled", "{answer}");
    assert_eq!(listed(&node).await, Value::Null);
    node.kill_and_restart().await;
    assert_eq!(listed(&node).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn label_is_listed_and_kept_by_the_embedded_store() {
    let dir = tempdir().expect("a directory");
    is_kept_by(&format!("embedded:{}", dir.path().join("data").display()), &dir).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn label_is_listed_and_kept_by_redis() {
    let redis_dir = tempdir().expect("a directory");
    let redis = Redis::start(redis_dir.path(), &DURABLE);
    let dir = tempdir().expect("a directory");
    is_kept_by(&redis.url(), &dir).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn label_survives_the_loss_of_its_owner() {
    let dirs = [tempdir().expect("a directory"), tempdir().expect("a directory"), tempdir().expect("a directory")];
    let redis = Redis::start(dirs[0].path(), &DURABLE);
    let (mut owner, mut ann) = node(&redis.url(), &dirs[1]).await;
    let other = Node::start_on(&redis.url(), dirs[2].path(), &["--demo"]).await;
    let mut there = connect(&other).await;
    assert_eq!(label(&mut there, "l1", "blue").await["type"], "session_labelled");
    assert_eq!(label(&mut ann, "l2", "red").await["type"], "session_labelled");
    owner.kill().await;
    assert_eq!(listed(&other).await, "red");
    assert_eq!(label(&mut there, "l3", "green").await["type"], "session_labelled");
    assert_eq!(listed(&other).await, "green");
}

/// Covers: the level of facts of docs/ownership.md §4.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn label_is_refused_while_a_node_of_an_earlier_release_lives() {
    let redis_dir = tempdir().expect("a directory");
    let redis = Redis::start(redis_dir.path(), &DURABLE);
    let earlier = NodeId(7);
    let lease = format!("node:{{{earlier}}}");
    let record = r#"{"name":"x","address":"y","state":"serving","frames":1,"release":"0","seen_ms":9999999999999}"#;
    let _: redis::Value = redis.command(&["HSET", "nodes", &earlier.to_string(), record]);
    let _: redis::Value = redis.command(&["HSET", &lease, "1", "9999999999999"]);
    let dir = tempdir().expect("a directory");
    let (node, mut ann) = node(&redis.url(), &dir).await;
    let refused = label(&mut ann, "l1", "blue").await;
    assert_eq!((&refused["code"], &refused["retryable"]), (&json!("fleet_upgrading"), &json!(true)), "{refused}");
    assert_eq!(refused["retry_after_ms"], 10_000, "{refused}");
    assert_eq!(listed(&node).await, Value::Null);
    let (said, _) = ann.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    assert!(said.contains("hello"), "{said}");
    let _: redis::Value = redis.command(&["DEL", &lease]);
    let accepted = async {
        let mut again = interval(Duration::from_millis(250));
        loop {
            again.tick().await;
            let answer = label(&mut ann, "l1", "blue").await;
            if answer["type"] == "session_labelled" {
                return;
            }
            assert_eq!(answer["code"], "fleet_upgrading", "{answer}");
        }
    };
    timeout(PATIENCE, accepted).await.expect("the other nodes know the fact");
    assert_eq!(listed(&node).await, "blue");
}
