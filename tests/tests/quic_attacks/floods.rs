//! Tests floods of QUIC frames that cost a node more than their sender.
use super::bystander::Bystander;
use super::{node, told};
use std::time::Duration;
use tempfile::tempdir;
use turnway_tests::real::python::{Running, script};
use turnway_tests::real::{figure, size};

/// KiB of memory that a flood may leave behind: buffers and pages that the allocator keeps.
const GROWN_KIB: u64 = 24 * 1024;

/// Error codes with which the transport ends a connection.
const TRANSPORT: [u64; 10] = [0x1, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8, 0x9, 0xa, 0xb];

/// Each flood with the codes of RFC 9000 §20.1 that must end its connection, or `None` if the connection must
/// survive and answer. For connection ids that retire each other the code varies between runs, but is always a
/// transport error.
const ENDS: [(&str, Option<&[u64]>); 13] = [
    ("NEW_CONNECTION_ID, none retired", Some(&[0x9])),
    ("NEW_CONNECTION_ID, each retires the one before", Some(&TRANSPORT)),
    ("NEW_CONNECTION_ID, retired before they come", Some(&TRANSPORT)),
    ("RETIRE_CONNECTION_ID of what was never given", Some(&[0xa])),
    ("PATH_CHALLENGE", None),
    ("PATH_RESPONSE that nobody asked for", None),
    ("MAX_DATA, DATA_BLOCKED, STREAMS_BLOCKED", None),
    ("NEW_TOKEN, which only nodes may send", Some(&[0xa])),
    ("PING, a packet for each", None),
    ("nothing but padding", None),
    ("PATH_CHALLENGE, a packet for each", None),
    ("RETIRE_CONNECTION_ID of all that are given", None),
    ("a path for each packet", None),
];

/// Covers: S-20.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frame_floods_do_not_delay_other_clients() {
    let millis = size("QUIC_FLOOD_MS", 1000);
    let dir = tempdir().expect("a directory");
    let (mut node, quic, trust, pair) = node(&dir, &["--demo"]).await;
    let bystander = Bystander::start(node.http, quic, &trust).await;
    let seconds = Duration::from_millis(millis as u64).as_secs_f64().to_string();
    let mut attack = Running::start(script("quic_floods.py", &[&quic.port().to_string(), pair.ca(), &seconds]));
    let before = node.resident_kib();
    let mut slowest = Duration::ZERO;
    for (name, codes) in ENDS {
        let cpu = node.cpu();
        let line = told(&attack.line().await);
        let spent = node.cpu().saturating_sub(cpu);
        let (turns, within) = bystander.lap();
        let packets = line["packets"].as_u64().expect("a number");
        figure(
            &format!("QUIC: a flood of {name}"),
            format!("{packets} packets, {spent:?} of the node's time, 99 of 100 of {turns} turns within {within:?}"),
        );
        assert_eq!(line["attack"], name);
        let right = match (codes, line["code"].as_u64()) {
            (Some(codes), Some(code)) => codes.contains(&code),
            (codes, code) => codes.is_none() && code.is_none(),
        };
        assert!(right, "{line}");
        assert_eq!(line["answered"], codes.is_none(), "{line}");
        slowest = slowest.max(within);
        let grown = node.resident_kib().saturating_sub(before);
        assert!(grown < GROWN_KIB, "{grown} KiB after {name}");
    }
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    node.must_run();
}
