//! Connections of adapters over the limits of a node.
use super::TestAdapter;
use serde_json::json;
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{interval, timeout};
use turnway_core::limits::ADAPTER_LINKS_MAX;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::ConnectionEnd;

/// Reads a connection until it is told its state or is closed; returns the code of its error and the end.
async fn fate(adapter: &mut TestAdapter) -> (Option<String>, Option<ConnectionEnd>) {
    let mut code = None;
    loop {
        match adapter.client.next().await {
            Ok(message) if message["type"] == "adapter_state" => return (code, None),
            Ok(message) if message["type"] == "error" => {
                assert!(message["retry_after_ms"].as_u64().is_some(), "{message}");
                code = message["code"].as_str().map(str::to_owned);
            }
            Ok(_) => {}
            Err(end) => return (code, Some(end)),
        }
    }
}

/// Covers: BD-B5, S-07.
#[tokio::test]
async fn surplus_connection_of_an_account_is_closed() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut held = Vec::new();
    for _ in 0..ADAPTER_LINKS_MAX {
        let mut adapter = TestAdapter::connect(&node, "main", json!({})).await;
        assert_eq!(fate(&mut adapter).await, (None, None));
        held.push(adapter);
    }
    let mut surplus = TestAdapter::connect(&node, "main", json!({})).await;
    let refused = (Some("rate_limited".to_owned()), Some(ConnectionEnd::Closed(4429)));
    assert_eq!(fate(&mut surplus).await, refused);
    let mut other = TestAdapter::connect(&node, "other", json!({})).await;
    assert_eq!(fate(&mut other).await, (None, None), "another account has room");
    drop(held.pop());
    let mut looks = interval(Duration::from_millis(20));
    let room = timeout(PATIENCE, async {
        loop {
            looks.tick().await;
            let mut next = TestAdapter::connect(&node, "main", json!({})).await;
            if fate(&mut next).await == (None, None) {
                return;
            }
        }
    });
    room.await.expect("a place that was left is given again");
}
