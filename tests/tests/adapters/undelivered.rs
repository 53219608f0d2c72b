//! Deliveries that are held or have failed: their lists, their history, and the commands that settle them.
use super::{TestAdapter, await_metric, await_recorded};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;

/// Commands list, explain and settle what was not sent.
///
/// Covers: BD-Q3, BD-Q6, BR-20.
#[tokio::test]
async fn undelivered_messages_are_listed_explained_and_settled() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut session = String::new();
    for (id, outcome) in [("m1", "gone"), ("m2", "permission"), ("m3", "invalid")] {
        let accepted = adapter.bring_message("lobby", id, "hello").await;
        accepted["session_id"].as_str().expect("a session").clone_into(&mut session);
        let part = adapter.next_part().await;
        adapter.report(&part, json!({"outcome": "rejected", "code": outcome})).await;
    }
    let failed = ["gone", "permission", "invalid"].map(|reason| format!("delivery.failed 1 {reason}"));
    let expected: Vec<&str> = failed.iter().flat_map(|failed| ["delivery.requested null", failed]).collect();
    await_recorded(&node, &session, &expected).await;
    let command = async |args: &[&str]| {
        let ended = run(dir.path(), args, &[("TURNWAY_URL", &format!("http://{}", node.http))]).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        ended.out
    };
    let json = async |args: &[&str]| -> Value {
        serde_json::from_str(&command(&[args, &["--json"]].concat()).await).expect("JSON")
    };
    assert_eq!(json(&["sessions"]).await["sessions"][0]["annotations"]["undelivered"], "3");
    let listed = json(&["deliveries", "ls"]).await;
    let reasons = |listed: &Value| -> Vec<String> {
        let deliveries = listed["deliveries"].as_array().expect("a list").iter();
        deliveries.map(|delivery| delivery["reason"].as_str().expect("a reason").to_owned()).collect()
    };
    assert_eq!(reasons(&listed), ["gone", "permission", "invalid"], "{listed}");
    assert_eq!(listed["deliveries"][0]["session_id"], session.as_str(), "{listed}");
    assert_eq!(reasons(&json(&["deliveries", "ls", &session, "--place", "rooms/other"]).await), [""; 0]);
    let id = listed["deliveries"][0]["delivery_id"].as_str().expect("an id");
    let why = json(&["deliveries", "why", &session, id]).await;
    assert_eq!(why["facts"][1]["data"], json!({"delivery_id": id, "part": 1, "reason": "gone", "undelivered": 1}));
    let shown = command(&["deliveries", "why", &session, id]).await;
    assert!(shown.contains("failed: gone") && shown.contains("delivery.failed"), "{shown}");

    command(&["deliveries", "drop", &session, id]).await;
    let settled = json(&["deliveries", "retry-all", "--place", "rooms/main/lobby", "--since", "1h"]).await;
    assert_eq!(reasons(&settled), ["permission", "invalid"], "{settled}");
    let part = adapter.next_part().await;
    adapter.confirm(&part, "x2").await;
    let part = adapter.next_part().await;
    adapter.report(&part, json!({"outcome": "rejected", "code": "gone"})).await;
    let after = [
        "delivery.failed 1 dropped",
        "delivery.redriven null",
        "delivery.redriven null",
        "delivery.sent 1",
        "delivery.failed 1 gone",
    ];
    await_recorded(&node, &session, &[expected, after.to_vec()].concat()).await;
    let pruned = json(&["deliveries", "prune", "--session", &session]).await;
    assert_eq!(reasons(&pruned), ["gone"], "{pruned}");
    assert_eq!(json(&["sessions"]).await["sessions"][0]["annotations"], Value::Null);
    await_metric(&node, "turnway_adapter_deliveries_total{kind=\"failed\"} 6").await;
    await_metric(&node, "turnway_adapter_delivery_failures_total{reason=\"gone\"} 2").await;
}

/// A user sees and settles the deliveries of an own session only.
///
/// Covers: S-06.
#[tokio::test]
async fn deliveries_of_other_users_are_not_found() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let part = adapter.next_part().await;
    adapter.report(&part, json!({"outcome": "rejected", "code": "gone"})).await;
    let session = accepted["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &["delivery.requested null", "delivery.failed 1 gone"]).await;
    let id = part["delivery_id"].as_str().expect("an id");
    for args in [
        vec!["deliveries", "ls", session],
        vec!["deliveries", "why", session, id],
        vec!["deliveries", "retry", session, id],
    ] {
        let refused =
            run(dir.path(), &args, &[("TURNWAY_URL", &format!("http://{}", node.http)), ("TURNWAY_USER", "bob")]).await;
        assert_eq!(refused.code, Some(1), "{args:?}: {}", refused.out);
        assert!(refused.err.contains("no such session"), "{args:?}: {}", refused.err);
    }
}
