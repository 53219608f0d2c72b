//! Compressed bodies, endless bodies and unread answers, which must not use much memory.
use super::{call, rest};
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

/// Growth allowed for work that a node does for the first time; the attacks would take 32 MiB and more.
const GROWTH_KIB_MAX: u64 = 12 * 1024;
/// Growth allowed for 21 connections whose pongs wait in socket buffers; a codec that kept the pongs of one client
/// would take 4 to 8 MiB.
const PONGS_GROWTH_KIB_MAX: u64 = 3 * 1024;

/// Pings of one client: with two bytes of header their answers are 36 MiB, of which its socket holds some 4 MiB.
const PINGS: usize = 300_000;

const POST: &str = "POST /v1/sessions/s1/turns HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

async fn served(node: &mut Node) {
    let mut wire = WebSocketClient::hello(node.http, "bystander", vec![]).await.expect("welcome");
    let pong = wire.ask("p", json!({"type": "ping"})).await.expect("served");
    assert_eq!(pong["type"], "pong");
    node.must_run();
}

/// Returns whether an answer is one of these problems, each a status with a code (docs/http.md, Problems).
fn is_problem(answer: &str, problems: &[(u16, &str)]) -> bool {
    problems.iter().any(|(status, code)| {
        let head = format!("HTTP/1.1 {status} ");
        answer.starts_with(&head) && answer.contains(&format!("\"code\":\"{code}\""))
    })
}

/// Writes pieces until the peer closes or all are written.
async fn pour(stream: &mut TcpStream, piece: &[u8], times: usize) {
    for _ in 0..times {
        if stream.write_all(piece).await.is_err() {
            return;
        }
    }
}

/// Refuses a body without an end with the problem for its size. The answer can be read although the node closes the
/// connection while more is on its way: Linux keeps received bytes when the peer resets the connection.
///
/// Covers: S-11, S-15.
#[tokio::test]
async fn endless_body_is_refused_within_bounded_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    served(&mut node).await;
    let before = node.resident_kib();
    let too_large = [(413, "too_large")];
    // Words of the pieces are no part of the body: too many of them break the request before its body is too large.
    let either = [(413, "too_large"), (400, "invalid_message")];
    for (what, piece, problems) in [
        ("large pieces", [b"4000\r\n".to_vec(), vec![b' '; 0x4000], b"\r\n".to_vec()].concat(), &too_large[..]),
        ("small pieces", b"1\r\n \r\n".repeat(1000), &too_large),
        (
            "pieces with words of their own",
            b"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa=b\r\n \r\n".repeat(200),
            &either,
        ),
    ] {
        let head = format!("{POST}transfer-encoding: chunked\r\n\r\n");
        let mut stream = call([127, 0, 0, 1], node.http, head.as_bytes()).await;
        timeout(PATIENCE, pour(&mut stream, &piece, 2000)).await.expect("it is taken or refused");
        let answer = rest(stream).await;
        assert!(is_problem(&answer, problems), "{what}: {answer}");
    }
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB");
    served(&mut node).await;
}

/// Sends a body that would be 64 MiB uncompressed within the 64 KiB allowed: the node never decompresses.
///
/// Covers: S-11, S-12.
#[tokio::test]
async fn compressed_bodies_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    served(&mut node).await;
    let before = node.resident_kib();
    // A gzip header, and the byte pattern of a long run of one letter.
    let bomb = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &vec![0xaa; 60_000]].concat();
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let head =
            format!("{POST}content-encoding: {coding}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", bomb.len());
        let mut stream = call([127, 0, 0, 1], node.http, head.as_bytes()).await;
        stream.write_all(&bomb).await.expect("it is taken");
        let answer = rest(stream).await;
        assert!(is_problem(&answer, &[(400, "invalid_message")]), "{coding}: {answer}");
    }
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB");
    served(&mut node).await;
}

/// Sends pings until all are sent or the node does not take the next one.
async fn ping(wire: &mut WebSocketClient, times: usize) {
    for _ in 0..times {
        // The node may stop reading.
        let sent = timeout(Duration::from_millis(100), wire.frame(Message::Ping(vec![7; 125].into())));
        if !matches!(sent.await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Sends pings, each of which requires an answer, from clients that read no answer. The answers of twenty of them fit
/// into the buffers of their sockets; the answers of the last one do not by far.
///
/// Covers: S-15, G-16.
#[tokio::test]
async fn unread_pongs_use_bounded_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    served(&mut node).await;
    let before = node.resident_kib();
    let mut deaf = Vec::new();
    for _ in 0..20 {
        deaf.push(WebSocketClient::hello(node.http, "deaf", vec![]).await.expect("welcome"));
    }
    for wire in &mut deaf {
        ping(wire, 5_000).await;
    }
    let mut last = WebSocketClient::open_with_small_buffer(node.http).await.expect("a connection");
    last.say(json!({"type": "hello", "user_id": "deaf"})).await.expect("said");
    ping(&mut last, PINGS).await;
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < PONGS_GROWTH_KIB_MAX, "{grown} KiB");
    served(&mut node).await;
}
