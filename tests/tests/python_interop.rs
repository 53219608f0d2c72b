//! Clients and agents in another language, written from the documents alone.
//!
//! Covers: MP-A1, MP-A3, MP-A5, MP-A7, MP-F1, MP-C1, MP-G1.
use std::path::Path;
use tokio::process::Command;
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, run, script};

/// The standard library's agent, at this pace; the process and its `ID=URL`.
async fn agent(id: &str, pace_ms: &str) -> (Running, String) {
    listening(id, script("agent_plain.py", &[pace_ms])).await
}

/// Starts an agent that says `listening PORT` first; the process and its `ID=URL`.
async fn listening(id: &str, command: Command) -> (Running, String) {
    let mut agent = Running::start(command);
    let line = agent.line().await;
    let port = line.strip_prefix("listening ").expect("its port");
    let flag = format!("{id}=http://127.0.0.1:{port},on_owner_loss=retry");
    (agent, flag)
}

/// Covers: MP-A0, MP-M0, MP-F4, MP-F5, MP-A3, MP-C1, MP-F1, MP-G1, MP-G2.
#[tokio::test]
async fn the_smallest_client_talks_to_the_smallest_agent() {
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
async fn a_whole_client_from_the_reference_alone() {
    let (_agent, flag) = agent("agentA", "4").await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &flag]).await;
    let url = format!("ws://{}/v1/connect", node.http);
    let said = run("client_v1.py", &[&url, "agentA"]).await;
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 6, "{said}");
}

/// The README's code in this language, in order.
fn readme(language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(path).expect("a README");
    let blocks = text.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n').map(str::to_owned)).collect()
}

/// The same text with another in one place, which must be there.
fn instead(text: &str, of: &str, this: &str) -> String {
    assert_eq!(text.matches(of).count(), 1, "the README has changed; this test looks for {of}");
    text.replace(of, this)
}

/// Covers: MP-A1, MP-A3, MP-B13.
#[tokio::test]
async fn the_readmes_client_and_agent_work_as_printed() {
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
