//! Who reads slowly, and who does not read at all, where many sessions speak fast.
use super::lanes::{narrow, piece};
use super::node;
use futures_util::FutureExt;
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
use turnway_tests::real::quic::{Lane, Line, take};
use turnway_tests::real::tls::Trust;
use turnway_tests::real::wire::{Gone, invoke};
use turnway_tests::real::{PATIENCE, figure};

/// Sessions that speak at once: with what one may leave waiting, several times what all together may.
const SESSIONS: u32 = 48;
/// Pieces of an answer, of 1 KiB: several times what waits of one.
const MANY: usize = 300;
/// So few that they are said long before anybody has waited too long.
const FEW: usize = 150;
/// So often a client that reads slowly asks for something else meanwhile, at least; and so many pieces it reads between
/// two of these, of all streams together.
const ROUNDS: usize = 500;
const A_ROUND: usize = 2;

fn whole(pieces: usize) -> String {
    (0..pieces).map(piece).collect()
}

/// Agents that say everything at once, and a permit for each of them that has.
async fn talkers() -> (Agents, Arc<Semaphore>) {
    let over = Arc::new(Semaphore::new(0));
    let agents = Agents::start({
        let over = Arc::clone(&over);
        move |asked| {
            let over = Arc::clone(&over);
            Reply::speak(move |voice| async move {
                let pieces: usize = asked.text.parse().expect("how many");
                for n in 0..pieces {
                    voice.delta(&piece(n)).await?;
                }
                voice.done().await?;
                over.add_permits(1);
                Ok(())
            })
        }
    })
    .await;
    (agents, over)
}

/// A client in each of whose sessions an answer of so many pieces is under way.
async fn line(quic: SocketAddr, trust: &Trust, pieces: usize) -> Line {
    let line = Line::open_as(quic, trust, narrow(SESSIONS)).await.expect("it connects");
    let mut line = line.greet_with(json!({"type": "hello", "user_id": "ann"})).await.expect("welcome");
    for n in 0..SESSIONS {
        let ask = invoke(&format!("s{n}"), "a", &pieces.to_string());
        line.ask(&format!("m{n}"), ask).await.expect("accepted");
    }
    line
}

/// Waits until all have said what they have to say.
async fn all(over: &Semaphore) {
    let said = timeout(PATIENCE, over.acquire_many(SESSIONS)).await;
    said.expect("agents are read").expect("it stays").forget();
}

/// Reads a stream piece by piece, as fast as it is let.
async fn read(mut lane: Lane, pace: Arc<Semaphore>) {
    let mut said = String::new();
    while let Some(piece) = lane.next().await.expect("it stays") {
        take(&mut said, &piece);
        pace.acquire().await.expect("it stays").forget();
    }
    assert!(said == whole(FEW), "{} bytes", said.len());
}

/// Covers: MP-A1, G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_that_speak_fast_are_heard_by_a_slow_reader() {
    let dir = tempdir().expect("a directory");
    let (agents, over) = talkers().await;
    let (mut node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let before = node.resident_kib();
    let mut line = line(quic, &trust, FEW).await;
    let (pace, mut readers) = (Arc::new(Semaphore::new(0)), JoinSet::new());
    let mut rounds = 0;
    while over.available_permits() < SESSIONS as usize || readers.len() < SESSIONS as usize || rounds < ROUNDS
    {
        while let Some(accepted) = line.lane().now_or_never() {
            readers.spawn(read(accepted.expect("it stays"), Arc::clone(&pace)));
        }
        pace.add_permits(A_ROUND);
        // The control stream is not waited for by anybody.
        let pong = line.ask(&format!("p{rounds}"), json!({"type": "ping"})).await.expect("answered");
        assert_eq!(pong["type"], "pong");
        rounds += 1;
    }
    let grown = node.resident_kib().saturating_sub(before);
    pace.add_permits(SESSIONS as usize * FEW);
    while let Some(read) = readers.join_next().await {
        // A stream has an end where its answer has.
        read.expect("it is read");
    }
    figure("the node grew by, KiB, while 48 answers were read slowly by QUIC", grown);
    node.must_run();
}

/// Covers: G8, LN-MP4, S-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_nothing_of_many_streams_is_let_go() {
    let dir = tempdir().expect("a directory");
    let (agents, over) = talkers().await;
    let (_node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let begun = Instant::now();
    let line = line(quic, &trust, MANY).await;
    all(&over).await;
    // The connection lives: it answers whatever QUIC asks. Only its streams are not read.
    let gone = timeout(limits::STALL_TIMEOUT + PATIENCE, line.connection.closed()).await;
    let quinn::ConnectionError::ApplicationClosed(close) = gone.expect("in time") else { panic!("{line:?}") };
    assert_eq!(close.error_code.into_inner(), 4508, "{close}");
    assert!(begun.elapsed() > limits::STALL_TIMEOUT - Duration::from_secs(1), "{:?}", begun.elapsed());
    // It comes back with cursors, or without, and reads.
    let mut again = Line::hello(quic, &trust, "ann", vec![json!({"session_id": "s0", "after_seq": 0})])
        .await
        .expect("welcome");
    let (mut lane, mut said) = (again.lane().await.expect("a stream"), String::new());
    lane.rest(&mut said).await.expect("all of it");
    assert!(said == whole(MANY), "{} bytes", said.len());
    again.until(|message| message["type"] == "done").await.expect("it is done");
    assert_ne!(again.ask("p", json!({"type": "ping"})).await, Err(Gone::Closed(4508)));
}

/// The same from a page.
///
/// Covers: G8, S-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_takes_nothing_of_many_streams_is_let_go() {
    let dir = tempdir().expect("a directory");
    let (agents, over) = talkers().await;
    let (node, quic, _) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let ca = dir.path().join("pair/cert.pem").to_str().expect("UTF-8").to_owned();
    let args = [&quic.port().to_string(), &ca, "stall", &SESSIONS.to_string(), &MANY.to_string()];
    let mut page = Running::start(script("webtransport_life.py", &args));
    assert_eq!(page.line().await, "welcome");
    all(&over).await;
    let said = page.end().await;
    assert!(said.contains("(closed) 4508 messages were not read\n(gone) 256"), "{said}");
    let closes = "turnway_link_closes_total{code=\"4508\",transport=\"webtransport\"} ";
    assert_eq!(super::sample(&node, closes).await, 1.0);
}
