//! Messages that people change or delete while their turn waits or runs.
use super::agents::await_invocations;
use super::gather::debounce_file;
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::{TempDir, tempdir};
use tokio::sync::Semaphore;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;

/// Starts an agent that answers each message with its text, once it has a permit.
async fn gated() -> (Agents, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let agents = Agents::start({
        let gate = Arc::clone(&gate);
        move |invocation| {
            let gate = Arc::clone(&gate);
            Reply::speak(move |stream| async move {
                gate.acquire().await.expect("it stays").forget();
                stream.delta(&format!("echo {}", invocation.text)).await?;
                stream.done().await
            })
        }
    })
    .await;
    (agents, gate)
}

/// Starts a node with that agent, and an adapter.
async fn gated_node(dir: &TempDir) -> (Agents, Arc<Semaphore>, Node, TestAdapter) {
    let (agents, gate) = gated().await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    (agents, gate, node, adapter)
}

impl TestAdapter {
    /// Brings the event that a message was changed or deleted; returns the answer.
    async fn bring_change(&mut self, event: &str, message: Value) -> Value {
        let request_id = format!("{event}-{}", message["message_id"].as_str().expect("an id"));
        self.bring(json!({
            "type": "inbound", "request_id": request_id, "event": event, "conversation": self.place("lobby"),
            "sender": {"id": "ann"}, "message": message,
        }))
        .await
    }

    async fn bring_edit(&mut self, id: &str, text: &str) -> Value {
        self.bring_change("edit", json!({"message_id": id, "content": text})).await
    }

    async fn bring_deletion(&mut self, id: &str) -> Value {
        self.bring_change("delete", json!({"message_id": id})).await
    }

    /// Confirms the next part, which answers a message with a text.
    async fn confirm_answer(&mut self, id: &str, text: &str) {
        let part = self.next_part().await;
        assert_eq!((&part["reply_to"], &part["text"]), (&json!(id), &json!(text)), "{part}");
        self.confirm(&part, &format!("x-{id}")).await;
    }
}

fn disposition(answer: &Value) -> (&str, bool) {
    (answer["disposition"].as_str().unwrap_or("refused"), answer["duplicate"] == true)
}

/// Covers: ST-6, BD-I4.
#[tokio::test]
async fn edit_of_a_waiting_message_takes_its_place() {
    let dir = tempdir().expect("a directory");
    let (agents, gate, _node, mut adapter) = gated_node(&dir).await;
    adapter.bring_message("lobby", "m1", "one").await;
    adapter.bring_message("lobby", "m2", "two").await;
    adapter.bring_message("lobby", "m3", "three").await;
    let edit = adapter.bring_edit("m2", "second").await;
    assert_eq!(disposition(&edit), ("recorded", false), "{edit}");
    let again = adapter.bring_edit("m2", "second").await;
    assert_eq!((disposition(&again), &again["run_id"]), (("recorded", true), &edit["run_id"]), "{again}");
    // The edit is edited; the message is still the second one.
    let third = json!({"message_id": "m2", "content": "second to none", "edit_id": "e2"});
    assert_eq!(disposition(&adapter.bring_change("edit", third).await), ("recorded", false));
    gate.add_permits(3);
    adapter.confirm_answer("m1", "echo one").await;
    adapter.confirm_answer("m2", "echo second to none").await;
    adapter.confirm_answer("m3", "echo three").await;
    assert_eq!(agents.journal().len(), 3);
    let late = adapter.bring_edit("m2", "too late").await;
    assert_eq!(disposition(&late), ("ignored", false), "{late}");
    let unknown = adapter.bring_edit("m9", "never said").await;
    assert_eq!(disposition(&unknown), ("ignored", false), "{unknown}");
}

/// The agent has the message: the edit is recorded in the log, and nobody answers it.
///
/// Covers: ST-6.
#[tokio::test]
async fn edit_of_a_running_message_is_not_answered() {
    let dir = tempdir().expect("a directory");
    let (agents, gate, node, mut adapter) = gated_node(&dir).await;
    let accepted = adapter.bring_message("lobby", "m1", "one").await;
    await_invocations(&agents, 1).await;
    let edit = adapter.bring_edit("m1", "uno").await;
    assert_eq!(disposition(&edit), ("recorded", false), "{edit}");
    gate.add_permits(2);
    adapter.confirm_answer("m1", "echo one").await;
    let session = accepted["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &["delivery.requested null", "delivery.sent 1"]).await;
    adapter.bring_message("lobby", "m2", "two").await;
    adapter.confirm_answer("m2", "echo two").await;
    assert_eq!(agents.journal().len(), 2, "the edit is no message of its own");
}

/// Covers: SR-C1, BD-I4.
#[tokio::test]
async fn deletion_cancels_the_turn_of_its_message() {
    let dir = tempdir().expect("a directory");
    let (agents, gate, _node, mut adapter) = gated_node(&dir).await;
    adapter.bring_message("lobby", "m1", "one").await;
    adapter.bring_message("lobby", "m2", "two").await;
    adapter.bring_message("lobby", "m3", "three").await;
    await_invocations(&agents, 1).await;
    assert_eq!(disposition(&adapter.bring_edit("m2", "second").await), ("recorded", false));
    let deleted = adapter.bring_deletion("m2").await;
    assert_eq!(disposition(&deleted), ("recorded", false), "the edited message: {deleted}");
    let running = adapter.bring_deletion("m1").await;
    assert_eq!(disposition(&running), ("recorded", false), "{running}");
    gate.add_permits(2);
    adapter.confirm_answer("m3", "echo three").await;
    assert_eq!(disposition(&adapter.bring_deletion("m3").await), ("ignored", false), "it was answered");
    assert_eq!(disposition(&adapter.bring_deletion("m1").await), ("ignored", false), "it is cancelled");
    let reaction = adapter.bring_change("reaction", json!({"message_id": "m3"})).await;
    assert_eq!(disposition(&reaction), ("ignored", false), "{reaction}");
}

/// Covers: BD-M8.
#[tokio::test]
async fn answer_replies_to_no_deleted_message() {
    let dir = tempdir().expect("a directory");
    let (agents, gate) = gated().await;
    let file = debounce_file(dir.path(), "1s");
    let flags = ["--agent", &agents.flag("a"), "--default-agent", "a", "--config", &file];
    let node = Node::start(dir.path(), &flags).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    adapter.bring_message("lobby", "m1", "one").await;
    adapter.bring_message("lobby", "m2", "two").await;
    adapter.bring_message("lobby", "m3", "three").await;
    await_invocations(&agents, 1).await;
    let deleted = adapter.bring_deletion("m3").await;
    assert_eq!(disposition(&deleted), ("recorded", false), "{deleted}");
    gate.add_permits(1);
    adapter.confirm_answer("m2", "echo one\ntwo\nthree").await;
}
