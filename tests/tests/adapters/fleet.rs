//! Adapters in a fleet: the answers of a session that one node owns are sent by an adapter at another node, and a death of
//! either node loses nothing.
use super::{TestAdapter, await_recorded};
use serde_json::json;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;

/// Returns the directories of two nodes and of their Redis.
pub(crate) fn directories() -> [TempDir; 3] {
    std::array::from_fn(|_| tempdir().expect("a directory"))
}

async fn two_nodes(dirs: &[TempDir; 3]) -> (Redis, [Node; 2]) {
    two_nodes_with(dirs, &["--demo"]).await
}

/// Starts two nodes with these arguments, and their Redis.
pub(crate) async fn two_nodes_with([first, second, server]: &[TempDir; 3], args: &[&str]) -> (Redis, [Node; 2]) {
    let redis = Redis::start(server.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let nodes = [
        Node::start_on(&redis.url(), first.path(), args).await,
        Node::start_on(&redis.url(), second.path(), args).await,
    ];
    (redis, nodes)
}

/// Covers: BD-B5, BR-37.
#[tokio::test]
async fn one_adapter_of_an_account_sends_in_a_fleet() {
    let dirs = directories();
    let (_redis, [mut first, second]) = two_nodes(&dirs).await;
    let mut active = TestAdapter::active(&first, "main", json!({"key": 2})).await;
    let mut standby = TestAdapter::connect(&second, "main", json!({"key": 2})).await;
    standby.await_state("standby").await;
    // The standby's node owns the session, and the active adapter sends the answer.
    let accepted = standby.bring_message("lobby", "m1", "hello").await;
    let part = active.next_part().await;
    assert_eq!(part["reply_to"], "m1", "{part}");
    active.confirm(&part, "x1").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    await_recorded(&second, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    // The node of the active adapter dies between the platform's answer and ours.
    standby.bring_message("lobby", "m2", "again").await;
    let unanswered = active.next_part().await;
    first.kill().await;
    standby.await_state("active").await;
    let again = standby.next_part().await;
    assert_eq!(again["key"], unanswered["key"], "{again}");
    assert!(again["attempt"].as_u64().expect("a number") >= 2, "it may have been sent before: {again}");
    standby.confirm(&again, "x2").await;
    let expected = ["delivery.requested null", "delivery.sent 1", "delivery.requested null", "delivery.sent 1"];
    await_recorded(&second, &session, &expected).await;
}

/// Covers: BD-Q1.
#[tokio::test]
async fn owner_that_dies_leaves_its_deliveries_to_another() {
    let dirs = directories();
    let (_redis, [mut owner, other]) = two_nodes(&dirs).await;
    let mut active = TestAdapter::active(&other, "main", json!({"key": 0})).await;
    let mut standby = TestAdapter::connect(&owner, "main", json!({"key": 0})).await;
    standby.await_state("standby").await;
    let accepted = standby.bring_message("lobby", "m1", "hello").await;
    let part = active.next_part().await;
    owner.kill().await;
    // The adapter's node remembers the part, so its receipt is enough although nobody recognises a key.
    active.confirm(&part, "x1").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    await_recorded(&other, &session, &["delivery.requested null", "delivery.sent 1"]).await;
}

/// Delivers a message of three parts. After the platform has part `last`, and before anybody records that, the owner of the
/// session and the node of the adapter die; a third node goes on.
async fn deliver_across_deaths(last: u64) {
    let dirs: [TempDir; 4] = std::array::from_fn(|_| tempdir().expect("a directory"));
    let redis = Redis::start(dirs[3].path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let mut owner = Node::start_on(&redis.url(), dirs[0].path(), &["--demo"]).await;
    let mut carrier = Node::start_on(&redis.url(), dirs[1].path(), &["--demo"]).await;
    let heir = Node::start_on(&redis.url(), dirs[2].path(), &["--demo"]).await;
    let capabilities = json!({"text": {"level": 2, "max": 64}, "key": 2});
    let mut adapter = TestAdapter::active(&carrier, "main", capabilities.clone()).await;
    let mut standby = TestAdapter::connect(&owner, "main", capabilities.clone()).await;
    standby.await_state("standby").await;
    let accepted = standby.bring_message("lobby", "m1", &"word ".repeat(38)).await;
    // Each line that the platform has, once for each key.
    let mut lines: Vec<serde_json::Value> = Vec::new();
    let mut is_killed = false;
    loop {
        let part = adapter.next_part().await;
        assert_eq!((&part["parts"], &part["conversation"]), (&json!(3), &adapter.place("lobby")), "{part}");
        match lines.iter().find(|line| line["key"] == part["key"]) {
            Some(known) => {
                assert_eq!((&known["text"], &known["part"]), (&part["text"], &part["part"]), "the same bytes");
                assert!(part["attempt"].as_u64().expect("a number") >= 2, "it may have been sent before: {part}");
            }
            None => lines.push(part.clone()),
        }
        if part["part"] == last && !is_killed {
            is_killed = true;
            owner.kill().await;
            carrier.kill().await;
            adapter = TestAdapter::active(&heir, "main", capabilities.clone()).await;
            continue;
        }
        adapter.confirm(&part, &format!("x{}", part["part"])).await;
        if part["part"] == 3 {
            break;
        }
    }
    assert_eq!(lines.iter().map(|line| line["part"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
    let session = accepted["session_id"].as_str().expect("a session");
    let expected = ["delivery.requested null", "delivery.sent 1", "delivery.sent 2", "delivery.sent 3"];
    await_recorded(&heir, session, &expected).await;
}

/// Covers: BD-Q7, BD-Q8, BR-07, BR-09.
#[tokio::test]
async fn first_part_survives_its_owner_and_its_node() {
    deliver_across_deaths(1).await;
}

/// Covers: BD-Q7, BD-Q8, BR-07, BR-09.
#[tokio::test]
async fn middle_part_survives_its_owner_and_its_node() {
    deliver_across_deaths(2).await;
}

/// Covers: BD-Q7, BD-Q8, BR-07, BR-09.
#[tokio::test]
async fn last_part_survives_its_owner_and_its_node() {
    deliver_across_deaths(3).await;
}
