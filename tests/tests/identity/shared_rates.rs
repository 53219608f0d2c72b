//! Rate limits shared by all nodes on one store.
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{Instant, interval, timeout};
use turnway_tests::real::identity::{Key, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, figure, http};

/// Rate of the key, in requests a second, and its burst.
const RATE: f64 = 50.0;
const BURST: f64 = 100.0;
/// Minimum duration of a flood: long enough that three nodes without shared limits would let through far
/// more.
const FLOOD: Duration = Duration::from_secs(6);
/// Maximum time of a cancel, where nodes, Redis and the flood share the same cores.
const CANCELLED_WITHIN: Duration = Duration::from_millis(500);

struct Fleet {
    redis: Redis,
    nodes: Vec<Node>,
    _dirs: Vec<TempDir>,
}

/// Results of a flood.
#[derive(Debug)]
struct Flood {
    /// Number of requests of each node that were not rate limited.
    good: Vec<usize>,
    asked: usize,
    took: Duration,
}

impl Fleet {
    async fn start(count: usize) -> Self {
        let dirs: Vec<_> = (0..=count).map(|_| tempdir().expect("a directory")).collect();
        // Redis is killed and must keep the keys.
        let kept = ["--appendonly", "yes", "--appendfsync", "always"];
        let redis = Redis::start(&dirs[0].path().join("redis"), &kept);
        let pepper = pepper(dirs[0].path());
        let file = dirs[0].path().join("turnway.toml");
        let rates = format!("demo = true\n[rate]\nconnection = \"off\"\nkey = \"{RATE}/s\"\n");
        std::fs::write(&file, rates).expect("a file");
        let file = file.display().to_string();
        let pepper = pepper.display().to_string();
        let flags = ["--durability", "mem", "--auth", "keys", "--auth-pepper", &pepper, "--config", &file];
        let start = |dir: &'_ TempDir| {
            let url = redis.url();
            let path = dir.path().to_owned();
            async move { Node::start_on(&url, &path, &flags).await }
        };
        let nodes = join_all(dirs[1..].iter().map(start)).await;
        Self { redis, nodes, _dirs: dirs }
    }

    /// Connects to each node once the node knows the key.
    async fn wires(&self, key: &Key) -> Vec<WebSocketClient> {
        let mut wires = Vec::new();
        for node in &self.nodes {
            let known = async {
                loop {
                    if let Ok(wire) = key.hello(node.http, None).await {
                        break wire;
                    }
                }
            };
            wires.push(timeout(PATIENCE, known).await.expect("known everywhere"));
        }
        wires
    }

    /// Returns each node's count of exchanges about shared rates with this outcome.
    async fn shared_counts(&self, outcome: &str) -> Vec<f64> {
        let mut lines = Vec::new();
        for node in &self.nodes {
            let (_, page) = http::get(node.admin, "/metrics").await.expect("metrics");
            let line = format!("turnway_rate_shared_total{{outcome=\"{outcome}\"}} ");
            let count = page.lines().find_map(|text| text.strip_prefix(&line)).expect("it is counted");
            lines.push(count.parse().expect("a count"));
        }
        lines
    }

    /// Waits until all nodes report this readiness status.
    async fn until_ready(&self, status: u16) {
        let mut again = interval(Duration::from_millis(5));
        for node in &self.nodes {
            let seen = async {
                while http::get(node.admin, "/readyz").await.expect("it is served").0 != status {
                    again.tick().await;
                }
            };
            timeout(PATIENCE, seen).await.expect("it is noticed");
        }
    }
}

/// Sends requests for [`FLOOD`], whatever the answers are.
async fn one_flood(wire: &mut WebSocketClient, begun: Instant) -> (usize, usize) {
    let mut asked = 0;
    let mut good = 0;
    let mut pace = interval(Duration::from_millis(10));
    while begun.elapsed() < FLOOD {
        pace.tick().await;
        for n in 0..5 {
            let id = format!("f{}", asked + n);
            let ask = json!({"type": "session_open", "session_id": "s1", "request_id": id});
            wire.say(ask).await.expect("it is said");
        }
        asked += 5;
        for _ in 0..5 {
            let fits = |m: &Value| m["request_id"].as_str().is_some_and(|id| id.starts_with('f'));
            let message = wire.until(fits).await.expect("an answer to each");
            good += usize::from(message["code"] != "rate_limited");
        }
    }
    (good, asked)
}

async fn flood(wires: &mut [WebSocketClient]) -> Flood {
    let begun = Instant::now();
    let all = join_all(wires.iter_mut().map(|wire| one_flood(wire, begun))).await;
    let asked = all.iter().map(|(_, asked)| asked).sum();
    Flood { good: all.iter().map(|(good, _)| *good).collect(), asked, took: begun.elapsed() }
}

impl Flood {
    fn sum(&self) -> f64 {
        self.good.iter().sum::<usize>() as f64
    }

    /// Asserts the documented bounds: the rate, one burst, and one burst for each node; and not less than the
    /// rate.
    fn assert_shared(&self) {
        let rate = RATE * self.took.as_secs_f64();
        let nodes = self.good.len() as f64;
        assert!(self.asked as f64 > 2.0 * (rate + BURST * (nodes + 1.0)), "no flood: {self:?}");
        assert!(self.sum() <= rate + BURST + nodes * BURST + 1.0, "{self:?}");
        assert!(self.sum() >= 0.8 * rate, "{self:?}");
    }
}

/// Covers: S-17, G-17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_rate_is_shared_by_all_nodes() {
    let fleet = Fleet::start(3).await;
    let ann = Key::make(&fleet.nodes[0], &["--user", "ann"]).await;
    let bob = Key::make(&fleet.nodes[0], &["--user", "bob"]).await;
    let mut wires = fleet.wires(&ann).await;
    let mut others = fleet.wires(&bob).await;
    let mut stopper = fleet.wires(&ann).await;
    let mut shown = fleet.wires(&ann).await;
    let run = shown[1].ask("turn", invoke("long", "counter", "count to 10000 every 20ms")).await;
    let run = run.expect("an answer")["run_id"].clone();
    shown[1].until(|m| m["type"] == "delta").await.expect("an answer has begun");

    let beside = async {
        tokio::time::timeout(FLOOD / 2, shown[1].until(|m| m["type"] == "done")).await.expect_err("it runs");
        let asked_at = Instant::now();
        stopper[0].say(json!({"type": "cancel_run", "run_id": run})).await.expect("it is said");
        let done = shown[1].until(|m| m["type"] == "done").await.expect("its end");
        assert_eq!((&done["run_id"], &done["status"]), (&run, &json!("cancelled")), "{done}");
        let took = asked_at.elapsed();
        // The rates of other keys are not reduced.
        for (n, wire) in others.iter_mut().enumerate() {
            for m in 0..10 {
                let ask = json!({"type": "session_open", "session_id": format!("bob-{n}")});
                let told = wire.ask(&format!("b{m}"), ask).await.expect("an answer");
                assert_ne!(told["code"], "rate_limited", "{told}");
            }
        }
        took
    };
    let (flooded, cancelled) = tokio::join!(flood(&mut wires), beside);
    flooded.assert_shared();
    assert!(cancelled <= CANCELLED_WITHIN, "{cancelled:?}");
    let told = fleet.shared_counts("answered").await;
    assert!(told.iter().all(|count| *count > 0.0), "{told:?}");
    let allowed = RATE * flooded.took.as_secs_f64();
    figure("one key at three nodes: let through / allowed by the rate alone / asked", {
        format!("{} / {allowed:.0} / {} in {:?}", flooded.sum(), flooded.asked, flooded.took)
    });
    figure("cancel at another node of a fleet that its key floods", format!("{cancelled:?}"));
}

/// Refuses no request because the store is unavailable, and does not charge the requests of that time
/// afterwards.
///
/// Covers: S-17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_limit_rates_alone_without_redis() {
    let mut fleet = Fleet::start(2).await;
    let ann = Key::make(&fleet.nodes[0], &["--user", "ann"]).await;
    let mut wires = fleet.wires(&ann).await;
    fleet.redis.kill();
    fleet.until_ready(503).await;
    let away = flood(&mut wires).await;
    let alone = RATE * away.took.as_secs_f64();
    for good in &away.good {
        assert!((0.8 * alone..=alone + BURST + 1.0).contains(&(*good as f64)), "{away:?}");
    }
    let told = fleet.shared_counts("unanswered").await;
    assert!(told.iter().all(|count| *count > 0.0), "{told:?}");

    fleet.redis.restart();
    fleet.until_ready(200).await;
    let before = fleet.shared_counts("answered").await;
    let mut known = interval(Duration::from_millis(20));
    let heard = async {
        while fleet.shared_counts("answered").await.iter().zip(&before).any(|(now, before)| now <= before) {
            known.tick().await;
            for (n, wire) in wires.iter_mut().enumerate() {
                let ask = json!({"type": "session_open", "session_id": format!("back-{n}")});
                wire.ask("back", ask).await.expect("an answer");
            }
        }
    };
    timeout(PATIENCE, heard).await.expect("they tell each other again");
    let back = flood(&mut wires).await;
    back.assert_shared();
    figure("let through by two nodes in a flood without Redis / after it is back", {
        format!("{} in {:?} / {} in {:?}", away.sum(), away.took, back.sum(), back.took)
    });
}

/// Counts resumes in a bucket of their own at all nodes, whatever the load of other requests, and keeps no
/// record of a bucket that is full again.
///
/// Covers: S-17, G-17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_inputs_does_not_limit_resumes_elsewhere() {
    let fleet = Fleet::start(2).await;
    let ann = Key::make(&fleet.nodes[0], &["--user", "ann"]).await;
    let mut wires = fleet.wires(&ann).await;
    wires[0].turn("s1", "echo", "m", "hi").await.expect("a turn");
    let (busy, quiet) = wires.split_at_mut(1);
    let resumes = async {
        let mut pace = interval(Duration::from_millis(200));
        for n in 0..120 {
            // Five at once: the nodes exchange counts before the next ones.
            if n % 5 == 0 {
                pace.tick().await;
            }
            let ask = json!({"type": "subscribe", "session_id": "s1", "after_seq": 0});
            let answer = quiet[0].ask(&format!("r{n}"), ask).await.expect("an answer");
            assert_eq!(answer["type"], "subscribed", "{n}: {answer}");
        }
    };
    let (flooded, ()) = tokio::join!(flood(busy), resumes);
    assert!(flooded.asked as f64 > 2.0 * (RATE * flooded.took.as_secs_f64() + BURST), "no flood: {flooded:?}");
    let kept: Vec<String> = fleet.redis.command(&["KEYS", "rate:*"]);
    for key in &kept {
        let left: i64 = fleet.redis.command(&["PTTL", key]);
        assert_ne!(left, -1, "{key} is kept for ever");
    }
}
