//! Tests clients that read slowly or not at all while many sessions send text fast.
use super::lanes::{narrow, piece};
use super::node;
use futures_util::FutureExt;
use quinn::RecvStream;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use turnway_core::limits;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::python::{Running, script};
use turnway_tests::real::quic::{QuicConnection, TextStream, take};
use turnway_tests::real::tls::Trust;
use turnway_tests::real::wire::invoke;
use turnway_tests::real::{PATIENCE, figure};

/// Sessions with an answer at once: the sum of what one session may buffer is several times the limit of one
/// connection.
const SESSIONS: u32 = 48;
/// Pieces of 1 KiB in a long answer: several times the buffer of one session.
const MANY: usize = 300;
/// Pieces of a short answer: few enough to be sent long before a stall times out.
const FEW: usize = 150;
/// Minimum of control requests that the slow reader makes meanwhile, and pieces that it reads between two of these
/// requests, over all streams together.
const ROUNDS: usize = 500;
const A_ROUND: usize = 2;

fn whole(pieces: usize) -> String {
    (0..pieces).map(piece).collect()
}

/// Starts agents that send everything at once; each adds a permit once it has sent all of its answer.
async fn talkers() -> (Agents, Arc<Semaphore>) {
    let over = Arc::new(Semaphore::new(0));
    let agents = Agents::start({
        let over = Arc::clone(&over);
        move |asked| {
            let over = Arc::clone(&over);
            Reply::speak(move |stream| async move {
                let pieces: usize = asked.text.parse().expect("how many");
                for n in 0..pieces {
                    stream.delta(&piece(n)).await?;
                }
                stream.done().await?;
                over.add_permits(1);
                Ok(())
            })
        }
    })
    .await;
    (agents, over)
}

/// Connects a client and starts an answer of this many pieces in each of its sessions.
async fn line(quic: SocketAddr, trust: &Trust, pieces: usize) -> QuicConnection {
    let line = QuicConnection::open_as(quic, trust, narrow(SESSIONS)).await.expect("it connects");
    let mut line = line.greet_with(json!({"type": "hello", "user_id": "ann"})).await.expect("welcome");
    for n in 0..SESSIONS {
        let ask = invoke(&format!("s{n}"), "a", &pieces.to_string());
        line.ask(&format!("m{n}"), ask).await.expect("accepted");
    }
    line
}

/// Waits until all agents have sent their answers.
async fn all(over: &Semaphore) {
    let said = timeout(PATIENCE, over.acquire_many(SESSIONS)).await;
    said.expect("agents are read").expect("it stays").forget();
}

/// Reads a stream piece by piece, one piece for each permit.
async fn read(from: RecvStream, pace: Arc<Semaphore>) {
    let mut lane = TextStream::begin(from).await.expect("it stays");
    let mut text = String::new();
    while let Some(piece) = lane.next().await.expect("it stays") {
        take(&mut text, &piece);
        pace.acquire().await.expect("it stays").forget();
    }
    assert!(text == whole(FEW), "{} bytes", text.len());
}

/// Covers: MP-A1, G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_of_many_sessions_gets_all_text() {
    let dir = tempdir().expect("a directory");
    let (agents, over) = talkers().await;
    let (mut node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let before = node.resident_kib();
    let mut line = line(quic, &trust, FEW).await;
    let pace = Arc::new(Semaphore::new(0));
    let mut readers = JoinSet::new();
    let mut rounds = 0;
    while over.available_permits() < SESSIONS as usize || readers.len() < SESSIONS as usize || rounds < ROUNDS {
        while let Some(accepted) = line.connection.accept_uni().now_or_never() {
            readers.spawn(read(accepted.expect("it stays"), Arc::clone(&pace)));
        }
        pace.add_permits(A_ROUND);
        // The control stream is answered without waiting for text.
        let pong = line.ask(&format!("p{rounds}"), json!({"type": "ping"})).await.expect("answered");
        assert_eq!(pong["type"], "pong");
        rounds += 1;
    }
    let grown = node.resident_kib().saturating_sub(before);
    pace.add_permits(SESSIONS as usize * FEW);
    while let Some(read) = readers.join_next().await {
        // Each stream must end with its answer.
        read.expect("it is read");
    }
    figure("the node grew by, KiB, while 48 answers were read slowly by QUIC", grown);
    node.must_run();
}

/// Covers: G8, LN-MP4, S-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_reads_no_streams_is_disconnected() {
    let dir = tempdir().expect("a directory");
    let (agents, over) = talkers().await;
    let (node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let begun = Instant::now();
    let line = line(quic, &trust, MANY).await;
    all(&over).await;
    // The connection is alive: QUIC packets are answered. Only the streams are not read.
    let gone = timeout(limits::STALL_TIMEOUT + PATIENCE, line.connection.closed()).await;
    let quinn::ConnectionError::ApplicationClosed(close) = gone.expect("in time") else { panic!("{line:?}") };
    assert_eq!(close.error_code.into_inner(), 4508, "{close}");
    assert!(begun.elapsed() > limits::STALL_TIMEOUT - Duration::from_secs(1), "{:?}", begun.elapsed());
    // The client reconnects and reads.
    let mut again = QuicConnection::hello(quic, &trust, "ann", vec![json!({"session_id": "s0", "after_seq": 0})])
        .await
        .expect("welcome");
    let mut lane = again.accept_text_stream().await.expect("a stream");
    let mut text = String::new();
    lane.rest(&mut text).await.expect("all of it");
    assert!(text == whole(MANY), "{} bytes", text.len());
    let done = again.until(|message| message["type"] == "done").await.expect("it is done");
    assert_eq!((&done["status"], &done["text_bytes"]), (&json!("completed"), &json!(text.len())), "{done}");
    let pong = again.ask("p", json!({"type": "ping"})).await.expect("the new connection stays open");
    assert_eq!(pong["type"], "pong", "{pong}");
    let closes = "turnway_link_closes_total{code=\"4508\",transport=\"quic\"} ";
    assert_eq!(super::sample(&node, closes).await, 1.0);
}

/// The same stall in a WebTransport session.
///
/// Covers: G8, S-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webtransport_client_that_reads_nothing_is_disconnected() {
    let dir = tempdir().expect("a directory");
    let (agents, over) = talkers().await;
    let (node, quic, _) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let ca = dir.path().join("pair/cert.pem").to_str().expect("UTF-8").to_owned();
    let args = [&quic.port().to_string(), &ca, "stall", &SESSIONS.to_string(), &MANY.to_string()];
    let mut page = Running::start(script("webtransport_life.py", &args));
    assert_eq!(page.line().await, "welcome");
    all(&over).await;
    let said = page.end().await;
    assert!(said.contains("(closed) 4508 the client did not read its messages in time\n(gone) 256"), "{said}");
    let closes = "turnway_link_closes_total{code=\"4508\",transport=\"webtransport\"} ";
    assert_eq!(super::sample(&node, closes).await, 1.0);
}
