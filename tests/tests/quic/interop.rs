//! Tests interoperability with another QUIC implementation: aioquic clients written from the document alone.
use super::{node, sample};
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, run, script};

/// Covers: MP-A1, G-22, RX-21.
#[tokio::test]
async fn aioquic_client_switches_transport_within_an_answer() {
    let (said, _) = talk("client_quic.py").await;
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 5, "{said}");
}

/// WebTransport as a browser uses it, and requests that break its rules. The Python file lists each case with the
/// status or the HTTP/3 error code that must end the case.
///
/// Covers: MP-A1, G-22, RX-21, S-04, S-09, S-10, S-19.
#[tokio::test]
async fn aioquic_webtransport_works_and_bad_requests_are_refused() {
    let (said, node) = talk("client_webtransport.py").await;
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 10, "{said}");
    // Foreign origins and host names, and requests that are no session or no valid HTTP/3.
    for (outcome, count) in [("unwelcome", 4.0), ("malformed", 18.0)] {
        let name = format!("turnway_link_handshakes_total{{outcome=\"{outcome}\"}} ");
        assert_eq!(sample(&node, &name).await, count, "{outcome}");
    }
    // The session without a hello is closed with 4401; no session stays open.
    assert_eq!(sample(&node, "turnway_link_closes_total{code=\"4401\",transport=\"webtransport\"} ").await, 1.0);
    assert_eq!(sample(&node, "turnway_link_connections{transport=\"webtransport\"} ").await, 0.0);
}

/// Runs a client against a node with a slow agent; returns the client's output.
async fn talk(client: &str) -> (String, Node) {
    let mut agent = Running::start(script("agent_plain.py", &["4"]));
    let line = agent.line().await;
    let port = line.strip_prefix("listening ").expect("its port");
    let dir = tempdir().expect("a directory");
    let flag = format!("plain=http://127.0.0.1:{port},on_owner_loss=retry");
    let (mut node, quic, _) = node(&dir, &["--agent", &flag]).await;
    let ca = dir.path().join("pair/cert.pem");
    let quic = quic.port().to_string();
    let wss = node.http.port().to_string();
    let said = run(client, &[&quic, &wss, ca.to_str().expect("UTF-8"), "plain"]).await;
    node.must_run();
    (said, node)
}
