//! Capabilities that an adapter changes while it is connected.
use super::TestAdapter;
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

impl TestAdapter {
    /// Declares capabilities; returns the answer.
    async fn declare(&mut self, conversation: Option<&str>, capabilities: Value) -> Value {
        let mut change = json!({"type": "capabilities", "capabilities": capabilities});
        if let Some(id) = conversation {
            change["conversation"] = self.place(id);
        }
        self.client.ask("c", change).await.expect("an answer")
    }

    /// Returns the number of parts of the answer to a message of 40 words.
    async fn count_parts(&mut self, conversation: &str, id: &str) -> u64 {
        self.bring_message(conversation, id, &"word ".repeat(40)).await;
        let mut part = self.next_part().await;
        let count = part["parts"].as_u64().expect("a number");
        for n in 1..=count {
            self.confirm(&part, &format!("{id}-{n}")).await;
            if n < count {
                part = self.next_part().await;
            }
        }
        count
    }
}

/// Covers: BR-36.
#[tokio::test]
async fn text_limit_changes_live_and_per_conversation() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    assert_eq!(adapter.count_parts("lobby", "m1").await, 1);
    let short = json!({"text": {"level": 2, "max": 64, "unit": "chars"}});
    assert_eq!(adapter.declare(Some("hall"), short.clone()).await["type"], "capabilities_set");
    assert_eq!(adapter.count_parts("lobby", "m2").await, 1, "another conversation has changed");
    assert!(adapter.count_parts("hall", "m1").await >= 3);
    assert_eq!(adapter.declare(Some("hall"), json!({})).await["type"], "capabilities_set");
    assert_eq!(adapter.count_parts("hall", "m2").await, 1, "the limit was taken back");
    assert_eq!(adapter.declare(None, short).await["type"], "capabilities_set");
    assert!(adapter.count_parts("lobby", "m3").await >= 3);
}

/// Covers: BR-36, BD-R8.
#[tokio::test]
async fn capabilities_are_refused_of_other_accounts_and_users() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({})).await;
    let foreign = json!({
        "type": "capabilities", "capabilities": {"text": 2},
        "conversation": {"channel": "rooms", "account_id": "other", "conversation_id": "x"},
    });
    let refused = adapter.client.ask("f", foreign).await.expect("an answer");
    assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!("forbidden")), "{refused}");
    for wrong in [json!({"text": 3}), json!({"text": {"max": 9}}), Value::Null] {
        let refused = adapter.declare(None, wrong.clone()).await;
        assert_eq!(refused["code"], "invalid_message", "{wrong}: {refused}");
    }
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    let refused = ann.ask("a", json!({"type": "capabilities", "capabilities": {}})).await.expect("an answer");
    assert_eq!(refused["code"], "forbidden", "a user is no adapter: {refused}");
}
