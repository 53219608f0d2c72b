//! Bindings in a fleet: any node looks them up, and what a killed node left undone is done once by another.
use super::{await_recorded, bind, open, place, post, recorded, scope, session_of};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{interval, timeout};
use turnway_core::id::NodeId;
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
async fn expired_bindings_of_a_fleet_end_once_after_redis_was_away() {
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

/// A node that does not know the facts of bindings joins: nothing is bound, and what ends meanwhile is recorded later.
///
/// Covers: the level of facts of docs/ownership.md §4.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_wait_for_their_record_while_an_earlier_node_lives() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &DURABLE);
    let fleet = nodes(&redis, 1).await;
    let node = &fleet[0].1;
    open(node, &["s1"]).await;
    let bound = bind(node, json!({"conversation": place("7"), "session_id": "s1"})).await;
    await_recorded(node, "s1", &["binding.bound 7"]).await;
    let earlier = NodeId(7);
    let lease = format!("node:{{{earlier}}}");
    let record = r#"{"name":"x","address":"y","state":"serving","frames":1,"release":"0","seen_ms":9999999999999}"#;
    let _: redis::Value = redis.command(&["HSET", "nodes", &earlier.to_string(), record]);
    let _: redis::Value = redis.command(&["HSET", &lease, "1", "9999999999999"]);
    let mut looks = interval(Duration::from_millis(100));
    let refused = timeout(4 * PATIENCE, async {
        loop {
            let reply = post(node, "/v1/bindings", &json!({"conversation": place("8"), "session_id": "s1"})).await;
            if reply.status != 200 {
                return reply;
            }
            looks.tick().await;
        }
    });
    let refused = refused.await.expect("the node learns of the other");
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("fleet_upgrading")), "{}", refused.text);
    let before = recorded(node, "s1").await;
    let id = json!({"binding_id": bound["binding_id"], "scope": scope()});
    assert_eq!(post(node, "/v1/bindings/unbind", &id).await.status, 200);
    assert_eq!(session_of(node, "7").await, Value::Null);
    assert_eq!(recorded(node, "s1").await, before, "the other node could not read the fact");
    let _: redis::Value = redis.command(&["DEL", &lease]);
    let mut looks = interval(Duration::from_millis(100));
    timeout(4 * PATIENCE, async {
        while !recorded(node, "s1").await.contains(&"binding.ended 7 manual".to_owned()) {
            looks.tick().await;
        }
    })
    .await
    .expect("the end is recorded once all nodes know the fact");
}
