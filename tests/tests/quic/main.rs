//! QUIC: the same protocol on other roads, with a real node and a raw client.
//!
//! - `talk`: turns; `front`: behind nginx; `frames`: what is no message; `client`: the Rust client and `turnway chat`; `interop`: aioquic.
//! - `lanes`: text on streams of its own, and who does not read it; `slow`: who reads many of them slowly, or none.
//! - `life`: who comes in, who has to go, and which certificate is shown; `pages`: the same by WebTransport; `idle`: what
//!   a connection costs.
mod client;
mod frames;
mod front;
mod idle;
mod interop;
mod lanes;
mod life;
mod pages;
mod slow;
mod talk;

use std::net::SocketAddr;
use tempfile::TempDir;
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::tls::{Pair, Trust};

/// A node that speaks QUIC on some port, and whom its clients believe.
async fn node(dir: &TempDir, args: &[&str]) -> (Node, SocketAddr, Trust) {
    let pair = Pair::make(dir.path(), "pair").await;
    let node = Node::start(dir.path(), &[&["--quic", "127.0.0.1:0"][..], args, &pair.flags()].concat()).await;
    let quic = node.quic.expect("it speaks QUIC");
    (node, quic, Trust::of([&pair]))
}

/// The value of one sample.
async fn sample(node: &Node, name: &str) -> f64 {
    let (_, text) = http::get(node.admin, "/metrics").await.expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
    line.trim().parse().expect("a number")
}
