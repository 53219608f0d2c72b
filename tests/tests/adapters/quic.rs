//! An adapter that is connected by QUIC.
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::quic::QuicConnection;
use turnway_tests::real::tls::{Pair, Trust};

async fn await_kind(adapter: &mut QuicConnection, kind: &str) -> Value {
    adapter.until(|message| message["type"] == kind).await.expect("the node speaks")
}

/// Covers: BD-B5, BD-I4.
#[tokio::test]
async fn adapter_over_quic_brings_and_delivers() {
    let dir = tempdir().expect("a directory");
    let pair = Pair::make(dir.path(), "pair").await;
    let args = [&["--demo", "--quic", "127.0.0.1:0"][..], &pair.flags()].concat();
    let node = Node::start(dir.path(), &args).await;
    let to = node.quic.expect("it speaks QUIC");
    let hello = json!({
        "type": "hello", "role": "adapter", "channel": "rooms", "account_id": "main",
        "capabilities": {"text": 2, "key": 2, "typing": 1},
    });
    let connection = QuicConnection::open(to, &Trust::of([&pair])).await.expect("a connection");
    let mut adapter = connection.greet_with(hello).await.expect("it is admitted");
    adapter.until(|message| message["state"] == "active").await.expect("it sends for the account");
    let place = json!({"channel": "rooms", "account_id": "main", "conversation_id": "lobby"});
    let message = json!({
        "type": "inbound", "conversation": place, "sender": {"id": "ann"},
        "message": {"message_id": "m1", "content": "hello there"},
    });
    let accepted = adapter.ask("i1", message).await.expect("an answer");
    assert_eq!((&accepted["type"], &accepted["disposition"]), (&json!("inbound_accepted"), &json!("run")));
    let part = await_kind(&mut adapter, "deliver").await;
    assert!(part["text"].as_str().expect("a text").contains("hello there"), "{part}");
    assert_eq!((&part["conversation"], &part["reply_to"]), (&place, &json!("m1")), "{part}");
    let delivered = json!({
        "type": "delivered", "delivery_id": part["delivery_id"], "part": 1, "outcome": "sent", "external_id": "x1",
        "place": place,
    });
    adapter.say(&delivered).await.expect("it is sent");
    let subscribe = json!({"type": "subscribe", "session_id": accepted["session_id"], "after_seq": 0});
    adapter.ask("s1", subscribe).await.expect("an answer");
    let sent = adapter.until(|message| message["name"] == "DELIVERY_SENT").await.expect("the node speaks");
    assert_eq!(sent["external_id"], "x1", "{sent}");
}
