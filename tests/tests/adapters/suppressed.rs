//! Places that have refused a delivery for good.
use super::{TestAdapter, await_recorded};
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

const REQUESTED: &str = "delivery.requested null";
const SUPPRESSED: &str = "delivery.failed 1 suppressed";

/// The state survives a restart; a message of the place, or an operator, ends it.
///
/// Covers: BR-18.
#[tokio::test]
async fn refused_place_is_not_tried_until_somebody_writes_there() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    let first = adapter.next_part().await;
    adapter.bring_message("lobby", "m2", "hello").await;
    await_recorded(&node, &session, &[REQUESTED, REQUESTED]).await;
    adapter.report(&first, json!({"outcome": "rejected", "code": "gone"})).await;
    let refused = [REQUESTED, REQUESTED, "delivery.failed 1 gone", SUPPRESSED];
    await_recorded(&node, &session, &refused).await;
    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let operator = WebSocketClient::open(node.http).await.expect("a connection");
    let mut operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    let list = json!({"type": "list_deliveries", "session_id": session});
    let listed = operator.ask("l", list).await.expect("an answer");
    let suppressed = listed["deliveries"].as_array().expect("deliveries").iter();
    let suppressed: Vec<_> = suppressed.filter(|delivery| delivery["reason"] == "suppressed").collect();
    assert_eq!(suppressed.len(), 1, "{listed}");
    let retry = json!({
        "type": "settle_delivery", "session_id": session, "delivery_id": suppressed[0]["delivery_id"], "decision": "retry",
    });
    operator.ask("r", retry).await.expect("an answer");
    let retried = adapter.next_part().await;
    assert_eq!(retried["reply_to"], "m2", "{retried}");
    adapter.report(&retried, json!({"outcome": "rejected", "code": "permission"})).await;
    let retried = [&refused[..], &["delivery.redriven null", "delivery.failed 1 permission"]].concat();
    await_recorded(&node, &session, &retried).await;
    adapter.bring_message("lobby", "m3", "I am back").await;
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], "m3", "{part}");
    adapter.confirm(&part, "x3").await;
    await_recorded(&node, &session, &[&retried[..], &[REQUESTED, "delivery.sent 1"]].concat()).await;
}
