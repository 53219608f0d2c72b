//! Tests of the QUIC and WebTransport listeners, with a real node and raw clients. One module per subject; `front`
//! runs behind nginx, `interop` uses aioquic.
mod client;
mod frames;
mod front;
mod idle;
mod interop;
mod lanes;
mod lifecycle;
mod slow;
mod turns;
mod webtransport;

use std::net::SocketAddr;
use tempfile::TempDir;
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::tls::{Pair, Trust};

/// Starts a node with QUIC on a free port; returns a trust store with the node's certificate as well.
async fn node(dir: &TempDir, args: &[&str]) -> (Node, SocketAddr, Trust) {
    let pair = Pair::make(dir.path(), "pair").await;
    let node = Node::start(dir.path(), &[&["--quic", "127.0.0.1:0"][..], args, &pair.flags()].concat()).await;
    let quic = node.quic.expect("it speaks QUIC");
    (node, quic, Trust::of([&pair]))
}

/// Returns the value of one metric sample.
async fn sample(node: &Node, name: &str) -> f64 {
    let (_, text) = http::get(node.admin, "/metrics").await.expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
    line.trim().parse().expect("a number")
}
