//! Tests Python clients and agents, written from the documents alone, against a real node.
//!
//! Covers: MP-A1, MP-A3, MP-A5, MP-A7, MP-F1, MP-C1, MP-G1.
use serde_json::json;
use std::path::Path;
use tokio::process::Command;
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, run, script};
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Starts the standard-library agent with this delay; returns the process and its `ID=URL` flag.
async fn agent(id: &str, pace_ms: &str) -> (Running, String) {
    listening(id, script("agent_plain.py", &[pace_ms])).await
}

/// Starts an agent that first prints `listening PORT`; returns the process and its `ID=URL` flag.
async fn listening(id: &str, command: Command) -> (Running, String) {
    let mut agent = Running::start(command);
    let line = agent.line().await;
    let port = line.strip_prefix("listening ").expect("its port");
    let flag = format!("{id}=http://127.0.0.1:{port},on_owner_loss=retry");
    (agent, flag)
}

/// Covers: MP-A0, MP-M0, MP-F4, MP-F5, MP-A3, MP-C1, MP-F1, MP-G1, MP-G2.
#[tokio::test]
async fn minimal_client_completes_a_turn_with_a_minimal_agent() {
    let (_agent, flag) = agent("agentA", "1").await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &flag]).await;
    let url = format!("ws://{}/v1/connect", node.http);
    let answer = run("client_plain.py", &[&url, "agentA", "héllo 語"]).await;
    let wide = "aß語𝄞 ".repeat(20);
    assert_eq!(answer, format!("{wide}héllo 語{wide}"));
}

/// Covers: MP-A0, ST-2, ST-12, ST-35, SR-C4, SR-C10, SR-H1, SR-H2, EV-N4.
#[tokio::test]
async fn client_written_from_the_reference_passes_its_checks() {
    let (_agent, flag) = agent("agentA", "4").await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &flag]).await;
    let url = format!("ws://{}/v1/connect", node.http);
    let said = run("client_v1.py", &[&url, "agentA"]).await;
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 6, "{said}");
}

/// A single node is killed in the middle of an answer and restarted on its data directory; the same answer
/// continues.
///
/// Covers: G3, G6.
#[tokio::test]
async fn answer_resumes_after_its_node_is_killed_twice() {
    let (mut agent, flag) = listening("lasting", script("agent_lasting.py", &["5"])).await;
    let flag = flag.replace("on_owner_loss=retry", "on_owner_loss=resume");
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--agent", &flag]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let asked = wire.ask("r1", invoke("s1", "lasting", "héllo 語")).await.expect("an answer");
    let run_id = asked["run_id"].as_str().expect("its run").to_owned();
    let mut text = String::new();
    let mut said = Vec::new();
    let mut last = json!(null);
    for round in 0..3 {
        let enough = text.len() + 40;
        while round == 2 || text.len() < enough {
            let message = wire.next().await.expect("it goes on");
            if message["type"] == "delta" {
                assert_eq!((&message["attempt"], &message["offset"]), (&json!(1), &json!(text.len())), "{message}");
                text.push_str(message["text"].as_str().expect("text"));
            } else if message.get("seq").is_some() && message["type"] != "subscribed" {
                said.push(message["name"].as_str().unwrap_or_default().to_owned());
                last = message;
            }
            if last["type"] == "done" {
                break;
            }
        }
        if round < 2 {
            node.kill_and_restart().await;
            let runs = json!({ run_id.clone(): {"attempt": 1, "offset": text.len()} });
            let cursor = json!({"session_id": "s1", "after_seq": last["seq"], "after_epoch": last["epoch"],
                "runs": runs});
            wire = WebSocketClient::hello(node.http, "ann", vec![cursor]).await.expect("it connects");
        }
    }
    let wide = "aß語𝄞 ".repeat(20);
    assert_eq!((&last["status"], &last["attempt"]), (&json!("completed"), &json!(1)), "{last}");
    assert_eq!(text, format!("{wide}héllo 語{wide}"));
    let count = |name: &str| said.iter().filter(|said| *said == name).count();
    assert_eq!((count("RUN_RESUMED"), count("RUN_RESTARTED")), (2, 0));
    // The agent is called once, and then twice for the rest of the text, by owners with increasing epochs.
    let mut before = (0, 0);
    for n in 0..3 {
        let line = agent.line().await;
        let words: Vec<&str> = line.split(' ').collect();
        let ["asked", run, "1", epoch, known] = words[..] else { panic!("{line}") };
        let now: (u64, u64) = (epoch.parse().expect("a number"), known.parse().expect("a number"));
        assert!(run == run_id && now.0 > before.0 && (n == 0) == (now.1 == 0) && now.1 >= before.1, "{line}");
        before = now;
    }
}

/// Returns the README's code blocks in this language, in order.
fn readme(language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(path).expect("a README");
    let blocks = text.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n').map(str::to_owned)).collect()
}

/// Replaces the only occurrence of `of` in `text`; panics if the text has none or several.
fn instead(text: &str, of: &str, this: &str) -> String {
    assert_eq!(text.matches(of).count(), 1, "the README has changed; this test looks for {of}");
    text.replace(of, this)
}

/// Covers: MP-A1, MP-A3, MP-B13.
#[tokio::test]
async fn readme_client_and_agent_work_as_printed() {
    let [client, agent] = readme("python").try_into().expect("a client and an agent");
    let serve = r#"ThreadingHTTPServer(("127.0.0.1", 9000), Agent).serve_forever()"#;
    let tell = r#"at = ThreadingHTTPServer(("127.0.0.1", 0), Agent); print("listening", at.server_port, flush=True); at.serve_forever()"#;
    let (_agent, flag) = listening("shout", script("-c", &[&instead(&agent, serve, tell)])).await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &flag]).await;
    let client = instead(&client, "127.0.0.1:8080", &node.http.to_string());
    assert_eq!(run("-c", &[&client]).await, "hello, is anybody there?");
    let client = instead(&instead(&client, r#""echo""#, r#""shout""#), r#""s1""#, r#""s2""#);
    assert_eq!(run("-c", &[&client]).await, "HELLO, IS ANYBODY THERE? ");
}
