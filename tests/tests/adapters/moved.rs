//! Conversations that get another id from their platform.
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

impl TestAdapter {
    /// Brings the event that a conversation has another id; returns the answer's disposition.
    async fn bring_move(&mut self, from: &str, to: &str) -> Value {
        let event = json!({
            "type": "inbound", "request_id": format!("{from}-{to}"), "event": "moved", "moved_to": to,
            "conversation": self.place(from), "sender": {"id": "platform"}, "message": {"message_id": "none"},
        });
        let answer = self.bring(event).await;
        assert_eq!(answer["type"], "inbound_accepted", "{answer}");
        answer["disposition"].clone()
    }

    /// Brings a message and delivers its answer, which goes to this conversation; returns the session. While the
    /// conversation gets its new id, the message is refused for a moment, and brought again.
    async fn talk(&mut self, conversation: &str, id: &str) -> Value {
        let mut accepted = self.bring_message(conversation, id, "hello").await;
        while accepted["type"] == "error" {
            assert!(accepted["retry_after_ms"].is_u64(), "a refusal that passes: {accepted}");
            accepted = self.bring_message(conversation, id, "hello").await;
        }
        assert_eq!(accepted["type"], "inbound_accepted", "{accepted}");
        let part = self.next_part().await;
        assert_eq!((&part["reply_to"], &part["conversation"]), (&json!(id), &self.place(conversation)), "{part}");
        self.confirm(&part, &format!("x-{id}")).await;
        accepted["session_id"].clone()
    }
}

/// The binding moves with the conversation, and its old id leads to the new one.
///
/// Covers: BR-35.
#[tokio::test]
async fn binding_follows_its_conversation_to_another_id() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.ask("o", json!({"type": "session_open", "session_id": "s1"})).await.expect("an answer");
    let operator = WebSocketClient::open(node.http).await.expect("a connection");
    let mut operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    let bind = json!({"type": "bind", "session_id": "s1", "conversation": adapter.place("lobby")});
    let bound = operator.ask("b", bind).await.expect("an answer");
    assert_eq!(adapter.talk("lobby", "m1").await, "s1");
    assert_eq!(adapter.bring_move("lobby", "hall").await, "recorded");
    assert_eq!(adapter.bring_move("lobby", "hall").await, "recorded", "a repeated event");
    assert_eq!(adapter.talk("hall", "m2").await, "s1");
    assert_eq!(adapter.talk("lobby", "m3").await, "s1", "a late message of the old id");
    let resolve = json!({"type": "resolve", "conversation": adapter.place("lobby"), "explain": true});
    let found = operator.ask("r", resolve).await.expect("an answer");
    let verdicts = ["moved", "bound"].map(|verdict| json!(verdict));
    let candidates = found["candidates"].as_array().expect("rows").iter();
    assert_eq!(candidates.map(|row| row["verdict"].clone()).collect::<Vec<_>>(), verdicts, "{found}");
    assert_eq!(found["binding"]["generation"], bound["binding"]["generation"], "{found}");
}

/// Nobody has bound the conversation: the new id continues its session.
///
/// Covers: BR-35.
#[tokio::test]
async fn session_of_a_conversation_follows_it_to_another_id() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let session = adapter.talk("lobby", "m1").await;
    assert_eq!(adapter.bring_move("lobby", "hall").await, "recorded");
    assert_eq!(adapter.talk("hall", "m2").await, session);
    let delivered = ["delivery.requested null", "delivery.sent 1"];
    await_recorded(&node, session.as_str().expect("a session"), &[delivered, delivered].concat()).await;
    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    assert_eq!(adapter.talk("hall", "m3").await, session);
    assert_eq!(adapter.bring_move("nowhere", "anywhere").await, "ignored", "nothing was said there");
    let other = adapter.talk("attic", "m4").await;
    assert_eq!(adapter.bring_move("attic", "hall").await, "ignored", "the new id has a binding of its own");
    assert_eq!(adapter.talk("hall", "m5").await, session);
    assert_ne!(other, session);
    assert_eq!(adapter.bring_move("attic", "attic").await, "ignored", "it is its own id");
}

/// A closed session takes no binding, so the event must not come again for ever.
///
/// Covers: BR-35.
#[tokio::test]
async fn conversation_moves_without_its_closed_session() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let session = adapter.talk("lobby", "m1").await;
    let close = json!({"type": "session_close", "session_id": session});
    let closed = adapter.client.ask("c", close).await.expect("an answer");
    assert_eq!(closed["type"], "session_closed", "{closed}");
    assert_eq!(adapter.bring_move("lobby", "hall").await, "ignored");
    assert_ne!(adapter.talk("hall", "m2").await, session, "the new id has a session of its own");
    assert_eq!(adapter.talk("lobby", "m3").await, session, "the old id still has its session");
}
