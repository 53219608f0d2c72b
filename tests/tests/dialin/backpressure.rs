//! Backpressure: agents that send more than is read, and agents that read less than is sent.
use crate::{
    connect_agent, connect_user, hello, next_order, node, run_end, send, start_turn, until_connections, until_message,
};
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, interval};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use turnway_core::limits;
use turnway_tests::real::wire::{WebSocketClient, invoke as input};

/// Sends nearly all text that a turn may have, as fast as it is accepted, beside a small answer on the same
/// connection.
///
/// Covers: G8, S-48.
#[tokio::test]
async fn large_answer_does_not_block_others_on_its_connection() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let mut bob = connect_user(&node).await;
    let flood = start_turn(&mut ann, "s1", "flood").await;
    let small = start_turn(&mut bob, "s2", "small").await;
    let mut orders = [next_order(&mut agent, "invoke").await, next_order(&mut agent, "invoke").await];
    orders.sort_by_key(|order| order["run_id"] != flood);
    let speak = async {
        // 127 pieces of 32 KiB are 4 MiB less 32 KiB; the other answer comes in the middle.
        for n in 0..127 {
            send(&mut agent, &orders[0], "delta", json!({"text": "x".repeat(32 * 1024)})).await;
            if n == 64 {
                send(&mut agent, &orders[1], "delta", json!({"text": "small"})).await;
                send(&mut agent, &orders[1], "done", json!({})).await;
            }
        }
        send(&mut agent, &orders[0], "done", json!({})).await;
    };
    let (_, (text, done), (other, _)) = tokio::join!(speak, run_end(&mut ann, &flood), run_end(&mut bob, &small));
    assert_eq!((text.len(), &done["status"]), (127 * 32 * 1024, &json!("completed")));
    assert_eq!(other, "small");
}

/// Ends the turn, but not the connection, when the text exceeds the maximum of a turn.
///
/// Covers: S-48.
#[tokio::test]
async fn too_much_text_fails_only_its_turn() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "flood").await;
    let invoke = next_order(&mut agent, "invoke").await;
    let speak = async {
        for _ in 0..130 {
            send(&mut agent, &invoke, "delta", json!({"text": "x".repeat(32 * 1024)})).await;
        }
        next_order(&mut agent, "cancel").await;
    };
    let (_, (text, done)) = tokio::join!(speak, run_end(&mut ann, &run));
    assert_eq!((text.len(), &done["status"]), (4 * 1024 * 1024, &json!("failed")));
    let run = start_turn(&mut ann, "s1", "and now?").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "done", json!({})).await;
    assert_eq!(run_end(&mut ann, &run).await.1["status"], "completed");
}

/// Counts reasoning, which is no text of the answer, towards the limit.
///
/// Covers: S-48.
#[tokio::test]
async fn too_much_reasoning_fails_only_its_turn() {
    let (node, _dir) = node("").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "flood").await;
    let invoke = next_order(&mut agent, "invoke").await;
    let speak = async {
        let thought = json!({"kind": "reasoning", "text": "x".repeat(60 * 1024)});
        for _ in 0..=limits::AGENT_BODY_BYTES_MAX / (60 * 1024) {
            send(&mut agent, &invoke, "delta", thought.clone()).await;
        }
        next_order(&mut agent, "cancel").await;
    };
    let ends = until_message(&mut ann, &run, |message| message["type"] == "done");
    let (_, done) = tokio::join!(speak, ends);
    assert_eq!(done["status"], "failed", "{done}");
    let run = start_turn(&mut ann, "s1", "and now?").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "done", json!({})).await;
    assert_eq!(run_end(&mut ann, &run).await.1["status"], "completed");
}

/// Closes a connection that reads nothing, and retries its runs at another connection.
///
/// Covers: G8, S-48.
#[tokio::test]
async fn connection_that_reads_nothing_is_closed_and_retried() {
    let (node, _dir) = node(",on_owner_loss=retry,input_ack=1m").await;
    let narrow = WebSocketClient::open_with_small_buffer(node.http).await.expect("it connects");
    let deaf = narrow.greet_with(hello(&json!({}))).await.expect("welcome");
    let mut ann = connect_user(&node).await;
    let mut runs = Vec::new();
    // More than the buffers of both sockets hold.
    for n in 0..100 {
        let text = format!("{n} {}", "x".repeat(50_000));
        let run = ann.ask(&format!("r{n}"), input(&format!("s{n}"), "a", &text)).await;
        runs.push(run.expect("taken")["run_id"].clone());
    }
    let mut other = connect_agent(&node, json!({})).await;
    until_connections(&node, 2).await;
    // Limit: 30 s without a byte read (protocol.md §1.4).
    let moved = async {
        loop {
            // The helper's own deadline may pass, because this connection receives nothing before the other
            // one is closed.
            let Ok(invoke) = tokio::time::timeout(Duration::from_secs(10), other.next()).await else {
                continue;
            };
            let invoke = invoke.expect("an order");
            assert_eq!(invoke["type"], "invoke", "{invoke}");
            if invoke["attempt"] == 2 {
                break invoke;
            }
            // This run was never sent to the blocked connection: it was assigned to this one.
            send(&mut other, &invoke, "done", json!({})).await;
        }
    };
    let invoke = tokio::time::timeout(Duration::from_secs(60), moved).await.expect("within a minute");
    until_connections(&node, 1).await;
    let run = invoke["run_id"].as_str().expect("its run").to_owned();
    assert!(runs.contains(&invoke["run_id"]));
    send(&mut other, &invoke, "done", json!({})).await;
    until_message(&mut ann, &run, |message| message["type"] == "done").await;
    drop(deaf);
}

/// Covers: SR-G10.
#[tokio::test]
async fn partial_message_counts_as_a_sign_of_life() {
    let (node, _dir) = node(",silence=3s").await;
    let mut agent = connect_agent(&node, json!({})).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "slowly").await;
    let invoke = next_order(&mut agent, "invoke").await;
    send(&mut agent, &invoke, "input_ack", json!({})).await;
    let text = json!({"type": "delta", "run_id": invoke["run_id"], "text": "x".repeat(500)}).to_string();
    let began = Instant::now();
    let mut pace = interval(Duration::from_millis(500));
    let pieces: Vec<&[u8]> = text.as_bytes().chunks(text.len().div_ceil(12)).collect();
    for (n, piece) in pieces.iter().enumerate() {
        pace.tick().await;
        let code = OpCode::Data(if n == 0 { Data::Text } else { Data::Continue });
        let frame = Frame::message(piece.to_vec(), code, n + 1 == pieces.len());
        agent.frame(Message::Frame(frame)).await.expect("it is taken");
    }
    assert!(began.elapsed() > Duration::from_secs(5), "longer than it may be silent");
    send(&mut agent, &invoke, "done", json!({})).await;
    let (said, done) = run_end(&mut ann, &run).await;
    assert_eq!((said.len(), &done["status"]), (500, &json!("completed")), "{done}");
}
