//! Nodes that die and nodes that sleep, and a Redis that dies, in the middle of load, again and again.
//!
//! The verdict comes from what the clients wrote down, from what the agents wrote down, and from the log as
//! Redis has it and as a node shows it to a newcomer; never from the nodes' own counters.
//!
//! Covers: G1, G2, G3, G5, G6, G9, G-01, G-02, G-03, G-04, G-05.
mod client;
mod mischief;
mod verdict;

use crate::client::Client;
use crate::mischief::{Fleet, Gaps, Stage};
use crate::verdict::{Journal, Verdict, read_history};
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use turnway_core::rng::Rng;
use turnway_tests::real::agent::{Agents, HungUp, Invocation, Reply, Voice};
use turnway_tests::real::{figure, quantile, size};

/// Pieces of an answer; every tenth is ten times as long.
const PIECES: usize = 20;
/// How fast the agent thinks, so that a blow finds answers half said.
const PACE: Duration = Duration::from_millis(5);

/// What an agent says when it is asked for the `serial`th time: never the same twice, so that text of one
/// attempt cannot be taken for that of another.
fn answer(message: &str, serial: u64) -> String {
    (0..pieces(message)).map(|n| piece(message, serial, n)).collect()
}

fn pieces(message: &str) -> usize {
    if message.ends_with('7') { 10 * PIECES } else { PIECES }
}

fn piece(message: &str, serial: u64, n: usize) -> String {
    format!("{message}#{serial}·{n} ß語𝄞 ")
}

async fn speak(voice: Voice, message: String, serial: u64) -> Result<(), HungUp> {
    let mut pace = tokio::time::interval(PACE);
    for n in 0..pieces(&message) {
        pace.tick().await;
        voice.delta(&piece(&message, serial, n)).await?;
    }
    voice.done().await
}

/// An agent that writes down who asked it what, before it says anything.
async fn agents(journal: &Path) -> Agents {
    let book = File::create(journal).expect("a journal");
    let book = Arc::new(Mutex::new((0u64, BufWriter::new(book))));
    Agents::start(move |asked: Invocation| {
        let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
        book.0 += 1;
        let serial = book.0;
        let line = json!({
            "serial": serial, "run": asked.run_id, "attempt": asked.attempt, "epoch": asked.epoch,
            "session": asked.session_id, "message": asked.text,
        });
        writeln!(book.1, "{line}").and_then(|()| book.1.flush()).expect("the journal is written");
        Reply::speak(move |voice| speak(voice, asked.text, serial))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_dies_no_turn_is_lost_or_ended_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let journal = dir.path().join("agent.jsonl");
    let agents = agents(&journal).await;
    let mut fleet = Fleet::start(dir.path(), &agents).await;
    let stage = Arc::new(Stage::new(fleet.addresses()));
    let seed = size("FLEET_CHAOS_SEED", 1) as u64;
    let (count, mut clients) = (size("FLEET_CHAOS_CLIENTS", 40), JoinSet::new());
    let file = |n: usize| -> PathBuf { dir.path().join(format!("client-{n}.jsonl")) };
    for n in 0..count {
        clients.spawn(Client::new(Arc::clone(&stage), n, seed, &file(n)).live());
    }
    let began = Instant::now();
    let mut gaps = fleet.torment(&stage, &mut Rng::from_number(seed)).await;
    let took = began.elapsed();
    stage.end();
    while let Some(ended) = clients.join_next().await {
        ended.unwrap_or_else(|why| panic!("a client: {why}"));
    }
    let (mut verdict, journal) = (Verdict::default(), Journal::read(&journal));
    for n in 0..count {
        let history = read_history(&file(n));
        verdict.judge(&fleet, &Client::names(n), &history, &journal).await;
    }
    report(&verdict, &journal, &mut gaps, seed, took);
    verdict.must_be_clean();
    assert!(verdict.completed * 100 >= verdict.accepted * 95, "too many turns did not complete");
    fleet.leave().await;
}

fn report(verdict: &Verdict, journal: &Journal, gaps: &mut Gaps, seed: u64, took: Duration) {
    figure("seed / time under blows", format!("{seed} / {took:?}"));
    figure(
        "nodes killed / nodes asleep for longer than their lease / Redis killed",
        format!("{} / {} / {}", gaps.kills.len(), gaps.stops.len(), gaps.redis.len()),
    );
    figure(
        "turns accepted / completed / otherwise",
        format!("{} / {} / {:?}", verdict.accepted, verdict.completed, verdict.otherwise),
    );
    figure(
        "turns lost / ended twice / stale writes / texts that differ / views that differ from the log / resets",
        format!(
            "{} / {} / {} / {} / {} / {}",
            verdict.lost.len(),
            verdict.twice.len(),
            verdict.stale.len(),
            verdict.texts.len(),
            verdict.views.len(),
            verdict.resets.len()
        ),
    );
    figure("facts in the logs / epochs", format!("{} / {}", verdict.facts, verdict.epochs));
    figure(
        "runs restarted / agent invocations / of them repeats",
        format!("{} / {} / {}", verdict.restarted, journal.count(), journal.repeats()),
    );
    for (what, gaps) in [("a node's kill", &mut gaps.kills), ("Redis's kill", &mut gaps.redis)] {
        let ranks = [0.5, 0.99, 1.0].map(|rank| quantile(gaps, rank));
        figure(&format!("{what} until a turn ends again, p50 / p99 / max"), format!("{ranks:?}"));
    }
}
