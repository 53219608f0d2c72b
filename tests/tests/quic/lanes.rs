//! Tests text streams over QUIC: a stream that the client does not read delays no other stream and loses no text.
use super::node;
use quinn::{TransportConfig, VarInt};
use serde_json::json;
use std::time::Duration;
use tempfile::tempdir;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::quic::{QuicConnection, take};
use turnway_tests::real::wire::invoke;

/// Pieces of a long answer: several times the capacity of one stream.
pub(crate) const PIECES: usize = 600;

pub(crate) fn piece(n: usize) -> String {
    format!("{n:04} {}\n", "語".repeat(340))
}

pub(crate) fn whole() -> String {
    (0..PIECES).map(piece).collect()
}

async fn talkers() -> Agents {
    Agents::start(|asked| {
        Reply::speak(move |stream| async move {
            if asked.text == "long" {
                for n in 0..PIECES {
                    stream.delta(&piece(n)).await?;
                }
            } else {
                stream.delta(&asked.text).await?;
            }
            stream.done().await
        })
    })
    .await
}

/// Returns a transport configuration with small stream windows, for a client that may leave a stream unread.
pub(crate) fn narrow(streams: u32) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(32 * 1024)).max_concurrent_uni_streams(VarInt::from_u32(streams));
    transport
}

/// Covers: MP-A1, G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_text_stream_does_not_delay_other_streams() {
    let dir = tempdir().expect("a directory");
    let agents = talkers().await;
    let (mut node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let line = QuicConnection::open_as(quic, &trust, narrow(8)).await.expect("it connects");
    let mut line = line.greet_with(json!({"type": "hello", "user_id": "ann"})).await.expect("welcome");
    let before = node.resident_kib();
    line.ask("m1", invoke("slow", "a", "long")).await.expect("accepted");
    let mut unread = line.accept_text_stream().await.expect("a stream");
    // Other sessions continue, and so does the control stream.
    for n in 0..20 {
        let (said, _) = line.turn("other", "a", &format!("o{n}"), "short").await.expect("a turn");
        assert_eq!(said, "short");
    }
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB for what is not read");
    let mut said = String::new();
    let done = tokio::spawn(async move {
        let done = line.until(|message| message["type"] == "done" && message["session_id"] == "slow").await;
        (done, line)
    });
    unread.rest(&mut said).await.expect("all of it");
    let (done, mut line) = done.await.expect("it ends");
    assert_eq!(done.expect("it is done")["text_bytes"], said.len());
    assert!(said == whole(), "{} bytes", said.len());
    line.turn("slow", "a", "m2", "again").await.expect("a turn");
    node.must_run();
}

/// Covers: MP-A1, G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_waits_until_the_client_grants_a_stream() {
    let dir = tempdir().expect("a directory");
    let agents = talkers().await;
    let (_node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let line = QuicConnection::open_as(quic, &trust, narrow(0)).await.expect("it connects");
    let mut line = line.greet_with(json!({"type": "hello", "user_id": "ann"})).await.expect("welcome");
    line.ask("m1", invoke("s1", "a", "long")).await.expect("accepted");
    line.until(|message| message["type"] == "run_started").await.expect("facts come");
    for n in 0..20 {
        let pong = line.ask(&format!("p{n}"), json!({"type": "ping"})).await.expect("answered");
        assert_eq!(pong["type"], "pong");
    }
    line.connection.set_max_concurrent_uni_streams(VarInt::from_u32(1));
    let mut lane = line.accept_text_stream().await.expect("it was waited for");
    let mut text = String::new();
    lane.rest(&mut text).await.expect("all of it");
    assert!(text == whole(), "{} bytes", text.len());
    line.until(|message| message["type"] == "done").await.expect("it is done");
}

/// A client that stops the text stream of one attempt still gets all other messages.
///
/// Covers: MP-A1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_text_stream_does_not_delay_the_run() {
    let dir = tempdir().expect("a directory");
    let agents = talkers().await;
    let (_node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let line = QuicConnection::open_as(quic, &trust, narrow(8)).await.expect("it connects");
    let mut line = line.greet_with(json!({"type": "hello", "user_id": "ann"})).await.expect("welcome");
    line.ask("m1", invoke("s1", "a", "long")).await.expect("accepted");
    line.accept_text_stream().await.expect("a stream").stop();
    let done = line.until(|message| message["type"] == "done").await.expect("it is done");
    assert_eq!(done["text_bytes"], whole().len());
    line.turn("s1", "a", "m2", "again").await.expect("a turn");
}

/// A client whose address changes within an answer gets the whole answer.
///
/// Covers: S-24, MP-A1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_continues_after_a_client_address_change() {
    let dir = tempdir().expect("a directory");
    let (go, gate) = tokio::sync::mpsc::channel::<()>(PIECES);
    let gate = std::sync::Arc::new(tokio::sync::Mutex::new(gate));
    let agents = Agents::start(move |_| {
        let gate = std::sync::Arc::clone(&gate);
        Reply::speak(move |stream| async move {
            for n in 0..PIECES {
                stream.delta(&piece(n)).await?;
                gate.lock().await.recv().await;
            }
            stream.done().await
        })
    })
    .await;
    let (_node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    line.ask("m1", invoke("s1", "a", "go")).await.expect("accepted");
    let mut lane = line.accept_text_stream().await.expect("a stream");
    let mut text = String::new();
    take(&mut text, &lane.next().await.expect("text").expect("text"));
    for moves in 0..3 {
        line.endpoint.rebind(turnway_tests::real::quic::socket()).expect("another port");
        let moved = std::time::Instant::now();
        for _ in 0..PIECES / 4 {
            go.try_send(()).expect("room");
        }
        // The first piece after the move arrives as soon as the node has validated the client's new path.
        let goal = text.len() + 1;
        while text.len() < goal {
            take(&mut text, &lane.next().await.expect("text").expect("text"));
        }
        let took = moved.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?} after move {moves}");
    }
    for _ in 0..PIECES {
        _ = go.try_send(());
    }
    lane.rest(&mut text).await.expect("all of it");
    assert!(text == whole(), "{} bytes", text.len());
    line.until(|message| message["type"] == "done").await.expect("it is done");
}
