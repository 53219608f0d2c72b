//! Compressed bodies, endless bodies and unread answers, which must not use much memory.
use super::{call, rest};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

/// Growth allowed for work that a node does for the first time; the attacks would take 32 MiB and more.
const GROWTH_KIB_MAX: u64 = 12 * 1024;

const POST: &str = "POST /v1/sessions/s1/turns HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

async fn served(node: &mut Node) {
    let mut wire = WebSocketClient::hello(node.http, "bystander", vec![]).await.expect("welcome");
    let pong = wire.ask("p", json!({"type": "ping"})).await.expect("served");
    assert_eq!(pong["type"], "pong");
    node.must_run();
}

/// Writes pieces until the peer closes or all are written.
async fn pour(stream: &mut TcpStream, piece: &[u8], times: usize) {
    for _ in 0..times {
        if stream.write_all(piece).await.is_err() {
            return;
        }
    }
}

/// Covers: S-11, S-15.
#[tokio::test]
async fn endless_body_is_refused_within_bounded_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    served(&mut node).await;
    let before = node.resident_kib();
    for (what, piece) in [
        ("large pieces", [b"4000\r\n".to_vec(), vec![b' '; 0x4000], b"\r\n".to_vec()].concat()),
        ("small pieces", b"1\r\n \r\n".repeat(1000)),
        (
            "pieces with words of their own",
            b"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa=b\r\n \r\n".repeat(200),
        ),
    ] {
        let head = format!("{POST}transfer-encoding: chunked\r\n\r\n");
        let mut stream = call([127, 0, 0, 1], node.http, head.as_bytes()).await;
        timeout(PATIENCE, pour(&mut stream, &piece, 2000)).await.expect("it is taken or refused");
        let answer = rest(stream).await;
        // The answer may be lost with the connection when many bytes were under way.
        let is_refused = ["HTTP/1.1 413 ", "HTTP/1.1 400 ", ""].iter().any(|start| answer.starts_with(start));
        assert!(is_refused && !answer.starts_with("HTTP/1.1 2"), "{what}: {answer}");
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
        assert!(answer.starts_with("HTTP/1.1 400 "), "{coding}: {answer}");
    }
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB");
    served(&mut node).await;
}

/// Sends pings, each of which requires an answer, from clients that read no answer.
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
        for _ in 0..5_000 {
            // The node may stop reading.
            let sent = tokio::time::timeout(
                std::time::Duration::from_millis(100),
                wire.frame(Message::Ping(vec![7; 125].into())),
            );
            if !matches!(sent.await, Ok(Ok(()))) {
                break;
            }
        }
    }
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB");
    served(&mut node).await;
}
