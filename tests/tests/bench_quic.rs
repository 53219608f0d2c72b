//! `turnway-bench` over QUIC: every mode that opens connections, with the same checks as over WebSocket.
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;
use turnway_tests::real::bench::{Bench, Served};
use turnway_tests::real::node::Node;

/// Starts a node, and a load generator that connects over QUIC and trusts the node's certificate.
async fn node(dir: &TempDir, more: &[&str]) -> (Node, Bench) {
    let node = Node::start(dir.path(), &[&["--demo", "--quic", "127.0.0.1:0"], more].concat()).await;
    let trust = dir.path().join("data/quic/cert.pem");
    let quic = node.quic.expect("it serves QUIC");
    let bench = Bench::by_quic(dir.path(), quic, &trust).watching(node.pid());
    (node, bench)
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

#[tokio::test]
async fn quic_turns_and_streams_arrive_complete_and_in_order() {
    let dir = directory();
    let agent = Served::start(dir.path(), &["agent", "--stamps"]).await;
    let (mut node, bench) = node(&dir, &["--agent", &format!("bench=http://{}", agent.address)]).await;
    let figures = bench.figures(&["turns", "--connections", "8", "--duration", "1s", "--sources", "2"]).await;
    let counts = &figures["counts"];
    assert!(counts["completed"].as_u64() > Some(8) && figures["ok"] == true, "{figures}");
    for fine in ["gaps", "mismatches", "unanswered", "lost"] {
        assert_eq!(counts[fine], 0, "{fine}: {figures}");
    }
    assert!(figures["url"].as_str().is_some_and(|url| url.starts_with("quic://")), "{figures}");
    let args = ["--connections", "4", "--duration", "1s", "--tokens", "50", "--pace", "2ms"];
    let figures = bench.figures(&[&["stream", "--agent", "bench", "--stamped"], &args[..]].concat()).await;
    let answers = figures["counts"]["completed"].as_u64().expect("a count");
    assert!(answers > 0 && figures["ok"] == true, "{figures}");
    assert_eq!(figures["latency_us"]["relay"]["count"], 50 * answers, "{figures}");
    node.must_run();
}

#[tokio::test]
async fn idle_quic_connections_share_sockets() {
    let dir = directory();
    let (node, bench) = node(&dir, &[]).await;
    // Two sockets carry all 300 connections, so the process needs fewer files than connections.
    let figures = bench.figures(&["idle", "--connections", "300", "--duration", "1s", "--sources", "2"]).await;
    assert_eq!((&figures["idle"]["held"], &figures["loop"]), (&300.into(), &Value::Null));
    assert!(figures["idle"]["bytes_per_connection"].as_f64().is_some_and(|bytes| bytes > 0.0), "{figures}");
    drop(node);
}

/// Covers: G-12, G5.
#[tokio::test]
async fn reconnecting_quic_clients_have_no_gaps() {
    let dir = directory();
    let (_node, bench) = node(&dir, &[]).await;
    let args = ["reconnect", "--connections", "20", "--rounds", "2", "--tokens", "30", "--pace", "5ms"];
    let figures = bench.figures(&args).await;
    let reconnect = &figures["reconnect"];
    assert_eq!((&reconnect["gaps"], &reconnect["verified"]), (&0.into(), &20.into()), "{figures}");
    assert_eq!((&figures["counts"]["resumed"], &figures["counts"]["completed"]), (&40.into(), &40.into()));
}

/// Covers: LN-MP3.
#[tokio::test]
async fn quic_fanout_delivers_every_byte_to_every_listener() {
    let dir = directory();
    let (_node, bench) = node(&dir, &[]).await;
    let args = ["fanout", "--connections", "10", "--duration", "1s", "--tokens", "20", "--pace", "5ms"];
    let figures = bench.figures(&args).await;
    let text = figures["counts"]["text_bytes"].as_u64().expect("bytes");
    let delivered = figures["fanout"]["delivered_bytes"].as_u64().expect("bytes");
    assert!(figures["ok"] == true && delivered > 0, "{figures}");
    assert_eq!(delivered / 10 * 11, text, "ten listeners and the speaker: each has every byte");
}

#[tokio::test]
async fn first_delta_and_takeover_are_measured_over_quic() {
    let dir = directory();
    let agent = Served::start(dir.path(), &["agent"]).await;
    let direct = format!("http://{}", agent.address);
    let (_node, bench) = node(&dir, &["--agent", &format!("bench={direct}")]).await;
    let args = ["first-delta", "--agent", "bench", "--direct", &direct, "--rate", "40", "--duration", "1s"];
    let figures = bench.figures(&[&args[..], &["--connections", "4"]].concat()).await;
    let count = |figures: &Value, measure: &str| figures["latency_us"][measure]["count"].as_u64();
    assert_eq!((count(&figures, "first_delta"), count(&figures, "direct")), (Some(20), Some(20)));
    bench.figures(&["history", "--connections", "2", "--facts", "60", "--duration", "20s"]).await;
    let figures = bench.figures(&["take-up", "--connections", "2"]).await;
    assert_eq!((count(&figures, "admitted_long"), count(&figures, "admitted_new")), (Some(2), Some(2)));
}

/// Covers: S-16.
#[tokio::test]
async fn connections_over_the_configured_limit_are_refused() {
    let dir = directory();
    let (_node, bench) = node(&dir, &["--quic-connections", "4"]).await;
    bench.figures(&["turns", "--connections", "4", "--duration", "500ms"]).await;
    let ended = bench.run(&["turns", "--connections", "5", "--duration", "500ms"]).await;
    assert!(ended.code == Some(69) && ended.err.contains("refused"), "{ended:?}");
}

#[tokio::test]
async fn untrusted_certificate_or_bad_url_is_refused() {
    let dir = directory();
    let (node, _) = node(&dir, &[]).await;
    let stranger = Bench::by_quic(dir.path(), node.quic.expect("QUIC"), Path::new("/dev/null"));
    let ended = stranger.run(&["turns"]).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    let ended = stranger.run(&["turns", "--url", "quic://127.0.0.1:1/path"]).await;
    assert!(ended.code == Some(64) && ended.err.contains("no path"), "{ended:?}");
}
