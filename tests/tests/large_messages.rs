//! Large messages on one connection: fragments, loss of nothing that follows, and release of the memory.
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};

async fn node() -> (Node, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    (node, dir)
}

/// Returns a `ping` of about this size.
fn ping(request_id: &str, size: usize) -> String {
    json!({"type": "ping", "request_id": request_id, "padding": "x".repeat(size)}).to_string()
}

/// Sends a message in fragments, with a WebSocket ping after each.
async fn in_pieces(wire: &mut WebSocketClient, text: &str, pieces: usize) -> Result<(), ConnectionEnd> {
    let step = text.len().div_ceil(pieces);
    let count = text.len().div_ceil(step);
    assert_eq!(count, pieces, "a text of {} bytes", text.len());
    for (n, piece) in text.as_bytes().chunks(step).enumerate() {
        let code = OpCode::Data(if n == 0 { Data::Text } else { Data::Continue });
        let frame = Frame::message(piece.to_vec(), code, n + 1 == count);
        wire.frame(Message::Frame(frame)).await?;
        wire.frame(Message::Ping(vec![b'!'; n % 126].into())).await?;
    }
    Ok(())
}

/// Answers every message once and in order while the node replaces the connection's codec after large
/// messages.
///
/// Covers: G-15.
#[tokio::test]
async fn messages_around_large_ones_are_answered_in_order() {
    let (node, _dir) = node().await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let mut asked = 0;
    for round in 0..40 {
        for size in [60_000, 10, 9_000, 0, 30_000, 40] {
            wire.frame(Message::text(ping(&format!("r{asked}"), size))).await.expect("sent");
            asked += 1;
        }
        in_pieces(&mut wire, &ping(&format!("r{asked}"), 20_000 + round), 7).await.expect("sent");
        asked += 1;
    }
    for n in 0..asked {
        let pong = wire.next().await.expect("answered");
        assert_eq!((&pong["type"], &pong["request_id"]), (&json!("pong"), &json!(format!("r{n}"))));
    }
    let (text, _) = wire.turn("s1", "echo", "m1", "still here").await.expect("served");
    assert_eq!(text, "still here");
}

/// Covers: S-11.
#[tokio::test]
async fn message_in_too_many_fragments_closes_the_connection() {
    let (node, _dir) = node().await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    in_pieces(&mut wire, &ping("r1", 3_200), 32).await.expect("sent");
    assert_eq!(wire.next().await.expect("answered")["request_id"], "r1");
    // The node may close while fragments are still being sent.
    drop(in_pieces(&mut wire, &ping("r2", 3_300), 33).await);
    assert_eq!(wire.next().await, Err(ConnectionEnd::Closed(4400)));
}

/// Covers: G-15.
#[tokio::test]
async fn memory_of_a_large_message_is_released() {
    let (node, _dir) = node().await;
    let mut wires = Vec::new();
    for _ in 0..200 {
        wires.push(WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects"));
    }
    // The allocator keeps reserves, which one connection is enough to fill.
    let large = |n: usize| Message::text(ping(&format!("r{n}"), 60_000));
    for n in 0..wires.len() {
        wires[0].frame(large(n)).await.expect("sent");
        wires[0].next().await.expect("answered");
    }
    let before = node.resident_kib();
    for (n, wire) in wires.iter_mut().enumerate() {
        wire.frame(large(n)).await.expect("sent");
        wire.next().await.expect("answered");
    }
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < 8 * wires.len() as u64, "{grown} KiB more for {} links", wires.len());
}
