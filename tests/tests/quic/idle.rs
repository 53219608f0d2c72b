//! Measures the memory of an idle QUIC connection.
use super::node;
use quinn::{TransportConfig, VarInt};
use serde_json::json;
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{Instant, interval};
use turnway_tests::real::node::Node;
use turnway_tests::real::quic::{QuicConnection, config, endpoint};
use turnway_tests::real::{PATIENCE, figure, size};

/// A connection that has had one turn and is idle, with all its QUIC state, takes at most 36 KiB of the node's
/// resident memory. docs/benchmarks.md has the breakdown; of the 31 KB that 5,000 connections cost each, quinn
/// takes 24.
///
/// Covers: G-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_quic_connection_stays_within_its_memory_limit() {
    const BYTES_MAX: u64 = 36 * 1024;
    let count = size("QUIC_IDLE", 1000);
    let dir = tempdir().expect("a directory");
    let (node, quic, trust) = node(&dir, &["--demo"]).await;
    let mut warm = QuicConnection::hello(quic, &trust, "warm", vec![]).await.expect("welcome");
    for n in 0..50 {
        warm.turn("warm", "echo", &format!("m{n}"), "hello").await.expect("a turn");
    }
    // The node's keep-alive packets keep each connection open.
    let mut transport = TransportConfig::default();
    transport.max_concurrent_uni_streams(VarInt::from_u32(4));
    let end = endpoint();
    let config = config(&trust, b"turnway/1", transport);
    let connect = async |from: usize, count: usize| {
        let mut lines = Vec::new();
        for n in from..from + count {
            let line = QuicConnection::open_from(&end, quic, config.clone()).await.expect("it connects");
            let hello = json!({"type": "hello", "user_id": format!("u{n}")});
            let mut line = line.greet_with(hello).await.expect("welcome");
            line.turn(&format!("s{n}"), "echo", "m1", "hello").await.expect("a turn");
            lines.push(line);
        }
        lines
    };
    // Memory that the node allocates once, with its first connections, does not count as a connection's.
    let first = connect(0, count / 2).await;
    let before = at_rest(&node).await;
    let begun = Instant::now();
    let lines = connect(count, count).await;
    let took = begun.elapsed();
    let begun = Instant::now();
    let mut pace = interval(Duration::from_millis(500));
    let each = loop {
        pace.tick().await;
        let each = node.resident_kib().saturating_sub(before) * 1024 / lines.len() as u64;
        // Sessions are unloaded and buffers are freed after some idle time.
        if each <= BYTES_MAX || begun.elapsed() > 2 * PATIENCE {
            break each;
        }
    };
    figure("bytes of an idle connection by QUIC", each);
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let pace = count as f64 / took.as_secs_f64();
    figure("connections by QUIC per second, each with its turn, one after the other", format!("{pace:.0}"));
    for line in first.iter().chain(&lines) {
        assert_eq!(line.connection.close_reason(), None);
    }
    assert!(each <= BYTES_MAX, "{each} bytes");
}

/// Returns a node's resident memory in KiB once the memory has not shrunk for 4 s.
async fn at_rest(node: &Node) -> u64 {
    let mut least = node.resident_kib();
    let mut since = Instant::now();
    let mut pace = interval(Duration::from_millis(500));
    while since.elapsed() < Duration::from_secs(4) {
        pace.tick().await;
        let now = node.resident_kib();
        if now < least {
            (least, since) = (now, Instant::now());
        }
    }
    least
}
