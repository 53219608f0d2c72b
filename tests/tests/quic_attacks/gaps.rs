//! Tests gaps in the stream data and handshake data that a node reassembles.
use super::bystander::Bystander;
use super::{node, told};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use turnway_tests::real::python::{Running, script};
use turnway_tests::real::{figure, size};

/// Memory of a connection whose receive window is full behind a gap: twice the bytes that may be in flight.
const BYTES_PER_WINDOW: u64 = 2 * 128 * 1024;
/// Memory for everything else; freed memory returns a little later.
const BYTES_BESIDE: u64 = 24 * 1024 * 1024;

/// Covers: S-19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_gaps_cost_at_most_the_receive_windows() {
    let count = size("QUIC_GAPS", 50);
    let dir = tempdir().expect("a directory");
    let (mut node, quic, trust, pair) = node(&dir, &["--demo"]).await;
    let bystander = Bystander::start(node.http, quic, &trust).await;
    let before = node.resident_kib();
    let args = [&quic.port().to_string(), pair.ca(), &count.to_string()];
    let mut attack = Running::start_in_steps(script("quic_gaps.py", &args));
    let mut ended = Vec::new();
    let held = loop {
        let line = told(&attack.line().await);
        if line["attack"] == "full windows with a hole" {
            break line;
        }
        ended.push(line);
    };
    let grown = node.resident_kib().saturating_sub(before) * 1024;
    let code = |name: &str| -> Value {
        let line = ended.iter().find(|line| line["attack"] == name);
        line.unwrap_or_else(|| panic!("no {name}: {ended:?}"))["code"].clone()
    };
    // Transport error codes of RFC 9000 §20.1.
    for (name, expected) in [
        ("every other byte", json!(0x1)),
        ("as many holes as there may be", Value::Null),
        ("over the window", json!(0x3)),
        ("a second stream", json!(0x4)),
        ("many streams beside", json!(0x4)),
        ("a stream of the node's own", json!(0x5)),
        ("far ahead in the handshake's stream", json!(0xd)),
    ] {
        assert_eq!(code(name), expected, "{name}: {ended:?}");
    }
    assert!(!code("holes in the handshake's stream").is_null(), "{ended:?}");
    assert!(ended.iter().any(|line| line["answered"] == true), "with holes it goes on: {ended:?}");
    assert_eq!(held["open"], count, "a full window is no reason to end");
    let (turns, slowest) = bystander.lap();
    figure("QUIC: MiB that windows full of holes took", format!("{:.1} of {count}", mib(grown)));
    figure("QUIC: turns of others meanwhile, 99 of 100 within", format!("{turns}, {slowest:?}"));
    let bound = count as u64 * BYTES_PER_WINDOW + BYTES_BESIDE;
    assert!(grown < bound, "{:.1} MiB", mib(grown));
    assert!(turns > 20 && slowest < Duration::from_secs(1), "{turns} turns, {slowest:?}");
    node.must_run();
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
