//! Tests invalid, too large and late messages over QUIC, and connections that use another protocol than
//! `turnway/1`.
use super::{node, sample};
use quinn::TransportConfig;
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::quic::{QuicConnection, config, endpoint};
use turnway_tests::real::wire::ConnectionEnd;

fn frame(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).expect("short").to_be_bytes()[..], text.as_bytes()].concat()
}

/// Reads to the end of the connection; returns the last message, if any, and the reason of the end.
async fn end(mut line: QuicConnection) -> (Value, ConnectionEnd) {
    let mut last = Value::Null;
    loop {
        match line.next().await {
            Ok(message) => last = message,
            Err(gone) => return (last, gone),
        }
    }
}

/// Covers: S-04, S-11.
#[tokio::test]
async fn message_before_hello_closes_the_connection() {
    let dir = tempdir().expect("a directory");
    let (mut node, quic, trust) = node(&dir, &["--demo"]).await;
    let large = json!({"type": "hello", "padding": "x".repeat(5000)}).to_string();
    for (bytes, said, code) in [
        (frame("{\"type\":\"ping\"}"), json!("unauthorized"), 4401),
        (frame("nothing"), json!("unauthorized"), 4401),
        (frame(""), json!("unauthorized"), 4401),
        (frame(&large), json!("too_large"), 4413),
        (u32::MAX.to_be_bytes().to_vec(), json!("too_large"), 4413),
        ([&[0, 0, 0, 2][..], &[0xff, 0xfe]].concat(), Value::Null, 4400),
    ] {
        let mut line = QuicConnection::open(quic, &trust).await.expect("it connects");
        line.bytes(&bytes).await.expect("sent");
        let (last, gone) = end(line).await;
        assert_eq!((&last["code"], gone), (&said, ConnectionEnd::Closed(code)), "{last}");
    }
    // The stream ends within a message.
    let mut line = QuicConnection::open(quic, &trust).await.expect("it connects");
    line.bytes(&[0, 0, 0, 9, b'{']).await.expect("sent");
    line.finish();
    assert_eq!(end(line).await, (Value::Null, ConnectionEnd::Closed(4400)));
    node.must_run();
}

/// Covers: S-04.
#[tokio::test]
async fn connection_without_hello_times_out() {
    let dir = tempdir().expect("a directory");
    let (node, quic, trust) = node(&dir, &["--demo"]).await;
    let silent = QuicConnection::open(quic, &trust).await.expect("it connects");
    // QUIC shows a stream to the peer only with its first byte; an incomplete hello counts as no hello.
    let mut half = QuicConnection::open(quic, &trust).await.expect("it connects");
    half.bytes(&[0, 0, 0, 9, b'{']).await.expect("sent");
    for line in [silent, half] {
        assert_eq!(end(line).await, (Value::Null, ConnectionEnd::Closed(4408)));
    }
    assert_eq!(sample(&node, "turnway_link_closes_total{code=\"4408\",transport=\"quic\"} ").await, 2.0);
}

/// Covers: S-11.
#[tokio::test]
async fn invalid_messages_after_hello_get_error_answers() {
    let dir = tempdir().expect("a directory");
    let (_node, quic, trust) = node(&dir, &["--demo"]).await;
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    line.bytes(&frame("no JSON")).await.expect("sent");
    let refused = line.next().await.expect("answered");
    assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!("invalid_message")));
    let whole = json!({"type": "ping", "request_id": "p", "padding": "x".repeat(60_000)}).to_string();
    line.bytes(&frame(&whole)).await.expect("sent");
    assert_eq!(line.next().await.expect("answered")["type"], "pong");
    line.bytes(&65_537_u32.to_be_bytes()).await.expect("sent");
    let (last, gone) = end(line).await;
    assert_eq!((&last["code"], gone), (&json!("too_large"), ConnectionEnd::Closed(4413)));
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    for _ in 0..10 {
        line.bytes(&frame("[]")).await.expect("sent");
    }
    assert_eq!(end(line).await.1, ConnectionEnd::Closed(4400));
}

/// Other ALPN protocols, early data, a second client stream and datagrams are refused.
///
/// Covers: S-19, S-21.
#[tokio::test]
async fn other_protocols_and_streams_are_refused() {
    let dir = tempdir().expect("a directory");
    let (mut node, quic, trust) = node(&dir, &["--demo"]).await;
    let other = config(&trust, b"h2", TransportConfig::default());
    let refused = QuicConnection::open_from(&endpoint(), quic, other).await;
    assert!(matches!(&refused, Err(ConnectionEnd::Broken(why)) if why.contains("known protocol")), "{refused:?}");
    // Early data needs a session ticket, and the node gives none.
    let from = endpoint();
    for _ in 0..2 {
        let config = config(&trust, b"turnway/1", TransportConfig::default());
        let connecting = from.connect_with(config, quic, "localhost").expect("a good address");
        let early = connecting.into_0rtt();
        assert!(early.is_err(), "early data");
        early.err().expect("no early data").await.expect("the usual way");
    }
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    let second = tokio::time::timeout(std::time::Duration::from_millis(300), line.connection.open_bi()).await;
    assert!(second.is_err(), "a second stream of a client");
    // HTTP/3 needs unidirectional streams on the same port; a `turnway/1` client that writes on one is
    // disconnected.
    let mut side_stream = line.connection.open_uni().await.expect("the transport lets it by");
    side_stream.write_all(b"?").await.expect("written");
    line.say(&json!({"type": "ping", "request_id": "p"})).await.expect("said");
    assert_eq!(end(line).await, (Value::Null, ConnectionEnd::Closed(4400)));
    // With WebTransport off, the transport allows no unidirectional streams of a client.
    let alone = tempdir().expect("a directory");
    std::fs::write(alone.path().join("turnway.toml"), "[listen]\nwebtransport = false\n").expect("written");
    let (_alone, quic, trust) = super::node(&alone, &["--demo", "--config", "turnway.toml"]).await;
    for alpn in [&b"h3"[..], b"h2"] {
        let refused =
            QuicConnection::open_from(&endpoint(), quic, config(&trust, alpn, TransportConfig::default())).await;
        assert!(matches!(&refused, Err(ConnectionEnd::Broken(why)) if why.contains("known protocol")), "{refused:?}");
    }
    let line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    let side_stream = tokio::time::timeout(std::time::Duration::from_millis(300), line.connection.open_uni()).await;
    assert!(side_stream.is_err(), "a stream beside the first");
    assert_eq!(line.connection.max_datagram_size(), None);
    node.must_run();
}
