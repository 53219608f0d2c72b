//! Tests of hostile QUIC input against real nodes while a well-behaved client has turns: `proofs` tests address
//! validation, `gaps` reassembly, `floods` frames, `nodes` early data and replay across nodes. `interop` runs
//! ngtcp2 without an attack.
mod bystander;
mod floods;
mod gaps;
mod interop;
mod nodes;
mod proofs;

use serde_json::Value;
use std::net::SocketAddr;
use tempfile::TempDir;
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::tls::{Pair, Trust};

/// Starts a node with QUIC on a free port; returns a trust store with the node's certificate as well.
async fn node(dir: &TempDir, args: &[&str]) -> (Node, SocketAddr, Trust, Pair) {
    let pair = Pair::make(dir.path(), "pair").await;
    let node = Node::start(dir.path(), &[&["--quic", "127.0.0.1:0"][..], args, &pair.flags()].concat()).await;
    let quic = node.quic.expect("it speaks QUIC");
    let trust = Trust::of([&pair]);
    (node, quic, trust, pair)
}

/// Parses one line of JSON.
fn told(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Returns the value of one metric sample.
async fn sample(node: &Node, name: &str) -> f64 {
    let (_, text) = http::get(node.admin, "/metrics").await.expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
    line.trim().parse().expect("a number")
}
