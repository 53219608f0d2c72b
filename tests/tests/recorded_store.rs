//! Stores that an earlier build wrote (tests/recorded): this build reads all of them and goes on.
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

/// Sessions in which nothing was pending when the earlier build was killed.
const QUIET: [&str; 10] =
    ["plain", "members", "confirmed", "rejected", "actions", "failed", "cancelled", "steered", "closed", "long"];

fn recorded(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded/b3c17be").join(file)
}

/// Returns what the earlier build answered about its store of this kind.
fn expected(kind: &str) -> Value {
    let unpacked = Command::new("gzip").arg("-dc").arg(recorded("expected.json.gz")).output().expect("gzip runs");
    assert!(unpacked.status.success(), "{unpacked:?}");
    let mut all: Value = serde_json::from_slice(&unpacked.stdout).expect("JSON");
    all[kind].take()
}

async fn agents() -> Agents {
    Agents::start(|asked| {
        Reply::speak(move |stream| async move {
            stream.delta(&format!("new: {}", asked.text)).await?;
            stream.done().await
        })
    })
    .await
}

/// Holds the present build to all that the earlier one answered, and to what was open when that one was killed.
async fn build_goes_on(node: &Node, expected: &Value) {
    let resume = ["open", "open-handover"].map(|session| json!({"session_id": session, "after_seq": 0}));
    let mut ann = WebSocketClient::hello(node.http, "ann", resume.to_vec()).await.expect("welcome");
    let web = Web::new(node.http, Some("ann"));
    // The time of the turn whose agent was answering is over, and so is that of the handover. The input behind the turn
    // is next.
    let mut ends = Vec::new();
    let mut is_rejected = false;
    while ends.len() < 2 || !is_rejected {
        let message = ann.next().await.expect("a message");
        is_rejected |= message["name"] == "HANDOVER_REJECTED";
        if message["type"] == "done" && message["session_id"] == "open" {
            ends.push(message);
        }
    }
    let how = ends.iter().map(|end| (&end["status"], &end["stop_reason"]));
    assert_eq!(
        how.collect::<Vec<_>>(),
        [(&json!("failed"), &json!("timeout")), (&json!("completed"), &json!("end_turn"))],
        "{ends:?}"
    );
    for session in QUIET {
        let known = &expected["sessions"][session];
        assert_eq!(json!(web.facts(session).await), known["events"], "{session}");
        assert_eq!(web.json(&format!("/v1/sessions/{session}")).await, known["state"], "{session}");
    }
    for session in ["open", "open-handover"] {
        let known = expected["sessions"][session]["events"].as_array().expect("events").clone();
        let present = web.facts(session).await;
        assert!(present.len() > known.len(), "{session}");
        assert_eq!(present[..known.len()], known[..], "{session}");
        let ends = present.iter().filter(|fact| fact["type"] == "run.done" || fact["type"] == "run.failed").count();
        assert_eq!(ends, if session == "open" { 2 } else { 1 }, "{session}");
    }
    let last = web.facts("open-handover").await.pop().expect("a fact");
    assert_eq!((&last["type"], &last["data"]["why"]), (&json!("handover.rejected"), &json!("expired")), "{last}");
    for session in ["long", "confirmed"] {
        let (text, done) = ann.turn(session, "alice", &format!("after-{session}"), "hi").await.expect("a turn");
        assert_eq!((text.as_str(), &done["status"]), ("new: hi", &json!("completed")));
    }
    let listed = web.json("/v1/sessions?limit=50").await;
    let ids = |list: &Value| -> Vec<Value> {
        let sessions = list["sessions"].as_array().expect("sessions");
        sessions.iter().map(|session| json!([session["session_id"], session["created_ts"], session["state"]])).collect()
    };
    assert_eq!(ids(&listed), ids(&expected["list"]));
}

async fn start(store: &str, dir: &TempDir, agents: &Agents, flags: &[&str]) -> Node {
    let agents = ["alice", "bob"].map(|name| format!("{},on_owner_loss=retry,steer=true", agents.flag(name)));
    let args = [&["--agent", &agents[0], "--agent", &agents[1]], flags].concat();
    Node::start_on(store, dir.path(), &args).await
}

/// Covers: ST-1, G1, G2.
#[tokio::test]
async fn embedded_store_of_an_earlier_build_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let unpacked = Command::new("tar").arg("xzf").arg(recorded("embedded.tar.gz")).arg("-C").arg(dir.path()).status();
    assert!(unpacked.expect("tar runs").success());
    let agents = agents().await;
    let store = format!("embedded:{}", dir.path().join("data").display());
    let node = start(&store, &dir, &agents, &[]).await;
    build_goes_on(&node, &expected("embedded")).await;
}

/// Covers: ST-1, G1, G2.
#[tokio::test]
async fn redis_store_of_an_earlier_build_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::copy(recorded("dump.rdb"), dir.path().join("dump.rdb")).expect("a copy");
    let redis = Redis::start(dir.path(), &[]);
    let agents = agents().await;
    let node = start(&redis.url(), &dir, &agents, &["--durability", "mem"]).await;
    build_goes_on(&node, &expected("redis")).await;
}
