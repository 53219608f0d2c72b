//! Fair shares of a real node, quotas of stored bytes, and sessions that are deleted.
use std::path::Path;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

/// Writes a configuration of these sections, and returns its path.
fn configuration(dir: &Path, text: &str) -> String {
    let file = dir.join("turnway.toml");
    std::fs::write(&file, text).expect("a file");
    file.to_str().expect("UTF-8").to_owned()
}

/// A node that asks who its clients are, with this configuration and a key for each of two tenants.
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

/// Says something and waits until the stream tells that it was accepted.
async fn accepted(web: &Web, session: &str, agent: &str) -> turnway_tests::real::web::Stream {
    let mut stream = web.turn(session, agent, "m", "hi", None).await;
    assert_eq!(stream.status, 200, "{session}");
    stream.until(|event| event.data["type"] == "turn_accepted").await;
    stream
}

/// Covers: S-17.
#[tokio::test]
async fn a_key_with_many_slow_turns_leaves_places_for_others() {
    let dir = tempdir().expect("a directory");
    let slow = Agents::start(|_| Reply::speak(async |voice| voice.hung_up().await)).await;
    let good = Agents::start(|_| {
        Reply::speak(async |voice| {
            voice.delta("fine").await?;
            voice.done().await
        })
    })
    .await;
    let agents = ["--agent", &slow.flag("slow"), "--agent", &good.flag("good")];
    let (node, eve, ann) = shared(&dir, "[limit]\nattempts = \"8\"", &agents).await;
    let (eve, ann) = (web(&node, &eve), web(&node, &ann));
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
async fn over_a_quota_inputs_are_refused_until_sessions_are_deleted() {
    let dir = tempdir().expect("a directory");
    let (mut node, eves, anns) = shared(&dir, "[quota]\nuser = \"64KiB\"", &[]).await;
    let (eve, ann) = (web(&node, &eves), web(&node, &anns));
    let big = "x".repeat(20_000);
    for n in 0..2 {
        eve.turn(&format!("e{n}"), "echo", "m", &big, None).await.rest().await;
    }
    let refused = eve.turn("e2", "echo", "m", &big, None).await.reply().await;
    refused.must_be(429, "quota_exceeded");
    assert!(refused.json()["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0));
    let events = ann.turn("a", "echo", "m", &big, None).await.rest().await;
    assert_eq!(events.last().expect("an end").data["status"], "completed", "others have their own");
    // What is stored is known after a restart as well.
    node.kill_and_restart().await;
    let eve = web(&node, &eves);
    eve.turn("e2", "echo", "m", &big, None).await.reply().await.must_be(429, "quota_exceeded");
    assert_eq!(eve.ask("DELETE", "/v1/sessions/e0", &[], "").await.status, 204);
    let events = eve.turn("e3", "echo", "m", "hi", None).await.rest().await;
    assert_eq!(events.last().expect("an end").data["status"], "completed", "its bytes are free");
}

#[tokio::test]
async fn a_deleted_session_is_gone_for_good() {
    let dir = tempdir().expect("a directory");
    for store in ["embedded", "memory"] {
        let dir = dir.path().join(store);
        std::fs::create_dir_all(&dir).expect("a directory");
        let place =
            if store == "memory" { "memory:".to_owned() } else { format!("embedded:{}/data", dir.display()) };
        let node = Node::start_on(&place, &dir, &["--demo"]).await;
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
        let names: Vec<&str> = listed["sessions"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|s| s["session_id"].as_str())
            .collect();
        assert_eq!(names, ["s2"], "{store}");
    }
}
