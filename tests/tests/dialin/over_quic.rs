//! A dial-in agent over QUIC: the same orders and events in frames of the control stream.
use crate::hello;
use serde_json::json;
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{Instant, interval};
use turnway_tests::real::node::Node;
use turnway_tests::real::quic::QuicConnection;
use turnway_tests::real::tls::{Pair, Trust};
use turnway_tests::real::wire::ConnectionEnd;

/// Covers: MP-A1.
#[tokio::test]
async fn agent_dials_in_over_quic() {
    let dir = tempdir().expect("a directory");
    let pair = Pair::make(dir.path(), "pair").await;
    let flags = ["--quic", "127.0.0.1:0", "--agent", "a=dial-in:,steer=true"];
    let node = Node::start(dir.path(), &[&flags[..], &pair.flags()].concat()).await;
    let quic = node.quic.expect("it speaks QUIC");
    let trust = Trust::of([&pair]);
    let agent = QuicConnection::open(quic, &trust).await.expect("it connects");
    let mut agent = agent.greet_with(hello(&json!({"capabilities": {"steer": true}}))).await.expect("welcome");
    let mut ann = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    // The input is larger than a client's frame may be; the agent must accept frames of this size.
    let input = "語".repeat(15_000);
    let turn = async {
        for n in 0..3 {
            let invoke = agent.until(|order| order["type"] == "invoke").await.expect("an order");
            assert_eq!(invoke["input_message"]["content"], json!(input));
            for text in ["héllo ", "語"] {
                let delta = json!({"type": "delta", "run_id": invoke["run_id"], "text": text});
                agent.say(&delta).await.expect("said");
            }
            agent.say(&json!({"type": "done", "run_id": invoke["run_id"]})).await.expect("said");
            assert!(n < 3);
        }
        let ping = json!({"type": "ping"});
        assert_eq!(agent.ask("p", ping).await.expect("answered")["type"], "pong");
        agent.finish();
        assert_eq!(agent.gone().await, ConnectionEnd::Closed(1000));
    };
    let asks = async {
        for n in 0..3 {
            let (said, done) = ann.turn("s1", "a", &format!("m{n}"), &input).await.expect("a turn");
            assert_eq!((said.as_str(), &done["status"]), ("héllo 語", &json!("completed")));
        }
    };
    tokio::join!(turn, asks);
}

/// The bytes of an incomplete message are signs of life, as they are by WebSocket.
///
/// Covers: SR-G10.
#[tokio::test]
async fn partial_message_over_quic_counts_as_a_sign_of_life() {
    let dir = tempdir().expect("a directory");
    let pair = Pair::make(dir.path(), "pair").await;
    let flags = ["--quic", "127.0.0.1:0", "--agent", "a=dial-in:,silence=3s"];
    let node = Node::start(dir.path(), &[&flags[..], &pair.flags()].concat()).await;
    let quic = node.quic.expect("it speaks QUIC");
    let trust = Trust::of([&pair]);
    let agent = QuicConnection::open(quic, &trust).await.expect("it connects");
    let mut agent = agent.greet_with(hello(&json!({}))).await.expect("welcome");
    let mut ann = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    let answers = async {
        let invoke = agent.until(|order| order["type"] == "invoke").await.expect("an order");
        agent.say(&json!({"type": "input_ack", "run_id": invoke["run_id"]})).await.expect("said");
        let delta = json!({"type": "delta", "run_id": invoke["run_id"], "text": "x".repeat(500)}).to_string();
        let length = u32::try_from(delta.len()).expect("short").to_be_bytes();
        let frame = [&length[..], delta.as_bytes()].concat();
        let began = Instant::now();
        let mut pace = interval(Duration::from_millis(500));
        for piece in frame.chunks(frame.len().div_ceil(12)) {
            pace.tick().await;
            agent.bytes(piece).await.expect("it is taken");
        }
        assert!(began.elapsed() > Duration::from_secs(5), "longer than it may be silent");
        agent.say(&json!({"type": "done", "run_id": invoke["run_id"]})).await.expect("said");
    };
    let asks = async {
        let (said, done) = ann.turn("s1", "a", "m1", "slowly").await.expect("a turn");
        assert_eq!((said.len(), &done["status"]), (500, &json!("completed")), "{done}");
    };
    tokio::join!(answers, asks);
}
