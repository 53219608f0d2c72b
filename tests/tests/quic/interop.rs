//! A QUIC of another maker: aioquic, from the document alone.
use super::node;
use tempfile::tempdir;
use turnway_tests::real::python::{Running, run, script};

/// Covers: MP-A1, G-22, RX-21.
#[tokio::test]
async fn aioquic_talks_and_changes_roads_within_an_answer() {
    let mut agent = Running::start(script("agent_plain.py", &["4"]));
    let line = agent.line().await;
    let port = line.strip_prefix("listening ").expect("its port");
    let dir = tempdir().expect("a directory");
    let flag = format!("plain=http://127.0.0.1:{port},on_owner_loss=retry");
    let (mut node, quic, _) = node(&dir, &["--agent", &flag]).await;
    let ca = dir.path().join("pair/cert.pem");
    let (quic, wss) = (quic.port().to_string(), node.http.port().to_string());
    let said = run("client_quic.py", &[&quic, &wss, ca.to_str().expect("UTF-8"), "plain"]).await;
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 5, "{said}");
    node.must_run();
}
