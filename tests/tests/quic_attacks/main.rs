//! QUIC as those use it who mean harm: datagrams, frames and proofs that no client would send, at real nodes, while
//! others go on; and a QUIC of one more maker, as those do who do not.
//!
//! - `proofs`: what is sent to an address before it is proved, and which proofs are believed.
//! - `gaps`: holes in what a node puts together; `floods`: frames that cost it more than their sender.
//! - `nodes`: early data, replays, and what two nodes have in common; `interop`: s2n-quic.
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

/// A node that speaks QUIC on some port, and whom its clients believe.
async fn node(dir: &TempDir, args: &[&str]) -> (Node, SocketAddr, Trust, Pair) {
    let pair = Pair::make(dir.path(), "pair").await;
    let node = Node::start(dir.path(), &[&["--quic", "127.0.0.1:0"][..], args, &pair.flags()].concat()).await;
    let quic = node.quic.expect("it speaks QUIC");
    let trust = Trust::of([&pair]);
    (node, quic, trust, pair)
}

/// One line of JSON.
fn told(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// The value of one sample.
async fn sample(node: &Node, name: &str) -> f64 {
    let (_, text) = http::get(node.admin, "/metrics").await.expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
    line.trim().parse().expect("a number")
}
