//! Tests retention limits with real nodes: a client that resumes from before the kept history gets a reset instead
//! of a silent gap, and the kept history works, across a restart too.
//!
//! Covers: ST-3, I7, G5.
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::time::interval;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{WebSocketClient, invoke};

#[tokio::test]
async fn resume_before_trimmed_history_gets_a_reset() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo", "--retention", "facts=10"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("a link");
    for turn in 0..20 {
        let text = format!("turn {turn}");
        let (said, _) = wire.turn("s1", "echo", &format!("m{turn}"), &text).await.expect("a turn");
        assert_eq!(said, text);
    }
    for restarted in [false, true] {
        if restarted {
            node.kill_and_restart().await;
        }
        let mut late = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("a link");
        let subscribe = json!({"type": "subscribe", "session_id": "s1", "after_seq": 1});
        let answer = late.ask("from-1", subscribe).await.expect("an answer");
        assert_eq!((&answer["type"], &answer["reset"]), (&json!("subscribed"), &json!(true)), "{answer}");
        assert_eq!(answer["reason"], "trimmed");
        let snapshot = &answer["snapshot"];
        assert_eq!((&snapshot["state"], &snapshot["active_agent"]), (&json!("open"), &json!("echo")));
        let tail = answer["seq"].as_u64().expect("a place");
        // A cursor within the kept history gets the facts after it, once and in order.
        let after = tail - 5;
        let subscribe = json!({"type": "subscribe", "session_id": "s1", "after_seq": after});
        let answer = late.ask("from-recent", subscribe).await.expect("an answer");
        assert_eq!((&answer["type"], &answer["reset"]), (&json!("subscribed"), &json!(null)), "{answer}");
        let mut last = after;
        while last < tail {
            let message = late.next().await.expect("a fact");
            if let Some(seq) = message["seq"].as_u64() {
                assert!(seq > last, "{message}");
                last = seq;
            }
        }
        // A message whose facts are trimmed is still known as a duplicate and opens no second turn.
        let again = late.ask("m0", turnway_tests::real::wire::invoke("s1", "echo", "turn 0")).await;
        let again = again.expect("an answer");
        assert_eq!((&again["type"], &again["duplicate"]), (&json!("turn_accepted"), &json!(true)), "{again}");
    }
}

/// All facts of an open turn are kept, even over the limit, so that a new client sees the user's message.
///
/// Covers: ST-3, I7.
#[tokio::test]
async fn open_turn_is_never_trimmed() {
    let agents = Agents::start(|_| {
        Reply::speak(async |stream| {
            for n in 0..100 {
                stream.event("state", &json!({"state": "thinking", "detail": {"n": n}})).await?;
            }
            stream.hung_up().await
        })
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--demo", "--retention", "facts=10", "--agent", &agents.flag("slow")];
    let node = Node::start(dir.path(), &args).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("a link");
    let members = json!({"type": "session_open", "session_id": "s1", "agents": ["echo", "slow"]});
    wire.ask("o", members).await.expect("an answer");
    for turn in 0..5 {
        wire.turn("s1", "echo", &format!("m{turn}"), "hi").await.expect("a turn");
    }
    let accepted = wire.ask("long", invoke("s1", "slow", "what was asked")).await.expect("accepted");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    let run = &accepted["run_id"];
    let first = wire.until(|message| message["type"] == "message" && message["run_id"] == *run).await;
    let first = first.expect("the question")["seq"].as_u64().expect("a place");
    let last = |message: &Value| message["type"] == "state" && message["detail"]["n"] == 99;
    wire.until(last).await.expect("all states");
    let web = Web::new(node.http, Some("ann"));
    let begun = Instant::now();
    let mut again = interval(Duration::from_millis(50));
    // All facts before the open turn are trimmed, and none of the turn.
    let page = loop {
        let page = web.json("/v1/sessions/s1/events?after_seq=0&limit=500").await;
        if page["floor"].as_u64() >= Some(first - 1) {
            break page;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing is trimmed: {}", page["floor"]);
        again.tick().await;
    };
    assert_eq!(page["floor"], first - 1, "the turn lacks its beginning");
    assert_eq!((&page["events"][0]["type"], &page["events"][0]["seq"]), (&json!("user.message"), &json!(first)));
    let messages = web.json("/v1/sessions/s1/messages").await;
    assert_eq!(messages["messages"][0]["content"], "what was asked", "{messages}");
}

/// Polls until a session is deleted.
async fn gone(web: &Web, session: &str) {
    let asked = async {
        while web.get(&format!("/v1/sessions/{session}")).await.status != 404 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it is deleted");
}

/// Covers: S-48.
#[tokio::test]
async fn sessions_older_than_max_age_are_deleted_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let slow = Agents::start(|_| Reply::speak(async |stream| stream.hung_up().await)).await;
    let file = dir.path().join("turnway.toml");
    std::fs::write(&file, "demo = true\n[store]\nmax_age = \"2s\"\n[quota]\nuser = \"64KiB\"\n").expect("a file");
    let file = file.to_str().expect("UTF-8");
    let slow = slow.flag("slow");
    let args = ["--config", file, "--durability", "mem", "--quic", "off", "--agent", &slow];
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let dir = dir.path().join(name);
        std::fs::create_dir_all(&dir).expect("a directory");
        nodes.push(Node::start_on(&server.url(), &dir, &args).await);
    }
    let ann = Web::new(nodes[0].http, Some("ann"));
    let mut open = ann.turn("open", "slow", "m", "hi", None).await;
    open.until(|event| event.data["type"] == "turn_accepted").await;
    let big = "x".repeat(6_000);
    for n in 0..4 {
        ann.turn(&format!("s{n}"), "echo", "m", &big, None).await.rest().await;
    }
    for n in 0..4 {
        gone(&ann, &format!("s{n}")).await;
    }
    assert_eq!(ann.get("/v1/sessions/open").await.status, 200, "a turn of it runs");
    // The bytes of the deleted sessions are free again.
    for n in 4..8 {
        ann.turn(&format!("s{n}"), "echo", "m", &big, None).await.rest().await;
    }
    // Metrics lag a little behind.
    let counted = async {
        loop {
            let mut expired = 0;
            for node in &nodes {
                let (_, page) = get(node.admin, "/metrics").await.expect("metrics");
                let line = page.lines().find_map(|line| line.strip_prefix("turnway_session_expired_total "));
                expired += line.and_then(|number| number.trim().parse::<u64>().ok()).expect("a number");
            }
            if expired >= 4 {
                return expired;
            }
        }
    };
    let expired = tokio::time::timeout(PATIENCE, counted).await.expect("they are counted");
    assert!((4..=8).contains(&expired), "each once: {expired}");
}
