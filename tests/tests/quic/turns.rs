//! Tests turns over QUIC, with text on streams of its own and with all messages on one stream.
use super::{node, sample};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::quic::{QuicConnection, take};
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Covers: MP-A1.
#[tokio::test]
async fn turn_text_arrives_on_its_own_stream() {
    let dir = tempdir().expect("a directory");
    let (mut node, quic, trust) = node(&dir, &["--demo"]).await;
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    for n in 0..3 {
        let text = format!("héllo 語 {n}");
        let (said, done) = line.turn("s1", "echo", &format!("m{n}"), &text).await.expect("a turn");
        assert_eq!((said, &done["status"]), (text, &json!("completed")));
    }
    let pong = line.ask("p", json!({"type": "ping"})).await.expect("answered");
    assert_eq!(pong["type"], "pong");
    let open = "turnway_link_connections{transport=\"quic\"} ";
    assert_eq!(sample(&node, open).await, 1.0);
    line.finish();
    assert_eq!(line.gone().await, turnway_tests::real::wire::ConnectionEnd::Closed(1000));
    assert_eq!(sample(&node, "turnway_link_closes_total{code=\"1000\",transport=\"quic\"} ").await, 1.0);
    node.must_run();
}

/// A node drops its TLS state after the handshake, except the secrets from which key updates derive the next keys.
#[tokio::test]
async fn turns_survive_tls_key_updates() {
    let dir = tempdir().expect("a directory");
    let (_node, quic, trust) = node(&dir, &["--demo"]).await;
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    for n in 0..4 {
        line.connection.force_key_update();
        let (said, _) = line.turn("s1", "echo", &format!("m{n}"), "with other keys").await.expect("a turn");
        assert_eq!(said, "with other keys");
    }
}

/// A client that declines text streams gets all messages on the control stream, in order.
#[tokio::test]
async fn client_without_text_streams_gets_all_on_one_stream() {
    let dir = tempdir().expect("a directory");
    let (_node, quic, trust) = node(&dir, &["--demo"]).await;
    let hello = json!({"type": "hello", "user_id": "ann", "streams": false});
    let line = QuicConnection::open(quic, &trust).await.expect("it connects");
    let mut line = line.greet_with(hello).await.expect("welcome");
    line.ask("m1", invoke("s1", "echo", "all in one")).await.expect("accepted");
    let mut text = String::new();
    let mut done = Value::Null;
    while done.is_null() {
        let message = line.next().await.expect("it goes on");
        match message["type"].as_str() {
            Some("delta") => take(&mut text, &message),
            Some("done") => done = message,
            _ => {}
        }
    }
    assert_eq!((text.as_str(), &done["text_bytes"]), ("all in one", &json!(10)));
}

/// One session over two transports: each transport shows the messages of the other and resumes what the other
/// began.
///
/// Covers: MP-A1, RX-21.
#[tokio::test]
async fn session_is_shared_by_quic_and_websocket() {
    let dir = tempdir().expect("a directory");
    let (node, quic, trust) = node(&dir, &["--demo"]).await;
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    line.turn("s1", "echo", "m1", "by QUIC").await.expect("a turn");
    let resume = vec![json!({"session_id": "s1", "after_seq": 0})];
    let mut wire = trust.open(node.http).await.expect("it connects").greet("ann", resume).await.expect("welcome");
    let seen = async |wire: &mut WebSocketClient, text: &str| {
        wire.until(|message| message["type"] == "message" && message["message"]["content"] == text).await
    };
    seen(&mut wire, "by QUIC").await.expect("shown");
    wire.turn("s1", "echo", "m2", "by WebSocket").await.expect("a turn");
    let shown = line.until(|message| message["type"] == "message").await.expect("shown");
    assert_eq!(shown["message"]["content"], "by WebSocket");
    let stranger = QuicConnection::hello(quic, &trust, "bob", vec![]).await;
    let refused = stranger.expect("welcome").ask("r", json!({"type": "subscribe", "session_id": "s1"})).await;
    assert_eq!(refused.expect("answered")["code"], "not_found");
}
