//! Who reads slowly, and who does not read at all, where many sessions speak fast.
use super::lanes::{narrow, piece};
use super::node;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use turnway_core::limits;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::python::{Running, script};
use turnway_tests::real::quic::{Line, take};
use turnway_tests::real::tls::Trust;
use turnway_tests::real::wire::{Gone, invoke};

/// Sessions that speak at once: with what one may leave waiting, several times what all together may.
const SESSIONS: u32 = 48;
/// Pieces of an answer, of 1 KiB: several times what waits of one.
const MANY: usize = 300;
/// So few that they are said long before anybody has waited too long.
const FEW: usize = 150;
/// Pieces that are read of each stream, one after the other, before the rest is.
const ROUNDS: usize = 40;

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

/// A client in whose sessions so many answers are under way, all of which have been said to the node.
async fn line(quic: SocketAddr, trust: &Trust, over: &Semaphore, pieces: usize) -> Line {
    let line = Line::open_as(quic, trust, narrow(SESSIONS)).await.expect("it connects");
    let mut line = line.greet_with(json!({"type": "hello", "user_id": "ann"})).await.expect("welcome");
    for n in 0..SESSIONS {
        let ask = invoke(&format!("s{n}"), "a", &pieces.to_string());
        line.ask(&format!("m{n}"), ask).await.expect("accepted");
    }
    all(over).await;
    line
}

/// Waits until all have said what they have to say.
async fn all(over: &Semaphore) {
    let said = timeout(PATIENCE, over.acquire_many(SESSIONS)).await;
    said.expect("agents are read").expect("it stays").forget();
}

/// Covers: MP-A1, G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_that_speak_fast_are_heard_by_a_slow_reader() {
    let dir = tempdir().expect("a directory");
    let (agents, over) = talkers().await;
    let (mut node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let before = node.resident_kib();
    let mut line = line(quic, &trust, &over, FEW).await;
    let mut lanes = Vec::new();
    for _ in 0..SESSIONS {
        lanes.push((line.lane().await.expect("a stream"), String::new()));
    }
    for round in 0..ROUNDS {
        for (lane, said) in &mut lanes {
            take(said, &lane.next().await.expect("it stays").expect("text"));
        }
        // The control stream is not waited for by anybody.
        let pong = line.ask(&format!("p{round}"), json!({"type": "ping"})).await.expect("answered");
        assert_eq!(pong["type"], "pong");
    }
    let grown = node.resident_kib().saturating_sub(before);
    let mut rest = JoinSet::new();
    for (mut lane, mut said) in lanes {
        rest.spawn(async move {
            lane.rest(&mut said).await.expect("all of it");
            assert!(said == whole(FEW), "{} bytes", said.len());
        });
    }
    for _ in 0..SESSIONS {
        let done = line.until(|message| message["type"] == "done").await.expect("it stays");
        assert_eq!((&done["status"], &done["text_bytes"]), (&json!("completed"), &json!(whole(FEW).len())));
    }
    while let Some(read) = rest.join_next().await {
        read.expect("it is read");
    }
    println!("FIGURE the node grew by, KiB, while {SESSIONS} answers were read slowly: {grown}");
    node.must_run();
}

/// Covers: G8, LN-MP4, S-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_nothing_of_many_streams_is_let_go() {
    let dir = tempdir().expect("a directory");
    let (agents, over) = talkers().await;
    let (_node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let begun = Instant::now();
    let line = line(quic, &trust, &over, MANY).await;
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
