//! Tests fair shares between users, quotas of stored bytes, and deleted sessions, with real nodes.
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};
use tokio::time::interval;
use turnway_core::limits;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::http::get;
use turnway_tests::real::identity::{Key, guarded, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Writes a configuration of these sections, and returns its path.
fn configuration(dir: &Path, text: &str) -> String {
    let file = dir.join("turnway.toml");
    std::fs::write(&file, text).expect("a file");
    file.to_str().expect("UTF-8").to_owned()
}

/// Starts a node with key authentication and this configuration; returns a key for each of two tenants as well.
async fn shared(dir: &TempDir, text: &str, args: &[&str]) -> (Node, Key, Key) {
    let file = configuration(dir.path(), &format!("demo = true\n{text}\n"));
    let args: Vec<&str> = ["--config", &file].into_iter().chain(args.iter().copied()).collect();
    let node = guarded(dir, &args).await;
    let eve = Key::make(&node, &["--tenant", "evil", "--user", "eve"]).await;
    let ann = Key::make(&node, &["--tenant", "acme", "--user", "ann"]).await;
    (node, eve, ann)
}

fn web(node: &Node, key: &Key) -> Web {
    Web::new(node.http, None).key(key)
}

/// Sends a message and waits until its turn is accepted.
async fn accepted(web: &Web, session: &str, agent: &str) -> turnway_tests::real::web::Stream {
    let mut stream = web.turn(session, agent, "m", "hi", None).await;
    assert_eq!(stream.status, 200, "{session}");
    stream.until(|event| event.data["type"] == "turn_accepted").await;
    stream
}

/// Covers: S-17.
#[tokio::test]
async fn user_with_many_slow_turns_leaves_slots_for_others() {
    let dir = tempdir().expect("a directory");
    let slow = Agents::start(|_| Reply::speak(async |stream| stream.hung_up().await)).await;
    let good = Agents::start(|_| {
        Reply::speak(async |stream| {
            stream.delta("fine").await?;
            stream.done().await
        })
    })
    .await;
    let agents = ["--agent", &slow.flag("slow"), "--agent", &good.flag("good")];
    let (node, eve, ann) = shared(&dir, "[limit]\nattempts = \"8\"", &agents).await;
    let eve = web(&node, &eve);
    let ann = web(&node, &ann);
    let mut open = Vec::new();
    for n in 0..8 {
        open.push(accepted(&eve, &format!("e{n}"), "slow").await);
    }
    let events = ann.turn("a", "good", "m", "hi", None).await.rest().await;
    assert_eq!(events.last().expect("an end").data["status"], "completed");
    assert!(slow.journal().len() <= 4, "nine sixteenths of eight places: {}", slow.journal().len());
    drop(open);
}

/// Covers: S-48.
#[tokio::test]
async fn full_quota_refuses_inputs_until_sessions_are_deleted() {
    let dir = tempdir().expect("a directory");
    let (mut node, eves, anns) = shared(&dir, "[quota]\nuser = \"64KiB\"", &[]).await;
    let eve = web(&node, &eves);
    let ann = web(&node, &anns);
    let big = "x".repeat(20_000);
    for n in 0..2 {
        eve.turn(&format!("e{n}"), "echo", "m", &big, None).await.rest().await;
    }
    let refused = eve.turn("e2", "echo", "m", &big, None).await.reply().await;
    refused.must_be(429, "quota_exceeded");
    assert!(refused.json()["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0));
    let events = ann.turn("a", "echo", "m", &big, None).await.rest().await;
    assert_eq!(events.last().expect("an end").data["status"], "completed", "others have their own");
    // The stored bytes are known after a restart as well.
    node.kill_and_restart().await;
    let eve = web(&node, &eves);
    eve.turn("e2", "echo", "m", &big, None).await.reply().await.must_be(429, "quota_exceeded");
    assert_eq!(eve.ask("DELETE", "/v1/sessions/e0", &[], "").await.status, 204);
    let events = eve.turn("e3", "echo", "m", "hi", None).await.rest().await;
    assert_eq!(events.last().expect("an end").data["status"], "completed", "its bytes are free");
}

/// Returns the amount of a resource that users hold at a node, by its metric label.
async fn held(node: &Node, resource: &str) -> u64 {
    let (_, metrics) = get(node.admin, "/metrics").await.expect("metrics");
    let name = format!("turnway_share_held{{resource=\"{resource}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("no {name}")).parse().expect("a count")
}

/// Waits until this amount of a resource is held.
async fn until_held(node: &Node, resource: &str, amount: u64) {
    let begun = Instant::now();
    let mut again = interval(Duration::from_millis(50));
    loop {
        let now = held(node, resource).await;
        if now == amount {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{resource}: {now} and not {amount}");
        again.tick().await;
    }
}

/// Covers: S-17, G8.
#[tokio::test]
async fn share_amounts_are_released() {
    let dir = tempdir().expect("a directory");
    let slow = Agents::start(|_| Reply::speak(async |stream| stream.hung_up().await)).await;
    let (node, eve, _) = shared(&dir, "", &["--agent", &slow.flag("slow")]).await;
    let mut wire = eve.hello(node.http, None).await.expect("welcome");
    for n in 0..3 {
        wire.turn(&format!("s{n}"), "echo", "m", "hi").await.expect("a turn");
    }
    let run = wire.ask("long", invoke("s3", "slow", "think")).await.expect("an answer");
    assert_eq!(run["type"], "turn_accepted", "{run}");
    until_held(&node, "attempts", 1).await;
    until_held(&node, "subscriptions", 4).await;
    assert!(held(&node, "content_bytes").await > 0 && held(&node, "sessions").await > 0);
    wire.say(json!({"type": "cancel_run", "run_id": run["run_id"]})).await.expect("said");
    wire.until(|message| message["type"] == "done").await.expect("its end");
    drop(wire);
    for resource in ["attempts", "content_bytes", "sessions", "subscriptions"] {
        until_held(&node, resource, 0).await;
    }
}

/// Covers: S-17, G8.
#[tokio::test]
async fn attempt_slots_are_released() {
    let dir = tempdir().expect("a directory");
    let good = Agents::start(|_| Reply::speak(async |stream| stream.done().await)).await;
    // Besides this slot there are 256 for attempts that are being ended.
    let file = configuration(dir.path(), "[limit]\nattempts = \"1\"");
    let args = ["--config", &file, "--agent", &good.flag("good")];
    let node = Node::start_on("memory:", dir.path(), &args).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    for n in 0..260 {
        let (_, done) = wire.turn("s", "good", &format!("m{n}"), "hi").await.expect("a turn");
        assert_eq!(done["status"], "completed", "{n}: {done}");
    }
}

/// A connection may send any number of requests, as long as only a limited number is unanswered.
///
/// Covers: S-17.
#[tokio::test]
async fn answered_requests_free_their_slots() {
    let dir = tempdir().expect("a directory");
    let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    for n in 0..2 * limits::LINK_REQUESTS_MAX {
        wire.turn("s", "echo", &format!("m{n}"), "hi").await.expect("a turn");
    }
}

/// HTTP requests count towards their user's share, as connections do.
///
/// Covers: S-17.
#[tokio::test]
async fn http_streams_count_towards_the_users_share() {
    let dir = tempdir().expect("a directory");
    let pepper = pepper(dir.path());
    let auth = ["--demo", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    // File limit with room for eight connections.
    let node = Node::start_with_files(395, "memory:", dir.path(), &auth).await;
    let eve = web(&node, &Key::make(&node, &["--tenant", "evil", "--user", "eve"]).await);
    let ann = web(&node, &Key::make(&node, &["--tenant", "acme", "--user", "ann"]).await);
    eve.turn("e", "echo", "m", "hi", None).await.rest().await;
    let mut inside = Vec::new();
    let refused = loop {
        let stream = eve.open("GET", "/v1/sessions/e/events", &[("accept", "text/event-stream")], "").await;
        if stream.status != 200 {
            break stream.reply().await;
        }
        inside.push(stream);
        assert!(inside.len() < 8, "one user has all of them");
    };
    refused.must_be(429, "over_share");
    assert_eq!(ann.get("/v1/sessions").await.status, 200, "others find room");
    drop(inside);
}

/// Stored bytes count for the owner of the session, even if another user sent them.
///
/// Covers: S-48.
#[tokio::test]
async fn quota_of_the_session_owner_applies() {
    let dir = tempdir().expect("a directory");
    let (node, eve, _) = shared(&dir, "[quota]\nuser = \"64KiB\"", &[]).await;
    let boss = ["--tenant", "evil", "--user", "boss", "--scopes", "read,write,operator"];
    let eve = web(&node, &eve);
    let boss = web(&node, &Key::make(&node, &boss).await);
    let big = "x".repeat(20_000);
    for n in 0..2 {
        eve.turn(&format!("e{n}"), "echo", "m", &big, None).await.rest().await;
    }
    boss.turn("e0", "echo", "n", &big, None).await.reply().await.must_be(429, "quota_exceeded");
    let events = boss.turn("b0", "echo", "n", &big, None).await.rest().await;
    assert_eq!(events.last().expect("an end").data["status"], "completed", "its own is another one");
}

/// Covers: S-48.
#[tokio::test]
async fn quotas_apply_on_redis_and_memory_stores() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    for (name, store) in [("redis", server.url()), ("memory", "memory:".to_owned())] {
        let dir = dir.path().join(format!("{name}-node"));
        std::fs::create_dir_all(&dir).expect("a directory");
        let file = configuration(&dir, "demo = true\n[quota]\nuser = \"64KiB\"\n");
        let args = ["--config", &file, "--durability", "mem", "--quic", "off"];
        let node = Node::start_on(&store, &dir, &args).await;
        let eve = Web::new(node.http, Some("eve"));
        let ann = Web::new(node.http, Some("ann"));
        let big = "x".repeat(20_000);
        for n in 0..2 {
            eve.turn(&format!("e{n}"), "echo", "m", &big, None).await.rest().await;
        }
        eve.turn("e2", "echo", "m", &big, None).await.reply().await.must_be(429, "quota_exceeded");
        let (_, page) = get(node.admin, "/metrics").await.expect("metrics");
        let told = |line: &str| page.lines().find_map(|text| text.strip_prefix(line)?.trim().parse::<u64>().ok());
        assert_eq!(told("turnway_store_quota_bytes{whose=\"user\"}"), Some(64 * 1024), "{name}");
        assert!(told("turnway_store_used_bytes").is_some_and(|bytes| bytes > 64 * 1024), "{name}: {page}");
        let most = if name == "memory" { 2 << 30 } else { 0 };
        assert_eq!(told("turnway_store_capacity_bytes"), Some(most), "{name}");
        assert!(told("turnway_link_capacity{resource=\"tcp\"}").is_some_and(|links| links > 0), "{name}");
        assert_eq!(told("turnway_link_over_total{resource=\"tcp\"}"), Some(0), "{name}");
        let events = ann.turn("a", "echo", "m", &big, None).await.rest().await;
        assert_eq!(events.last().expect("an end").data["status"], "completed", "{name}: others have their own");
        assert_eq!(eve.ask("DELETE", "/v1/sessions/e0", &[], "").await.status, 204, "{name}");
        let events = eve.turn("e3", "echo", "m", "hi", None).await.rest().await;
        assert_eq!(events.last().expect("an end").data["status"], "completed", "{name}: its bytes are free");
    }
}

#[tokio::test]
async fn deleted_session_cannot_be_used_again() {
    let dir = tempdir().expect("a directory");
    for store in ["embedded", "memory"] {
        let dir = dir.path().join(store);
        std::fs::create_dir_all(&dir).expect("a directory");
        let store = if store == "memory" { "memory:".to_owned() } else { format!("embedded:{}/data", dir.display()) };
        let node = Node::start_on(&store, &dir, &["--demo"]).await;
        let ann = Web::new(node.http, Some("ann"));
        ann.turn("s1", "echo", "m", "secret words", None).await.rest().await;
        ann.turn("s2", "echo", "m", "hi", None).await.rest().await;
        let gone = Web::new(node.http, Some("bob")).ask("DELETE", "/v1/sessions/s1", &[], "").await;
        gone.must_be(404, "not_found");
        ann.ask("DELETE", "/v1/sessions/nothing", &[], "").await.must_be(404, "not_found");
        for _ in 0..2 {
            assert_eq!(ann.ask("DELETE", "/v1/sessions/s1", &[], "").await.status, 204, "{store}");
        }
        ann.get("/v1/sessions/s1").await.must_be(404, "not_found");
        ann.get("/v1/sessions/s1/events").await.must_be(404, "not_found");
        ann.get("/v1/sessions/s1/messages").await.must_be(404, "not_found");
        ann.turn("s1", "echo", "m", "secret words", None).await.reply().await.must_be(404, "not_found");
        let listed = ann.json("/v1/sessions").await;
        let names: Vec<&str> =
            listed["sessions"].as_array().expect("a list").iter().filter_map(|s| s["session_id"].as_str()).collect();
        assert_eq!(names, ["s2"], "{store}");
    }
}
