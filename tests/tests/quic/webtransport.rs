//! Tests WebTransport sessions that the node closes or refuses, with aioquic in the place of a browser.
use super::{node, sample};
use std::net::SocketAddr;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::identity::{Key, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, run, script};

/// Starts a node with key authentication; returns a key of user `ann` as well.
async fn keyed(dir: &TempDir, more: &[&str]) -> (Node, SocketAddr, Key) {
    let pepper = pepper(dir.path());
    let auth = ["--demo", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let (node, quic, _) = node(dir, &[&auth[..], more].concat()).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    (node, quic, key)
}

fn ca(dir: &TempDir) -> String {
    dir.path().join("pair/cert.pem").to_str().expect("UTF-8").to_owned()
}

/// Starts a WebTransport client that stays connected.
async fn page(dir: &TempDir, quic: SocketAddr, key: &Key) -> Running {
    let args = [&quic.port().to_string(), &ca(dir), "last", &key.text];
    let mut page = Running::start(script("webtransport_life.py", &args));
    assert_eq!(page.line().await, "welcome");
    page
}

/// Covers: S-01.
#[tokio::test]
async fn revoked_key_closes_its_session() {
    let dir = tempdir().expect("a directory");
    let (node, quic, key) = keyed(&dir, &[]).await;
    let page = page(&dir, quic, &key).await;
    key.revoke(&node).await;
    let said = page.end().await;
    assert!(said.contains("(closed) 4401 the credential is no longer valid\n(gone) 256"), "{said}");
}

#[tokio::test]
async fn draining_node_sends_go_away_and_closes_the_session() {
    let dir = tempdir().expect("a directory");
    let (mut node, quic, key) = keyed(&dir, &[]).await;
    let mut page = page(&dir, quic, &key).await;
    node.signal("-TERM").await;
    assert!(page.line().await.starts_with("go_away"));
    let said = page.end().await;
    assert!(said.starts_with("(closed) 4503 draining\n(gone) 256"), "{said}");
    assert_eq!(node.exit().await, Some(0));
}

/// Covers: S-05.
#[tokio::test]
async fn bad_credentials_lock_out_the_address() {
    let dir = tempdir().expect("a directory");
    let (node, quic, _) = keyed(&dir, &["--per-address", "50"]).await;
    let said = run("webtransport_life.py", &[&quic.port().to_string(), &ca(&dir), "guess", "10"]).await;
    assert_eq!(said, "429 256\n");
    assert_eq!(sample(&node, "turnway_link_handshakes_total{outcome=\"denied\"} ").await, 10.0);
}

/// Covers: S-16.
#[tokio::test]
async fn connections_over_the_per_address_limit_are_refused() {
    let dir = tempdir().expect("a directory");
    let (node, quic, key) = keyed(&dir, &["--per-address", "3"]).await;
    let args = [&quic.port().to_string(), &ca(&dir), "crowd", "3", &key.text];
    // 263 is the HTTP/3 code H3_EXCESSIVE_LOAD.
    assert_eq!(run("webtransport_life.py", &args).await, "(gone) 263\n");
    assert_eq!(sample(&node, "turnway_link_handshakes_total{outcome=\"crowded\"} ").await, 1.0);
}
