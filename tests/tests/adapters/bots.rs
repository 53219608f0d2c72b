//! One login of a platform under two account names: one account at a time acts as a platform's bot id.
use super::fleet::{directories, two_nodes_with};
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};

/// Connects an adapter with a bot id.
async fn connect(node: &Node, account: &str, bot: &str, instance: &str) -> TestAdapter {
    let hello = json!({
        "type": "hello", "role": "adapter", "channel": "rooms", "account_id": account, "platform_bot_id": bot,
        "instance_id": instance, "capabilities": {"key": 2},
    });
    let client = WebSocketClient::open(node.http).await.expect("a connection");
    let client = client.greet_with(hello).await.expect("it is admitted");
    TestAdapter { client, deliveries: Vec::new(), account: account.to_owned() }
}

/// Connects an adapter, which must be refused; returns the error.
async fn must_be_refused(node: &Node, account: &str, bot: &str) -> Value {
    let mut adapter = connect(node, account, bot, account).await;
    let mut error = Value::Null;
    loop {
        match adapter.client.next().await {
            Ok(message) if message["type"] == "error" => error = message,
            Ok(message) => assert_ne!(message["state"], "active", "{message}"),
            Err(end) => {
                assert_eq!((end, &error["code"]), (ConnectionEnd::Closed(4409), &json!("bot_id_in_use")), "{error}");
                return error;
            }
        }
    }
}

/// Connects an adapter again and again until it is active.
async fn connect_at_last(node: &Node, account: &str, bot: &str) -> TestAdapter {
    let mut tries = tokio::time::interval(std::time::Duration::from_millis(200));
    loop {
        tries.tick().await;
        let mut adapter = connect(node, account, bot, account).await;
        let is_end = |message: &Value| message["state"] == "active" || message["type"] == "error";
        if adapter.client.until(is_end).await.is_ok_and(|end| end["state"] == "active") {
            return adapter;
        }
    }
}

/// Has a message answered; returns its session.
async fn converse(adapter: &mut TestAdapter, id: &str) -> String {
    let accepted = adapter.bring_message("lobby", id, "hello").await;
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], id, "{part}");
    adapter.confirm(&part, id).await;
    accepted["session_id"].as_str().expect("a session").to_owned()
}

/// Covers: BR-37.
#[tokio::test]
async fn second_account_of_a_bot_id_is_refused_until_the_first_ends() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut first = connect(&node, "first", "bot9", "p1").await;
    first.await_state("active").await;
    let error = must_be_refused(&node, "second", "bot9").await;
    let why = error["message"].as_str().expect("a text");
    assert!(why.contains("account first ") && why.contains("node "), "{why}");
    converse(&mut first, "m1").await;
    // Another bot id, and connections of the same account, are not concerned.
    connect(&node, "third", "bot8", "p3").await.await_state("active").await;
    let mut standby = connect(&node, "first", "bot9", "p2").await;
    standby.await_state("standby").await;
    drop(first);
    standby.await_state("active").await;
    converse(&mut standby, "m2").await;
    must_be_refused(&node, "second", "bot9").await;
    // A newer incarnation of the same process takes the place of the earlier one.
    let mut newer = connect(&node, "first", "bot9", "p2").await;
    newer.await_state("active").await;
    converse(&mut newer, "m3").await;
    drop((standby, newer));
    // The node may not have noticed yet that the others are gone.
    let mut second = connect_at_last(&node, "second", "bot9").await;
    converse(&mut second, "m4").await;
    must_be_refused(&node, "first", "bot9").await;
}

/// Covers: BR-37.
#[tokio::test]
async fn bot_id_is_held_in_the_whole_fleet_until_its_node_dies() {
    let dirs = directories();
    let (_redis, [mut first, second]) = two_nodes_with(&dirs, &["--demo"]).await;
    let mut holder = connect(&first, "first", "bot9", "p1").await;
    holder.await_state("active").await;
    let error = must_be_refused(&second, "second", "bot9").await;
    assert!(error["message"].as_str().expect("a text").contains("account first "), "{error}");
    let mut standby = connect(&second, "first", "bot9", "p2").await;
    standby.await_state("standby").await;
    let session = converse(&mut holder, "m1").await;
    await_recorded(&second, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    first.kill().await;
    // The account's other connection takes the claim over with the lease.
    standby.await_state("active").await;
    converse(&mut standby, "m2").await;
    must_be_refused(&second, "second", "bot9").await;
}

/// Covers: BR-37.
#[tokio::test]
async fn dead_node_frees_its_bot_id_for_another_account() {
    let dirs = directories();
    let (_redis, [mut first, second]) = two_nodes_with(&dirs, &["--demo"]).await;
    let mut holder = connect(&first, "first", "bot9", "p1").await;
    holder.await_state("active").await;
    first.kill().await;
    let mut next = connect_at_last(&second, "second", "bot9").await;
    converse(&mut next, "m1").await;
}

/// Covers: BR-37, BD-B5.
#[tokio::test]
async fn newer_incarnation_of_the_holder_takes_its_lease() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut holder = connect(&node, "main", "bot9", "p1").await;
    holder.await_state("active").await;
    let mut other = connect(&node, "main", "bot9", "p2").await;
    other.await_state("standby").await;
    let session = converse(&mut holder, "m1").await;
    await_recorded(&node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    // The process has started again, and its earlier connection is not closed yet.
    let mut again = connect(&node, "main", "bot9", "p1").await;
    again.await_state("active").await;
    holder.await_state("standby").await;
    converse(&mut again, "m2").await;
}
