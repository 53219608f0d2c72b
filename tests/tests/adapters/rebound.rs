//! Messages that a platform repeats after the binding of their conversation has changed.
use super::TestAdapter;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::WebSocketClient;

/// A conversation that is bound to one session after the other, and its messages.
struct Rebinding {
    adapter: TestAdapter,
    operator: WebSocketClient,
    node: Node,
}

impl Rebinding {
    async fn start(store: &str, dir: &TempDir) -> Self {
        let node = Node::start_on(store, dir.path(), &["--demo"]).await;
        let adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
        let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
        for session in ["s1", "s2"] {
            ann.ask(session, json!({"type": "session_open", "session_id": session})).await.expect("an answer");
        }
        let operator = WebSocketClient::open(node.http).await.expect("a connection");
        let operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
        Self { adapter, operator, node }
    }

    async fn bind(&mut self, session: &str, expected_generation: Option<u64>) -> u64 {
        let mut bind = json!({"type": "bind", "session_id": session});
        bind["conversation"] = self.adapter.place("lobby");
        bind["expected_generation"] = expected_generation.map_or(Value::Null, Value::from);
        let bound = self.operator.ask("b", bind).await.expect("an answer");
        bound["binding"]["generation"].as_u64().unwrap_or_else(|| panic!("{bound}"))
    }

    async fn unbind(&mut self, session: &str) {
        let unbind = json!({"type": "unbind", "session_id": session});
        let ended = self.operator.ask("u", unbind).await.expect("an answer");
        assert_eq!(ended["type"], "unbound", "{ended}");
    }

    /// Brings a message that is new, and delivers its answer; returns its receipt.
    async fn bring_new(&mut self, id: &str, session: Option<&str>) -> Value {
        let accepted = self.adapter.bring_message("lobby", id, "hello").await;
        assert_eq!(accepted["duplicate"], false, "{accepted}");
        assert!(session.is_none_or(|session| accepted["session_id"] == session), "{accepted}");
        let part = self.adapter.next_part().await;
        assert_eq!(part["reply_to"], id, "no repeated message has another answer: {part}");
        self.adapter.confirm(&part, &format!("x-{id}")).await;
        accepted
    }

    /// Brings a message again, which was accepted with this receipt.
    async fn repeat(&mut self, id: &str, accepted: &Value) {
        let again = self.adapter.bring_message("lobby", id, "hello").await;
        assert_eq!((&again["duplicate"], &again["disposition"]), (&json!(true), &json!("run")), "{again}");
        for name in ["run_id", "session_id"] {
            assert_eq!(again[name], accepted[name], "{again}");
        }
    }

    async fn run(mut self) {
        let own = self.bring_new("m1", None).await;
        let first = self.bind("s1", None).await;
        self.repeat("m1", &own).await;
        let bound = self.bring_new("m2", Some("s1")).await;
        self.bind("s2", Some(first)).await;
        self.repeat("m1", &own).await;
        self.repeat("m2", &bound).await;
        let second = self.bring_new("m3", Some("s2")).await;
        self.unbind("s2").await;
        self.repeat("m3", &second).await;
        self.repeat("m1", &own).await;
        self.bring_new("m4", own["session_id"].as_str()).await;
        drop(self.node);
    }
}

/// Covers: BR-24.
#[tokio::test]
async fn message_brought_again_after_a_rebind_runs_once() {
    let dir = tempdir().expect("a directory");
    Rebinding::start(&format!("embedded:{}", dir.path().join("data").display()), &dir).await.run().await;
}

/// Covers: BR-24.
#[tokio::test]
async fn message_brought_again_after_a_rebind_runs_once_on_redis() {
    let dir = tempdir().expect("a directory");
    let server = tempdir().expect("a directory");
    let redis = Redis::start(server.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    Rebinding::start(&redis.url(), &dir).await.run().await;
}
