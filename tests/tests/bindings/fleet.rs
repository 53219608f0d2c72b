//! Bindings in a fleet: any node looks them up, and what a killed node left undone is done once by another.
use super::{await_recorded, bind, open, place, recorded, session_of};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::WebSocketClient;

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Starts nodes on one Redis.
async fn nodes(redis: &Redis, count: usize) -> Vec<(TempDir, Node)> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        let dir = tempdir().expect("a directory");
        let node = Node::start_on(&redis.url(), dir.path(), &["--demo"]).await;
        nodes.push((dir, node));
    }
    nodes
}

/// Covers: BD-S1, BR-30.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binding_of_a_killed_node_is_recorded_once_by_another() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &DURABLE);
    let mut fleet = nodes(&redis, 3).await;
    open(&fleet[2].1, &["s1"]).await;
    const BOUND: usize = 40;
    for n in 0..BOUND {
        let binder = &fleet[n % 2].1;
        bind(binder, json!({"conversation": place(&n.to_string()), "session_id": "s1"})).await;
        if n == BOUND / 2 {
            // Reports of the last bindings may be on their way.
            fleet[0].1.kill().await;
            fleet.swap_remove(0);
        }
    }
    let expected: Vec<String> = (0..BOUND).map(|n| format!("binding.bound {n}")).collect();
    for (_, node) in &fleet {
        assert_eq!(session_of(node, "7").await, "s1");
    }
    let mut looks = interval(Duration::from_millis(50));
    let all = timeout(4 * PATIENCE, async {
        loop {
            let mut facts = recorded(&fleet[0].1, "s1").await;
            if facts.len() >= BOUND {
                facts.sort_by_key(|fact| fact.rsplit(' ').next().and_then(|n| n.parse::<usize>().ok()));
                return facts;
            }
            looks.tick().await;
        }
    });
    assert_eq!(all.await.expect("every binding is recorded"), expected, "each once");
}

/// Covers: BD-L2, BD-L10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_in_a_fleet_ends_each_binding_once_also_after_redis_was_away() {
    let dir = tempdir().expect("a directory");
    let mut redis = Redis::start(dir.path(), &DURABLE);
    let fleet = nodes(&redis, 3).await;
    open(&fleet[0].1, &["s1"]).await;
    const BOUND: usize = 30;
    for n in 0..BOUND {
        let body = json!({"conversation": place(&n.to_string()), "session_id": "s1", "max_age_ms": 1_500});
        bind(&fleet[n % 3].1, body).await;
    }
    redis.kill();
    redis.restart();
    let mut looks = interval(Duration::from_millis(50));
    let facts = timeout(6 * PATIENCE, async {
        loop {
            let (status, page) = http::get(fleet[1].1.http, "/v1/sessions/s1/events?types=binding.ended&limit=500")
                .await
                .expect("an answer");
            let page: Value = serde_json::from_str(&page).unwrap_or_default();
            let count = page["events"].as_array().map_or(0, Vec::len);
            if status == 200 && count >= BOUND {
                return page;
            }
            looks.tick().await;
        }
    });
    let page = facts.await.expect("every binding ends");
    let events = page["events"].as_array().expect("events");
    assert_eq!(events.len(), BOUND, "each once");
    assert!(events.iter().all(|event| event["data"]["reason"] == "max_age_expired"), "{page}");
    for (_, node) in &fleet {
        assert_eq!(session_of(node, "7").await, Value::Null);
    }
}

/// Covers: BD-D7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_end_when_another_node_closes_their_session() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &DURABLE);
    let fleet = nodes(&redis, 2).await;
    open(&fleet[0].1, &["s1"]).await;
    bind(&fleet[1].1, json!({"conversation": place("7"), "session_id": "s1"})).await;
    await_recorded(&fleet[0].1, "s1", &["binding.bound 7"]).await;
    let mut ann = WebSocketClient::hello(fleet[1].1.http, "ann", vec![]).await.expect("ann connects");
    let closed = ann.ask("c", json!({"type": "session_close", "session_id": "s1"})).await.expect("an answer");
    assert_eq!(closed["type"], "session_closed", "{closed}");
    let mut looks = interval(Duration::from_millis(50));
    timeout(PATIENCE, async {
        while session_of(&fleet[1].1, "7").await != Value::Null {
            looks.tick().await;
        }
    })
    .await
    .expect("it ends");
    await_recorded(&fleet[0].1, "s1", &["binding.bound 7", "binding.ended 7 session_closed"]).await;
}
