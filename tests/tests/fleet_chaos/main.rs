//! Nodes killed and suspended, and Redis killed, many times under load. The verdict comes from the records of
//! clients and agents, and from the log in Redis and as a node serves it to a new client; never from the
//! nodes' own counters.
//!
//! Covers: G1, G2, G3, G5, G6, G9, G-01, G-02, G-03, G-04, G-05.
mod client;
mod faults;
mod member_client;
mod members;
mod mixed;
mod takeovers;
mod verdict;

use crate::client::Client;
use crate::faults::{Faults, Fleet, Gaps, NODES, ONE_BUILD, Shared};
use crate::takeovers::{Build, Takeovers};
use crate::verdict::{Journal, Verdict, read_history};
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinSet;
use turnway_core::rng::Rng;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::{PATIENCE, amount, figure, quantile, size};

/// Names of two agents, each used by half of the clients: one is retried when its owner is lost, one is
/// resumed.
const STEADY: &str = "steady";
const LASTING: &str = "lasting";
/// Number of pieces of an answer; every tenth answer is ten times as long.
const PIECES: usize = 20;
/// Interval of the agent's deltas, so that a fault interrupts answers.
const PACE: Duration = Duration::from_millis(5);

/// Returns the answer of the invocation number `serial`. No two are equal, so that text of one attempt cannot
/// be taken for text of another.
fn answer(message: &str, serial: u64) -> String {
    (0..pieces(message)).map(|n| piece(message, serial, n)).collect()
}

fn pieces(message: &str) -> usize {
    if message.ends_with('7') { 10 * PIECES } else { PIECES }
}

fn piece(message: &str, serial: u64, n: usize) -> String {
    format!("{message}#{serial}·{n} ß語𝄞 ")
}

async fn speak(stream: AgentStream, message: String, serial: u64) -> Result<(), HungUp> {
    let mut pace = tokio::time::interval(PACE);
    for n in 0..pieces(&message) {
        pace.tick().await;
        stream.delta(&piece(&message, serial, n)).await?;
    }
    stream.done().await
}

/// Starts agents that record each invocation in a journal before they answer.
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
        let lasting = asked.agent == LASTING;
        let script = move |stream| speak(stream, asked.text, serial);
        if lasting { Reply::outlive(script) } else { Reply::speak(script) }
    })
    .await
}

/// A fleet under load: its agents, its clients, and the folder with the records of both.
struct LoadedFleet {
    fleet: Fleet,
    stage: Arc<Shared>,
    clients: JoinSet<()>,
    began: Instant,
    /// Held because the agents stop when it is dropped.
    _agents: Agents,
    dir: TempDir,
}

/// Results of a run with faults.
struct ChaosResult {
    verdict: Verdict,
    journal: Journal,
    gaps: Gaps,
    takeovers: Takeovers,
    took: Duration,
    /// Clients that gave up because of an impossible message or a missing end.
    gave_up: Vec<String>,
}

// === impl LoadedFleet ===

impl LoadedFleet {
    /// Starts nodes of these builds, with the functions of this release or others, and the clients.
    async fn start(functions: Option<&str>, builds: [Build; NODES], seed: u64, patience: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let agents = agents(&journal_file(dir.path())).await;
        let flags = [agents.flag(STEADY) + ",on_owner_loss=retry", agents.flag(LASTING) + ",on_owner_loss=resume"];
        let fleet = Fleet::start(dir.path(), &flags, builds, functions).await;
        let stage = Arc::new(Shared::new(fleet.addresses(), patience));
        let mut clients = JoinSet::new();
        for n in 0..client_count() {
            clients.spawn(Client::new(Arc::clone(&stage), n, seed, &history_file(dir.path(), n)).run());
        }
        Self { fleet, stage, clients, began: Instant::now(), _agents: agents, dir }
    }

    /// Injects these faults; returns their times.
    async fn inject(&mut self, rng: &mut Rng, blows: &Faults) -> Gaps {
        self.fleet.inject_faults(&self.stage, rng, blows).await
    }

    /// Ends the load and collects the verdict. The logs of the sessions are read from all nodes in turn.
    async fn finish(mut self, gaps: Gaps) -> ChaosResult {
        let took = self.began.elapsed();
        self.stage.end();
        let mut gave_up = Vec::new();
        while let Some(ended) = self.clients.join_next().await {
            gave_up.extend(ended.err().map(|why| why.to_string()));
        }
        let mut verdict = Verdict::default();
        let journal = Journal::read(&journal_file(self.dir.path()));
        let readers = self.fleet.addresses();
        for n in 0..client_count() {
            if !gave_up.is_empty() {
                // A log of such a session may not be complete for a new client, so only the stored log is
                // checked.
                verdict.check_stored_log(&self.fleet, &Client::names(n).1, None);
                continue;
            }
            let history = read_history(&history_file(self.dir.path(), n));
            let at = readers[n % readers.len()];
            verdict.judge(&self.fleet, at, &Client::names(n), &history, &journal).await;
        }
        if gave_up.is_empty() {
            self.fleet.leave().await;
        }
        ChaosResult { verdict, journal, gaps, takeovers: self.fleet.takeovers, took, gave_up }
    }
}

// === impl ChaosResult ===

impl ChaosResult {
    /// Fails the test unless all guarantees held, all faults happened, and both kinds of agents were taken over.
    fn must_be_sound(&self, blows: &Faults) {
        let Self { verdict, gave_up, .. } = self;
        assert!(gave_up.is_empty(), "{}", gave_up.join("\n"));
        verdict.must_be_clean();
        blows.must_have_happened(&self.gaps, verdict.accepted);
        assert!(verdict.restarted > 0, "no turn was begun again by another owner");
        assert!(verdict.resumed > 0, "no turn went on under another owner");
        assert!(verdict.completed * 100 >= verdict.accepted * 95, "too many turns did not complete");
    }
}

fn client_count() -> usize {
    amount("FLEET_CHAOS_CLIENTS", 40)
}

fn journal_file(dir: &Path) -> PathBuf {
    dir.join("agent.jsonl")
}

fn history_file(dir: &Path, client: usize) -> PathBuf {
    dir.join(format!("client-{client}.jsonl"))
}

/// Runs load and faults over a fleet of this build, and collects the verdict.
async fn run_with_faults(functions: Option<&str>, blows: &Faults) -> ChaosResult {
    let mut loaded = LoadedFleet::start(functions, ONE_BUILD, blows.seed, blows.patience).await;
    let gaps = loaded.inject(&mut Rng::from_number(blows.seed), blows).await;
    loaded.finish(gaps).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_suspended_nodes_lose_no_turn() {
    let blows = Faults {
        seed: size("FLEET_CHAOS_SEED", 1) as u64,
        kills: amount("FLEET_CHAOS_KILLS", 4),
        stops: amount("FLEET_CHAOS_STOPS", 3),
        redis: amount("FLEET_CHAOS_REDIS_KILLS", 1),
        patience: 4 * PATIENCE,
    };
    let mut told = run_with_faults(None, &blows).await;
    report(&mut told, blows.seed);
    told.must_be_sound(&blows);
}

/// Returns the functions of this release with these lines replaced.
fn functions_with(changes: &[(&str, &str)]) -> String {
    let mut source = include_str!("../../../gateway/src/store/redis/turnway.lua").to_owned();
    for (rule, instead) in changes {
        assert_eq!(source.matches(rule).count(), 1, "the rule is there once: {rule}");
        source = source.replace(rule, instead);
    }
    source
}

fn report(told: &mut ChaosResult, seed: u64) {
    let ChaosResult { verdict, journal, gaps, takeovers, took, .. } = told;
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
        "runs restarted / went on under another owner / agent invocations / of them repeats",
        format!("{} / {} / {} / {}", verdict.restarted, verdict.resumed, journal.count(), journal.repeats()),
    );
    figure("takeovers after a kill, by build", takeovers);
    for (what, gaps) in [("a node's kill", &mut gaps.kills), ("Redis's kill", &mut gaps.redis)] {
        let ranks = [0.5, 0.99, 1.0].map(|rank| quantile(gaps, rank));
        figure(&format!("{what} until a turn ends again, p50 / p99 / max"), format!("{ranks:?}"));
    }
}

/// Rules by which the store rejects writes of a former owner.
const FENCE: (&str, &str) = ("return h.n == '' or h.e ~= epoch or h.c ~= nonce", "return false");
const ORDER: (&str, &str) = ("if after ~= seq then return { 'ORDER' } end\n    local bytes", "local bytes");
const SEEN: (&str, &str) = ("if h.n ~= args[5] or h.i ~= args[6] or h.e ~= args[7] then", "if false then");

/// Checks the verdict itself: the same load and faults over a store that does not check the writer must be
/// reported, or the clean verdict above would prove nothing. Without `FENCE` and `ORDER` alone no breach is
/// seen, because a suspended node checks its own clock and claims its sessions again before it writes. Nodes
/// are suspended until a client gives up, the first visible effect: which of two owners wrote is left to
/// chance.
///
/// Covers: G-05.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_without_fencing_is_detected_by_the_verdict() {
    let functions = functions_with(&[FENCE, ORDER, SEEN]);
    let blows = Faults { seed: 1, kills: 0, stops: 6, redis: 0, patience: PATIENCE / 2 };
    let told = run_with_faults(Some(&functions), &blows).await;
    let found = &told.verdict;
    figure(
        "over a store that does not look: stale writes / clients whose turn has no end",
        format!("{} / {}", found.stale.len(), told.gave_up.len()),
    );
    assert!(!told.gaps.stops.is_empty(), "no node was suspended");
    assert!(!found.stale.is_empty() || !told.gave_up.is_empty(), "stale writes are not found out");
}
