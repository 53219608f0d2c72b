//! The messages between nodes that a delivery costs, beside those that show the same answer to a client of another node.
use super::fleet::{directories, two_nodes_with};
use super::{TestAdapter, await_recorded};
use serde_json::json;
use std::collections::BTreeMap;
use turnway_tests::real::figure;
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

const TURNS: usize = 20;

/// Messages between nodes by direction and kind.
type BusCounts = BTreeMap<(String, String), u64>;

/// Returns the messages that a node has sent and received so far; those about the node itself are left out.
async fn counts(node: &Node) -> BusCounts {
    let (_, page) = get(node.admin, "/metrics").await.expect("metrics");
    let sample = |line: &str| {
        let rest = line.strip_prefix("turnway_bus_words_total{direction=\"")?;
        let (direction, rest) = rest.split_once("\",kind=\"")?;
        let (kind, count) = rest.split_once("\"} ")?;
        let is_own = ["beacon", "have", "hello", "reserve", "reserved", "knock"].contains(&kind);
        (!is_own).then(|| ((direction.to_owned(), kind.to_owned()), count.parse().expect("a number")))
    };
    page.lines().filter_map(sample).collect()
}

/// Returns what was added to the counts.
fn added(before: &BusCounts, after: &BusCounts) -> BusCounts {
    let grown = after.iter().map(|(kind, count)| (kind.clone(), count - before.get(kind).copied().unwrap_or_default()));
    grown.filter(|(_, count)| *count > 0).collect()
}

/// Runs turns of a client at the node of the owner while another client follows at the other node.
async fn shown_turns(owner: &Node, other: &Node) -> BusCounts {
    let mut asker = WebSocketClient::hello(owner.http, "bob", vec![]).await.expect("welcome");
    asker.turn("seen", "echo", "m", "a first turn").await.expect("a turn");
    let mut watcher = WebSocketClient::hello(other.http, "bob", vec![]).await.expect("welcome");
    watcher.say(json!({"type": "subscribe", "session_id": "seen"})).await.expect("said");
    watcher.until(|message| message["type"] == "subscribed").await.expect("a subscription");
    let before = counts(owner).await;
    for n in 0..TURNS {
        asker.turn("seen", "echo", &format!("m{n}"), "hello").await.expect("a turn");
        watcher.until(|message| message["type"] == "done").await.expect("an end");
    }
    added(&before, &counts(owner).await)
}

/// A part is given to the adapter's node and its receipt comes back: two messages between nodes, beside the signals that
/// nothing waits for.
///
/// Covers: BR-07.
#[tokio::test]
async fn delivery_across_nodes_costs_two_messages() {
    let dirs = directories();
    let (_redis, [first, owner]) = two_nodes_with(&dirs, &["--demo"]).await;
    let mut active = TestAdapter::active(&first, "main", json!({"key": 2})).await;
    let mut standby = TestAdapter::connect(&owner, "main", json!({"key": 2})).await;
    standby.await_state("standby").await;
    let mut expected = Vec::new();
    let mut before = BusCounts::new();
    for n in 0..=TURNS {
        let accepted = standby.bring_message("lobby", &format!("m{n}"), "hello").await;
        let part = active.next_part().await;
        active.confirm(&part, &format!("x{n}")).await;
        expected.extend(["delivery.requested null", "delivery.sent 1"]);
        let session = accepted["session_id"].as_str().expect("a session");
        await_recorded(&owner, session, &expected).await;
        // The first turn tells the nodes of each other.
        if n == 0 {
            before = counts(&owner).await;
        }
    }
    let mut delivered = added(&before, &counts(&owner).await);
    let shown = shown_turns(&owner, &first).await;
    let per_turn = |counts: &BusCounts| counts.values().sum::<u64>() as f64 / TURNS as f64;
    figure("messages between nodes for a turn, delivered and shown", {
        format!("{:.2} {delivered:?}; {:.2} {shown:?}", per_turn(&delivered), per_turn(&shown))
    });
    let turns = TURNS as u64;
    let signals = delivered.remove(&("out".to_owned(), "signal".to_owned())).unwrap_or_default();
    assert!(signals <= 2 * turns, "the agent types, and types no more: {signals}");
    // An order is repeated, and answered again, if its node stands still for three seconds.
    let repeated = turns / 4;
    for (direction, kind) in [("out", "deliver"), ("in", "delivery_report")] {
        let count = delivered.remove(&(direction.to_owned(), kind.to_owned())).unwrap_or_default();
        assert!((turns..=turns + repeated).contains(&count), "{count} of {kind}");
    }
    assert!(delivered.is_empty(), "{delivered:?}");
    assert!(
        shown.iter().all(|((direction, _), _)| direction == "out"),
        "a client is shown without an answer: {shown:?}"
    );
    assert!(shown.values().sum::<u64>() >= turns, "{shown:?}");
}
