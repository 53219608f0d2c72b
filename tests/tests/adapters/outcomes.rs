//! The reports of adapters about parts, and their effects: receipts, retries, held and failed deliveries.
use super::{TestAdapter, await_recorded};
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::node::Node;

/// Covers: BD-Q8, BD-T5.
#[tokio::test]
async fn long_answer_is_sent_in_parts_one_after_the_other() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let capabilities = json!({"text": {"level": 2, "max": 64, "unit": "utf16"}, "key": 2});
    let mut adapter = TestAdapter::active(&node, "main", capabilities).await;
    let text = "word ".repeat(40);
    let accepted = adapter.bring_message("lobby", "m1", &text).await;
    let mut said = String::new();
    let mut part = adapter.next_part().await;
    let count = part["parts"].as_u64().expect("a number");
    assert!(count >= 3, "{part}");
    for n in 1..=count {
        assert_eq!(part["part"], n, "{part}");
        let text = part["text"].as_str().expect("a text");
        assert!(text.encode_utf16().count() <= 64, "{text}");
        said.push_str(text);
        said.push(' ');
        adapter.confirm(&part, &format!("x{n}")).await;
        if n < count {
            part = adapter.next_part().await;
        }
    }
    assert_eq!(said.split_whitespace().filter(|word| *word == "word").count(), 40, "{said}");
    let session = accepted["session_id"].as_str().expect("a session");
    let sent: Vec<String> = (1..=count).map(|n| format!("delivery.sent {n}")).collect();
    let expected: Vec<&str> =
        std::iter::once("delivery.requested null").chain(sent.iter().map(String::as_str)).collect();
    await_recorded(&node, session, &expected).await;
}

/// Covers: BD-C3, BD-C11, BD-D2, BD-Q3, BR-08, BR-17.
#[tokio::test]
async fn refused_part_is_tried_again_or_fails_by_its_class() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let first = adapter.next_part().await;
    adapter.report(&first, json!({"outcome": "rejected", "code": "transient"})).await;
    let second = adapter.next_part().await;
    assert_eq!((&second["attempt"], &second["key"]), (&json!(2), &first["key"]), "{second}");
    let start = std::time::Instant::now();
    let limited = json!({"outcome": "rejected", "code": "rate_limit", "retry_after_ms": 2500});
    adapter.report(&second, limited).await;
    let third = adapter.next_part().await;
    assert!(start.elapsed() >= std::time::Duration::from_millis(2400), "the platform asked to wait");
    adapter.confirm(&third, "x1").await;
    let session = accepted["session_id"].as_str().expect("a session");
    let mut expected =
        vec!["delivery.requested null", "delivery.attempted 1", "delivery.attempted 1", "delivery.sent 1"];
    await_recorded(&node, session, &expected).await;
    adapter.bring_message("lobby", "m2", "and now").await;
    let part = adapter.next_part().await;
    adapter.report(&part, json!({"outcome": "rejected", "code": "gone"})).await;
    expected.extend(["delivery.requested null", "delivery.failed 1 gone"]);
    await_recorded(&node, session, &expected).await;
    // A failed delivery does not hold back the next one.
    adapter.bring_message("lobby", "m3", "still there?").await;
    let part = adapter.next_part().await;
    assert_eq!(part["reply_to"], "m3", "{part}");
}

/// Covers: BD-Q7, BR-10, BR-14.
#[tokio::test]
async fn unknown_part_is_repeated_with_its_key_or_held() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut keyed = TestAdapter::active(&node, "keyed", json!({"key": 2})).await;
    let accepted = keyed.bring_message("lobby", "m1", "hello").await;
    let first = keyed.next_part().await;
    keyed.report(&first, json!({"outcome": "unknown"})).await;
    let second = keyed.next_part().await;
    assert_eq!((&second["attempt"], &second["key"]), (&json!(2), &first["key"]), "{second}");
    // A success without the platform's id proves nothing.
    keyed.report(&second, json!({"outcome": "sent"})).await;
    let third = keyed.next_part().await;
    assert_eq!(third["attempt"], 3, "{third}");
    keyed.confirm(&third, "x1").await;
    let session = accepted["session_id"].as_str().expect("a session");
    let expected = ["delivery.requested null", "delivery.attempted 1", "delivery.attempted 1", "delivery.sent 1"];
    await_recorded(&node, session, &expected).await;

    let mut plain = TestAdapter::active(&node, "plain", json!({"key": 0})).await;
    let accepted = plain.bring_message("lobby", "m1", "hello").await;
    let part = plain.next_part().await;
    plain.report(&part, json!({"outcome": "unknown"})).await;
    let session = accepted["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &["delivery.requested null", "delivery.held 1"]).await;
}

#[tokio::test]
async fn part_at_another_place_ends_its_delivery() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let part = adapter.next_part().await;
    let place = adapter.place("elsewhere");
    adapter.report(&part, json!({"outcome": "sent", "external_id": "x1", "place": place})).await;
    let session = accepted["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &["delivery.requested null", "delivery.failed 1 misplaced"]).await;
}

/// Covers: BD-Q1, BD-Q7.
#[tokio::test]
async fn delivery_survives_the_death_of_its_node() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let first = adapter.next_part().await;
    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let again = adapter.next_part().await;
    assert_eq!((&again["delivery_id"], &again["key"]), (&first["delivery_id"], &first["key"]), "{again}");
    assert!(again["attempt"].as_u64().expect("a number") >= 2, "it may have been sent before: {again}");
    adapter.confirm(&again, "x1").await;
    let session = accepted["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &["delivery.requested null", "delivery.sent 1"]).await;
}

/// Covers: BD-Q6.
#[tokio::test]
async fn delivery_waits_for_an_adapter_that_is_away() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 0})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let part = adapter.next_part().await;
    adapter.report(&part, json!({"outcome": "not_sent", "proof": "refused"})).await;
    drop(adapter);
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    await_recorded(&node, &session, &["delivery.requested null", "delivery.attempted 1"]).await;
    node.kill_and_restart().await;
    let mut other = TestAdapter::active(&node, "other", json!({"key": 0})).await;
    other.bring_message("lobby", "m1", "my own").await;
    let part = other.next_part().await;
    assert_eq!(part["conversation"], other.place("lobby"), "only its own account's: {part}");
}

/// Covers: BD-Q7, BR-15.
#[tokio::test]
async fn part_of_a_dead_node_is_held_without_a_key() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 0})).await;
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let first = adapter.next_part().await;
    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 0})).await;
    let session = accepted["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &["delivery.requested null", "delivery.held 1"]).await;
    // A held delivery does not hold back the next one, and an operator may have it sent again.
    adapter.bring_message("lobby", "m2", "still there?").await;
    let next = adapter.next_part().await;
    assert_eq!(next["reply_to"], "m2", "{next}");
    adapter.confirm(&next, "x2").await;
    let settle = json!({
        "type": "settle_delivery", "request_id": "s", "session_id": session, "delivery_id": first["delivery_id"], "decision": "retry",
    });
    let answer = adapter.bring(settle).await;
    assert_eq!(answer["type"], "delivery_settled", "{answer}");
    let again = adapter.next_part().await;
    assert_eq!((&again["delivery_id"], &again["key"]), (&first["delivery_id"], &first["key"]), "{again}");
    adapter.confirm(&again, "x1").await;
    let expected = [
        "delivery.requested null",
        "delivery.held 1",
        "delivery.requested null",
        "delivery.sent 1",
        "delivery.redriven null",
        "delivery.sent 1",
    ];
    await_recorded(&node, session, &expected).await;
}

/// A place gets one answer at a time, and other places do not wait for it.
#[tokio::test]
async fn answers_to_one_place_are_sent_in_order() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    for (conversation, id) in [("lobby", "m1"), ("lobby", "m2"), ("attic", "m3")] {
        adapter.bring_message(conversation, id, "hello").await;
    }
    let first = adapter.next_part().await;
    let other = adapter.next_part().await;
    let answered = |part: &serde_json::Value| part["reply_to"].as_str().expect("a message").to_owned();
    let mut both = [answered(&first), answered(&other)];
    both.sort();
    assert_eq!(both, ["m1", "m3"], "{first} {other}");
    let lobby = if answered(&first) == "m1" { &first } else { &other };
    adapter.confirm(lobby, "x1").await;
    let second = adapter.next_part().await;
    assert_eq!(answered(&second), "m2", "{second}");
}
