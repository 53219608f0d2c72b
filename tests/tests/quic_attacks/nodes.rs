//! Tests early data, replays, and address validation across two nodes of a fleet.
use super::sample;
use serde_json::json;
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{Instant, interval};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, run, script};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::tls::{Pair, Trust};

/// Starts two nodes with one certificate on one Redis.
async fn fleet(dir: &TempDir) -> ([Node; 2], Pair, Redis) {
    let redis = Redis::start(dir.path(), &[]);
    let pair = Pair::make(dir.path(), "pair").await;
    let args = ["--demo", "--quic", "127.0.0.1:0", "--durability", "mem"];
    let start = async |name: &str| {
        let own = dir.path().join(name);
        std::fs::create_dir(&own).expect("a directory");
        Node::start_on(&redis.url(), &own, &[&args[..], &pair.flags()].concat()).await
    };
    let nodes = [start("n1").await, start("n2").await];
    (nodes, pair, redis)
}

fn port(node: &Node) -> String {
    node.quic.expect("it speaks QUIC").port().to_string()
}

/// Covers: S-18, S-22, S-23.
#[tokio::test]
async fn retry_tokens_are_shared_and_stateless_resets_are_not() {
    let dir = tempdir().expect("a directory");
    let (mut nodes, pair, _redis) = fleet(&dir).await;
    let said = run("quic_nodes.py", &[&port(&nodes[0]), &port(&nodes[1]), &nodes[1].id, pair.ca()]).await;
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 3, "{said}");
    for node in &mut nodes {
        node.must_run();
    }
}

/// Returns the last sequence number of the session's log at this node; `None` if the session does not exist.
async fn log(node: &Node, trust: &Trust) -> Option<u64> {
    let mut wire = trust.hello(node.http, "ann").await.expect("welcome");
    let answer = wire.ask("s", json!({"type": "subscribe", "session_id": "s1"})).await.expect("answered");
    assert!(answer["type"] == "subscribed" || answer["code"] == "not_found", "{answer}");
    answer["seq"].as_u64()
}

/// Waits until a node has accepted at least this many inputs; metrics lag a little behind.
async fn accepted(node: &Node, least: f64) -> f64 {
    let begun = Instant::now();
    let mut pace = interval(Duration::from_millis(50));
    loop {
        pace.tick().await;
        let inputs = sample(node, "turnway_turn_accepted_total ").await;
        if inputs >= least {
            return inputs;
        }
        assert!(begun.elapsed() < PATIENCE, "{inputs}");
    }
}

/// Covers: S-21.
#[tokio::test]
async fn early_data_and_replayed_packets_have_no_effect() {
    let dir = tempdir().expect("a directory");
    let (mut nodes, pair, _redis) = fleet(&dir).await;
    let trust = Trust::of([&pair]);
    let ports = nodes.each_ref().map(port);
    let mut client = Running::start_in_steps(script("quic_replay.py", &[&ports[0], &ports[1], pair.ca()]));
    assert_eq!(client.line().await, "early");
    for node in &nodes {
        assert_eq!(log(node, &trust).await, None, "early data is not heard, and not at another node");
    }
    client.go_on().await;
    assert_eq!(client.line().await, "turn");
    let inputs = accepted(&nodes[0], 2.0).await;
    assert_eq!(inputs, 2.0, "what came early comes again after the handshake, once");
    let before = log(&nodes[0], &trust).await;
    assert!(before.is_some_and(|seq| seq > 4), "{before:?}");
    client.go_on().await;
    assert_eq!(client.line().await, "replayed");
    for node in &nodes {
        assert_eq!(log(node, &trust).await, before);
    }
    client.go_on().await;
    client.end().await;
    for node in &mut nodes {
        node.must_run();
    }
}
