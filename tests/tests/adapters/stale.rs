//! Messages that are old when their adapter brings them.
use super::TestAdapter;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::tempdir;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

const MINUTE_MS: u128 = 60_000;

impl TestAdapter {
    /// Brings a message that was written some minutes ago; returns the answer.
    async fn bring_old(&mut self, conversation: &str, id: &str, minutes: u128) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_millis();
        let written_at = u64::try_from(now - minutes * MINUTE_MS).expect("a time");
        let mut event = self.message(conversation, id, "hello");
        event["platform_time"] = json!(written_at);
        self.bring(event).await
    }
}

/// Returns the number of ignored messages that a node has counted.
async fn ignored_count(node: &Node) -> u64 {
    let metrics = Web::new(node.admin, None).get("/metrics").await.text;
    let line = metrics.lines().find_map(|line| line.strip_prefix("turnway_adapter_stale_messages_total "));
    line.expect("the metric").parse().expect("a number")
}

/// A message that was accepted in time is a repetition however old it is, and a bound conversation has a limit of its own.
///
/// Covers: BR-24, BR-25.
#[tokio::test]
async fn stale_message_starts_no_turn() {
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("turnway.toml");
    let settings = "[channels.rooms]\nstale_after = \"10m\"\nstale_after_bound = \"1h\"\n";
    std::fs::write(&file, settings).expect("a file");
    let node = Node::start(dir.path(), &["--demo", "--config", file.to_str().expect("a path")]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let ran = adapter.bring_old("lobby", "m1", 9).await;
    assert_eq!((&ran["disposition"], &ran["reason"]), (&json!("run"), &Value::Null), "{ran}");
    let stale = adapter.bring_old("lobby", "m2", 11).await;
    assert_eq!((&stale["disposition"], &stale["reason"]), (&json!("ignored"), &json!("stale")), "{stale}");
    assert_eq!((&stale["session_id"], &stale["duplicate"]), (&Value::Null, &json!(false)), "{stale}");
    let repeated = adapter.bring_old("lobby", "m1", 11).await;
    assert_eq!((&repeated["duplicate"], &repeated["run_id"]), (&json!(true), &ran["run_id"]), "{repeated}");
    let fresh = adapter.bring_message("lobby", "m3", "without a time").await;
    assert_eq!(fresh["disposition"], "run", "{fresh}");
    let elsewhere = adapter.bring_old("attic", "m4", 11).await;
    assert_eq!(elsewhere["reason"], "stale", "its conversation has no session: {elsewhere}");
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.ask("o", json!({"type": "session_open", "session_id": "s1"})).await.expect("an answer");
    let operator = WebSocketClient::open(node.http).await.expect("a connection");
    let mut operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    let bind = json!({"type": "bind", "session_id": "s1", "conversation": adapter.place("lobby")});
    operator.ask("b", bind).await.expect("an answer");
    let bound = adapter.bring_old("lobby", "m5", 59).await;
    assert_eq!((&bound["disposition"], &bound["session_id"]), (&json!("run"), &json!("s1")), "{bound}");
    let stale = adapter.bring_old("lobby", "m6", 61).await;
    assert_eq!(stale["reason"], "stale", "{stale}");
    // A node publishes its statistics now and then.
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    let counted = tokio::time::timeout(PATIENCE, async {
        while ignored_count(&node).await != 3 {
            looks.tick().await;
        }
    });
    assert!(counted.await.is_ok(), "three messages were ignored, not {}", ignored_count(&node).await);
}
