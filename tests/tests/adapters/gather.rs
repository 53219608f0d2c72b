//! Messages that one person writes in quick succession, in a channel with a debounce.
use super::fleet::{directories, two_nodes_with};
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

/// Writes a configuration whose channel `rooms` has this debounce; returns the path.
pub(crate) fn debounce_file(dir: &Path, debounce: &str) -> String {
    let file = dir.join("turnway.toml");
    std::fs::write(&file, format!("[channels.rooms]\ndebounce = \"{debounce}\"\n")).expect("a file");
    file.to_str().expect("a path").to_owned()
}

/// Starts a node whose channel `rooms` has this debounce.
async fn node_with_debounce(dir: &Path, debounce: &str) -> Node {
    Node::start(dir, &["--demo", "--config", &debounce_file(dir, debounce)]).await
}

/// Returns the authors of a session's messages, and their run ids.
async fn transcript(node: &Node, session: &Value) -> Vec<(Value, Value)> {
    let path = format!("/v1/sessions/{}/messages", session.as_str().expect("a session"));
    let page = Web::new(node.http, None).json(&path).await;
    let messages = page["messages"].as_array().expect("messages").iter();
    messages.map(|message| (message["role"].clone(), message["run_id"].clone())).collect()
}

/// Covers: LN-TP9, LN-TP10, BD-M8.
#[tokio::test]
async fn messages_in_quick_succession_have_one_answer() {
    let dir = tempdir().expect("a directory");
    let node = node_with_debounce(dir.path(), "2s").await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let first = adapter.bring_message("lobby", "m1", "first line").await;
    let mut run_ids = vec![first["run_id"].clone()];
    for (id, text) in [("m2", "second line"), ("m3", "third line")] {
        let accepted = adapter.bring_message("lobby", id, text).await;
        assert_eq!((&accepted["disposition"], &accepted["session_id"]), (&json!("run"), &first["session_id"]));
        run_ids.push(accepted["run_id"].clone());
    }
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], "m3", "{part}");
    assert!(part["text"].as_str().expect("a text").contains("first line\nsecond line\nthird line"), "{part}");
    adapter.confirm(&part, "x1").await;
    let session = first["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &["delivery.requested null", "delivery.sent 1"]).await;
    let again = adapter.bring_message("lobby", "m2", "second line").await;
    assert_eq!((&again["duplicate"], &again["run_id"]), (&json!(true), &run_ids[1]), "{again}");
    let user = |run_id: &Value| (json!("user"), run_id.clone());
    let expected: Vec<_> = run_ids.iter().map(user).chain([(json!("assistant"), run_ids[0].clone())]).collect();
    assert_eq!(transcript(&node, &first["session_id"]).await, expected);
}

/// A restart forgets no message that waits, and a command ends the wait.
///
/// Covers: BD-M8.
#[tokio::test]
async fn command_ends_the_wait_also_after_a_restart() {
    let dir = tempdir().expect("a directory");
    let mut node = node_with_debounce(dir.path(), "30s").await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    adapter.bring_message("lobby", "m1", "first line").await;
    adapter.bring_message("lobby", "m2", "second line").await;
    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    adapter.bring_message("lobby", "m3", ",help me").await;
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], "m2", "{part}");
    assert!(part["text"].as_str().expect("a text").contains("first line\nsecond line"), "{part}");
    adapter.confirm(&part, "x1").await;
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], "m3", "{part}");
    assert!(part["text"].as_str().expect("a text").starts_with(",help: list"), "{part}");
}

/// Messages of one person that two nodes have brought wait at the owner, and the node that takes the session over answers
/// them together.
///
/// Covers: BD-M8.
#[tokio::test]
async fn gathered_messages_survive_their_owner() {
    let dirs = directories();
    let file = debounce_file(dirs[0].path(), "2s");
    let (_redis, [mut owner, other]) = two_nodes_with(&dirs, &["--demo", "--config", &file]).await;
    let mut active = TestAdapter::active(&other, "main", json!({"key": 2})).await;
    let mut standby = TestAdapter::connect(&owner, "main", json!({"key": 2})).await;
    standby.await_state("standby").await;
    let first = standby.bring_message("lobby", "m1", "first line").await;
    let second = active.bring_message("lobby", "m2", "second line").await;
    assert_eq!((&second["disposition"], &second["session_id"]), (&json!("run"), &first["session_id"]), "{second}");
    owner.kill().await;
    let part = active.next_part().await;
    assert_eq!(part["reply_to"], "m2", "{part}");
    assert!(part["text"].as_str().expect("a text").contains("first line\nsecond line"), "{part}");
    active.confirm(&part, "x1").await;
    let session = first["session_id"].as_str().expect("a session");
    await_recorded(&other, session, &["delivery.requested null", "delivery.sent 1"]).await;
}

/// Covers: BD-M8.
#[tokio::test]
async fn turn_starts_although_its_person_writes_on() {
    let dir = tempdir().expect("a directory");
    let node = node_with_debounce(dir.path(), "500ms").await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    let mut number = 0;
    while adapter.deliveries.is_empty() {
        number += 1;
        // At most 20 messages of a session wait.
        let accepted = adapter.bring_message("lobby", &format!("m{number}"), "and another thing").await;
        assert_eq!(accepted["type"], "inbound_accepted", "message {number}: {accepted}");
        ticks.tick().await;
    }
    let part = adapter.next_part().await;
    assert_ne!(part["reply_to"], "m1", "the turn takes further messages along: {part}");
}
