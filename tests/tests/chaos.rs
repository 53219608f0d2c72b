//! `kill -9` of a node under load, many times, on one data directory. The verdict compares the clients'
//! histories with the log that the node serves to a new client, and never uses the node's own counters.
//!
//! Covers: G1, G2, G3, G5, G6, G9, G-04.
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use turnway_core::rng::Rng;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, amount, figure, quantile, size};

const CLIENTS: usize = 50;
const PIECES: usize = 20;
/// Interval of the agent's deltas, so that a kill interrupts answers.
const PACE: Duration = Duration::from_millis(5);

/// Returns the answer to a message, equal for all attempts.
fn answer(text: &str) -> String {
    (0..PIECES).map(|n| format!("{text}·{n} ß語𝄞 ")).collect()
}

async fn speak(stream: AgentStream, invocation: Invocation) -> Result<(), HungUp> {
    let mut pace = tokio::time::interval(PACE);
    for n in 0..PIECES {
        pace.tick().await;
        stream.delta(&format!("{}·{n} ß語𝄞 ", invocation.text)).await?;
    }
    stream.done().await
}

/// State shared by the clients and the killer of the node.
struct Shared {
    /// Address of the node while it serves.
    up: watch::Receiver<Option<SocketAddr>>,
    /// Number of messages that all clients have read.
    heard: AtomicU64,
    more: Notify,
    over: AtomicBool,
}

/// One client with a session and a history file of its own.
struct Client {
    stage: Arc<Shared>,
    user: String,
    session: String,
    history: BufWriter<File>,
    last: (u64, u64),
    /// Attempt and text of each unfinished run.
    open: BTreeMap<String, (u64, String)>,
    over: BTreeSet<String>,
}

impl Client {
    fn new(stage: Arc<Shared>, n: usize, history: &Path) -> Self {
        let history = BufWriter::new(File::create(history).expect("a history file"));
        let user = format!("user-{n}");
        let session = format!("chaos-{n}");
        Self { stage, user, session, history, last: (0, 0), open: BTreeMap::new(), over: BTreeSet::new() }
    }

    fn note(&mut self, what: &Value) {
        writeln!(self.history, "{what}").expect("the history is written");
    }

    /// Connects, as often as needed, and resumes from the last cursor.
    async fn connect(&mut self) -> WebSocketClient {
        let mut up = self.stage.up.clone();
        loop {
            let at = up.wait_for(Option::is_some).await.expect("the stage stands").expect("just seen");
            let mut cursor = json!({"session_id": self.session, "after_seq": self.last.0, "runs": {}});
            if self.last.1 > 0 {
                cursor["after_epoch"] = self.last.1.into();
            }
            for (run, (attempt, text)) in &self.open {
                cursor["runs"][run] = json!({"attempt": attempt, "offset": text.len()});
            }
            // The session does not exist before its first turn is accepted.
            let resume = if self.last.0 == 0 && self.open.is_empty() { vec![] } else { vec![cursor] };
            match WebSocketClient::hello(at, &self.user, resume).await {
                Ok(wire) => return wire,
                // The node was killed meanwhile; the watch reports when it serves again.
                Err(_) => up.changed().await.expect("the stage stands"),
            }
        }
    }

    /// Records a message and applies it.
    fn take(&mut self, message: &Value) {
        self.stage.heard.fetch_add(1, Ordering::Relaxed);
        self.stage.more.notify_waiters();
        if let (Some(seq), false) = (message["seq"].as_u64(), message["type"] == "subscribed") {
            self.note(message);
            self.last = (seq, message["epoch"].as_u64().expect("an epoch"));
        }
        let number = |name: &str| message[name].as_u64().expect("a number");
        let Some(run) = message["run_id"].as_str() else { return };
        match message["type"].as_str() {
            Some("delta") => {
                let (attempt, text) = self.open.entry(run.to_owned()).or_default();
                if number("attempt") != *attempt {
                    (*attempt, *text) = (number("attempt"), String::new());
                }
                let at = usize::try_from(number("offset")).expect("small");
                // Text is provisional: a node that died may not have recorded it, so it may come again.
                assert!(at <= text.len(), "a gap in the text at {}: {message}", text.len());
                text.truncate(at);
                text.push_str(message["text"].as_str().expect("text"));
            }
            Some("done") => {
                let (_, mut text) = self.open.remove(run).unwrap_or_default();
                text.truncate(usize::try_from(number("text_bytes")).expect("small"));
                self.over.insert(run.to_owned());
                self.note(&json!({"ended": run, "status": message["status"], "text": text}));
            }
            _ => {}
        }
    }

    /// Runs one turn, across any number of node deaths.
    async fn turn(&mut self, wire: &mut WebSocketClient, n: usize) {
        let id = format!("{}-m{n}", self.session);
        let begun = Instant::now();
        let mut run = None;
        while self.turn_on(wire, &id, &mut run).await.is_err() {
            assert!(begun.elapsed() < 4 * PATIENCE, "{id} has no end ({run:?})");
            *wire = self.connect().await;
        }
    }

    async fn turn_on(
        &mut self,
        wire: &mut WebSocketClient,
        id: &str,
        run: &mut Option<String>,
    ) -> Result<(), ConnectionEnd> {
        if run.is_none() {
            let mut ask = invoke(&self.session, "steady", id);
            ask["request_id"] = id.into();
            wire.say(ask).await?;
        }
        loop {
            if run.as_ref().is_some_and(|run| self.over.contains(run)) {
                return Ok(());
            }
            let message = wire.next().await?;
            if message["request_id"] == id && message["type"] == "turn_accepted" {
                *run = message["run_id"].as_str().map(str::to_owned);
                self.note(&json!({"accepted": run, "message": id}));
            }
            assert!(message["request_id"] != id || message["type"] != "error", "refused: {message}");
            self.take(&message);
        }
    }

    async fn run(mut self) {
        let mut wire = self.connect().await;
        let mut n = 0;
        while !self.stage.over.load(Ordering::Relaxed) {
            self.turn(&mut wire, n).await;
            n += 1;
        }
        self.history.flush().expect("the history is written");
    }
}

/// Contents of one client's history file.
#[derive(Default)]
struct History {
    accepted: BTreeMap<String, String>,
    ended: BTreeMap<String, (String, String)>,
    facts: Vec<Value>,
}

fn read_history(path: &Path) -> History {
    let mut history = History::default();
    for line in std::fs::read_to_string(path).expect("a history").lines() {
        let line: Value = serde_json::from_str(line).expect("a line of it");
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        if line.get("accepted").is_some() {
            history.accepted.insert(text("accepted"), text("message"));
        } else if line.get("ended").is_some() {
            history.ended.insert(text("ended"), (text("status"), text("text")));
        } else {
            history.facts.push(line);
        }
    }
    history
}

/// Returns a fact without its display time.
fn bare(fact: &Value) -> Value {
    let mut fact = fact.clone();
    fact["ts"] = Value::Null;
    fact
}

/// Returns the session's whole log as a new client receives it: every fact with `types`, otherwise the facts
/// visible to all.
async fn read_log(at: SocketAddr, user: &str, session: &str, types: Value, last: Option<u64>) -> Vec<Value> {
    let resume = vec![json!({"session_id": session, "after_seq": 0, "types": types})];
    let mut wire = WebSocketClient::hello(at, user, resume).await.expect("it connects");
    let subscribed = wire.until(|m| m["type"] == "subscribed").await.expect("subscribed");
    let tail = last.unwrap_or_else(|| subscribed["snapshot"]["seq"].as_u64().expect("the log's end"));
    let mut facts: Vec<Value> = Vec::new();
    while facts.last().is_none_or(|fact| fact["seq"].as_u64() < Some(tail)) {
        let message = wire.next().await.expect("the log");
        if message.get("seq").is_some() {
            facts.push(message);
        }
    }
    facts
}

#[derive(Default)]
struct Verdict {
    accepted: usize,
    completed: usize,
    otherwise: BTreeMap<String, usize>,
    restarted: usize,
    facts: usize,
}

impl Verdict {
    /// Compares one client's history with the log, and fails the test on every difference.
    async fn judge(&mut self, at: SocketAddr, user: &str, session: &str, history: &History) {
        if history.accepted.is_empty() {
            return;
        }
        let log = read_log(at, user, session, json!([">"]), None).await;
        let mut ends: BTreeMap<&str, &str> = BTreeMap::new();
        for (n, fact) in log.iter().enumerate() {
            assert_eq!(fact["seq"], n + 1, "{session}: the log has a hole: {fact}");
            assert!(n == 0 || fact["epoch"].as_u64() >= log[n - 1]["epoch"].as_u64(), "{session}: epochs went back");
            if fact["type"] == "done" {
                let run = fact["run_id"].as_str().expect("a run");
                let status = fact["status"].as_str();
                assert!(ends.insert(run, status.expect("a status")).is_none(), "{run} ended twice");
            }
            self.restarted += usize::from(fact["name"] == "RUN_RESTARTED");
        }
        self.facts += log.len();
        let messages: BTreeSet<&String> = history.accepted.values().collect();
        assert_eq!(messages.len(), history.accepted.len(), "{session}: a message opened two turns");
        for (run, message) in &history.accepted {
            let status = ends.get(run.as_str()).unwrap_or_else(|| panic!("{run} was accepted and is lost"));
            let (told, text) = history.ended.get(run).unwrap_or_else(|| panic!("{run}: its client saw no end"));
            assert_eq!(told, status, "{run} ended otherwise than its client was told");
            self.accepted += 1;
            if *status == "completed" {
                self.completed += 1;
                assert!(*text == answer(message), "{run}: the text is not byte-equal");
            } else {
                *self.otherwise.entry((*status).to_owned()).or_default() += 1;
            }
        }
        let last = history.facts.last().and_then(|fact| fact["seq"].as_u64());
        let mut shown = read_log(at, user, session, json!([]), last).await;
        shown.retain(|fact| fact["seq"].as_u64() >= history.facts[0]["seq"].as_u64());
        let seen: Vec<Value> = history.facts.iter().map(bare).collect();
        let shown: Vec<Value> = shown.iter().map(bare).collect();
        if let Some(n) = (0..seen.len().max(shown.len())).find(|&n| seen.get(n) != shown.get(n)) {
            panic!("{session}: client and log differ:\n{:?}\n{:?}", seen.get(n), shown.get(n));
        }
    }
}

/// Kills the node under load, and returns the time from each kill to the first message that a client
/// received.
async fn kill_often(
    node: &mut Node,
    up: &watch::Sender<Option<SocketAddr>>,
    stage: &Shared,
    rng: &mut Rng,
    kills: usize,
) -> Vec<Duration> {
    let mut gaps = Vec::new();
    for _ in 0..kills {
        until_messages_read(stage, 500 + rng.below(5_000)).await;
        let dead = Instant::now();
        up.send_replace(None);
        node.kill_and_restart().await;
        up.send_replace(Some(node.http));
        until_messages_read(stage, 1).await;
        gaps.push(dead.elapsed());
    }
    until_messages_read(stage, 2_000).await;
    gaps
}

/// Waits until all clients together have read this many more messages.
async fn until_messages_read(stage: &Shared, more: u64) {
    let goal = stage.heard.load(Ordering::Relaxed) + more;
    let reached = async {
        loop {
            let next = stage.more.notified();
            if stage.heard.load(Ordering::Relaxed) >= goal {
                return;
            }
            next.await;
        }
    };
    tokio::time::timeout(2 * PATIENCE, reached).await.expect("the clients hear nothing any more");
}

/// Kills the node within answers, restarts it, and compares each client's history with the log.
///
/// Covers: MP-B12, EV-R4, EV-A2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_node_loses_no_accepted_turn_and_ends_none_twice() {
    let agents = Agents::start(|asked| Reply::speak(|stream| speak(stream, asked))).await;
    let dir = tempfile::tempdir().expect("a directory");
    let flag = agents.flag("steady") + ",on_owner_loss=retry";
    let mut node = Node::start(dir.path(), &["--agent", &flag]).await;
    let (up, seen) = watch::channel(Some(node.http));
    let stage = Shared { up: seen, heard: AtomicU64::new(0), more: Notify::new(), over: AtomicBool::new(false) };
    let stage = Arc::new(stage);
    let mut clients = tokio::task::JoinSet::new();
    let file = |n: usize| -> PathBuf { dir.path().join(format!("client-{n}.jsonl")) };
    for n in 0..CLIENTS {
        clients.spawn(Client::new(Arc::clone(&stage), n, &file(n)).run());
    }
    let seed = size("CHAOS_SEED", 1) as u64;
    let kills = amount("CHAOS_KILLS", 3);
    let mut gaps = kill_often(&mut node, &up, &stage, &mut Rng::from_number(seed), kills).await;
    stage.over.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap_or_else(|why| panic!("a client: {why}"));
    }
    let mut verdict = Verdict::default();
    for n in 0..CLIENTS {
        let user = format!("user-{n}");
        let session = format!("chaos-{n}");
        verdict.judge(node.http, &user, &session, &read_history(&file(n))).await;
    }
    report(&verdict, &mut gaps, seed, &agents);
    assert_eq!(gaps.len(), kills, "not every kill happened");
    assert!(verdict.accepted >= CLIENTS, "{} turns of {CLIENTS} clients", verdict.accepted);
    // All clients run turns all the time, so a kill that interrupts none of them is no test of a kill.
    assert!(verdict.restarted >= kills, "{kills} kills interrupted {} runs", verdict.restarted);
    assert!(verdict.completed * 100 >= verdict.accepted * 95, "too many turns did not complete");
    assert_eq!(node.terminate().await, Some(0), "it leaves when told");
}

fn report(verdict: &Verdict, gaps: &mut [Duration], seed: u64, agents: &Agents) {
    let journal = agents.journal();
    let again = journal.iter().filter(|asked| asked.attempt > 1).count();
    figure("seed", seed);
    figure("kills", gaps.len());
    figure(
        "turns accepted / completed / otherwise",
        format!("{} / {} / {:?}", verdict.accepted, verdict.completed, verdict.otherwise),
    );
    figure("turns lost / ended twice / views that differ from the log", "0 / 0 / 0");
    figure("facts in the logs", verdict.facts);
    figure(
        "runs restarted / agent invocations / of them repeats",
        format!("{} / {} / {again}", verdict.restarted, journal.len()),
    );
    figure(
        "kill to first message heard, p50 / p99 / max",
        format!("{:?} / {:?} / {:?}", quantile(gaps, 0.5), quantile(gaps, 0.99), quantile(gaps, 1.0)),
    );
}
