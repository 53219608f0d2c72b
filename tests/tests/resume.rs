//! Tests random disconnects in the middle of answers, with a real node and real agents: the text stays byte-equal,
//! and every fact arrives once and in order.
//!
//! Covers: G5, ST-2, G-11, RX-21.
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use turnway_core::rng::Rng;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};
use turnway_tests::real::{figure, quantile, size};

/// Disconnects in one answer.
const CUTS: usize = 20;
/// Pieces in one answer: more than the disconnects can use up.
const PIECES: usize = CUTS * 12;
/// Answers under way at once.
const WIDTH: usize = 8;

/// Returns one piece of an answer: every UTF-8 width occurs, and every 37th piece is long.
fn piece(run: usize, n: usize) -> String {
    let letter = ["a", "ß", "語", "𝄞", "e\u{301}", "👩‍👩‍👧", "\n", "\"\\"][(run + n) % 8];
    let times = if n.is_multiple_of(37) { 900 } else { 1 + n % 5 };
    format!("{n}{}", letter.repeat(times))
}

/// Gates of the answers; the test adds one permit for each piece.
type Gates = Arc<BTreeMap<String, Semaphore>>;

async fn speak(stream: AgentStream, gates: Gates, invocation: Invocation) -> Result<(), HungUp> {
    let run: usize = invocation.text.parse().expect("the answer's number");
    for n in 0..PIECES {
        gates[&invocation.text].acquire().await.expect("the gate stays").forget();
        stream.delta(&piece(run, n)).await?;
    }
    stream.done().await
}

/// Facts and text that one client has received of one session.
#[derive(Default)]
struct Held {
    facts: Vec<(u64, u64, String)>,
    text: String,
    attempt: Value,
    run: Option<String>,
    done: Option<Value>,
}

impl Held {
    fn take(&mut self, message: &Value) {
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        if message["type"] == "turn_accepted" {
            self.run = Some(text("run_id"));
        }
        if message["type"] == "subscribed" {
            assert!(message["reset"] != json!(true), "an unexpected reset: {message}");
        } else if let Some(seq) = message["seq"].as_u64() {
            let last = self.facts.last().map_or(0, |fact| fact.0);
            assert!(seq > last, "fact {seq} after fact {last}: {message}");
            self.facts.push((seq, message["epoch"].as_u64().expect("an epoch"), text("type") + &text("name")));
        }
        if message["type"] == "delta" {
            if self.attempt.is_null() {
                self.attempt = message["attempt"].clone();
            }
            assert_eq!(message["attempt"], self.attempt, "nobody restarted this run");
            assert_eq!(message["offset"], self.text.len(), "a gap or a repeat in the text");
            self.text += &text("text");
        }
        if message["type"] == "done" {
            self.done = Some(message.clone());
        }
    }
    fn cursor(&self, session: &str) -> Value {
        let (seq, epoch, _) = self.facts.last().cloned().unwrap_or_default();
        let mut cursor = json!({"session_id": session, "after_seq": seq});
        if epoch > 0 {
            cursor["after_epoch"] = epoch.into();
        }
        if let (Some(run), false) = (&self.run, self.attempt.is_null()) {
            cursor["runs"] = json!({run: {"attempt": self.attempt, "offset": self.text.len()}});
        }
        cursor
    }
}

/// Runs one answer through its disconnects; returns the time of each resume until `subscribed`.
async fn torn_answer(node: SocketAddr, gates: Gates, number: usize, seed: u64) -> Vec<Duration> {
    let mut rng = Rng::from_number(seed);
    let mut held = Held::default();
    let mut resumes = Vec::new();
    let session = format!("torn-{number}");
    let user = format!("user-{number}");
    let gate = &gates[&number.to_string()];
    let mut wire = WebSocketClient::hello(node, &user, vec![]).await.expect("it connects");
    let mut ask = invoke(&session, "torn", &number.to_string());
    ask["request_id"] = "r".into();
    wire.say(ask).await.expect("sent");
    while held.run.is_none() {
        held.take(&wire.next().await.expect("an answer"));
    }
    let mut released = 0;
    for _ in 0..CUTS {
        let pieces = usize::try_from(rng.below(11)).expect("small") + 1;
        gate.add_permits(pieces);
        released += pieces;
        // Part of the released text is read; the rest is lost with the connection.
        let goal = held.text.len() + usize::try_from(rng.below(200)).expect("small");
        while held.text.len() < goal.min(said(number, released)) {
            held.take(&wire.next().await.expect("the answer goes on"));
        }
        drop(wire);
        let begun = Instant::now();
        wire = WebSocketClient::hello(node, &user, vec![held.cursor(&session)]).await.expect("it reconnects");
        let mut subscribed = false;
        while !subscribed {
            let message = wire.next().await.expect("resumed");
            subscribed = message["type"] == "subscribed";
            held.take(&message);
        }
        resumes.push(begun.elapsed());
    }
    gate.add_permits(PIECES);
    while held.done.is_none() {
        match wire.next().await {
            Ok(message) => held.take(&message),
            Err(ConnectionEnd::Closed(code)) => panic!("closed with {code}"),
            Err(ConnectionEnd::Broken(why)) => panic!("{why}"),
        }
    }
    let whole: String = (0..PIECES).map(|n| piece(number, n)).collect();
    assert!(held.text == whole, "the answer is not byte-equal: {} bytes of {}", held.text.len(), whole.len());
    let done = held.done.as_ref().expect("just seen");
    assert_eq!((&done["status"], &done["text_bytes"]), (&json!("completed"), &json!(whole.len())), "{done}");
    let mut whole = view(node, &session, &user).await;
    whole.retain(|fact| fact.0 >= held.facts[0].0);
    assert_eq!(whole, held.facts, "one look at the whole log shows the same facts");
    resumes
}

/// Returns the bytes of the first pieces.
fn said(number: usize, pieces: usize) -> usize {
    (0..pieces).map(|n| piece(number, n).len()).sum()
}

/// Returns the facts of an ended session as a new client gets them.
async fn view(node: SocketAddr, session: &str, user: &str) -> Vec<(u64, u64, String)> {
    let resume = vec![json!({"session_id": session, "after_seq": 0})];
    let mut wire = WebSocketClient::hello(node, user, resume).await.expect("it connects");
    let mut held = Held::default();
    while held.done.is_none() {
        let message = wire.next().await.expect("the log");
        if message["type"] != "delta" {
            held.take(&message);
        }
    }
    held.facts
}

/// Covers: SR-G8, EV-A3, ST-18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_after_random_disconnects_loses_nothing() {
    let answers = size("RESUME_DISCONNECTS", 100).div_ceil(CUTS);
    let gates: Gates = Arc::new((0..answers).map(|n| (n.to_string(), Semaphore::new(0))).collect());
    let held = Arc::clone(&gates);
    let agents = Agents::start(move |asked| {
        let gates = Arc::clone(&held);
        Reply::speak(|stream| speak(stream, gates, asked))
    });
    let agents = agents.await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("torn")]).await;
    let seed = size("RESUME_SEED", 1) as u64;
    let turnstile = Arc::new(Semaphore::new(WIDTH));
    let mut running = tokio::task::JoinSet::new();
    for number in 0..answers {
        let gates = Arc::clone(&gates);
        let turnstile = Arc::clone(&turnstile);
        let http = node.http;
        running.spawn(async move {
            let _turn = turnstile.acquire().await.expect("the turnstile stays");
            torn_answer(http, gates, number, seed + number as u64).await
        });
    }
    let mut resumes = Vec::new();
    while let Some(ended) = running.join_next().await {
        resumes.extend(ended.unwrap_or_else(|why| panic!("{why}")));
    }
    assert_eq!(agents.journal().len(), answers, "each answer was asked for once");
    figure("seed", seed);
    figure("disconnects", resumes.len());
    figure("answers, byte-equal", answers);
    figure(
        "resume p50 / p99 / max",
        format!(
            "{:?} / {:?} / {:?}",
            quantile(&mut resumes, 0.5),
            quantile(&mut resumes, 0.99),
            quantile(&mut resumes, 1.0)
        ),
    );
}

/// Pieces of a slow answer, and their pace: long enough that text is recorded by the timer while more text is
/// gathered.
const SLOW_PIECES: usize = 2_000;
const SLOW_PACE: Duration = Duration::from_millis(3);

/// Covers: G5, RX-2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_answer_arrives_whole() {
    let agents = Agents::start(|asked| {
        Reply::speak(|stream| async move {
            let run: usize = asked.text.parse().expect("the answer's number");
            let mut pace = tokio::time::interval(SLOW_PACE);
            for n in 0..SLOW_PIECES {
                pace.tick().await;
                stream.delta(&piece(run, n)).await?;
            }
            stream.done().await
        })
    });
    let agents = agents.await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("slow")]).await;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..WIDTH {
        let http = node.http;
        running.spawn(async move {
            let mut wire = WebSocketClient::hello(http, "patient", vec![]).await.expect("it connects");
            let session = format!("slow-{number}");
            let text = number.to_string();
            let (said, done) = wire.turn(&session, "slow", "r", &text).await.expect("an answer");
            let whole: String = (0..SLOW_PIECES).map(|n| piece(number, n)).collect();
            assert!(said == whole, "the answer is not byte-equal: {done}");
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap_or_else(|why| panic!("{why}"));
    }
}

/// A cursor names an attempt that never existed, of a run that has ended: the client gets the whole text.
///
/// Covers: G5, RX-21.
#[tokio::test]
async fn cursor_of_an_unknown_attempt_gets_the_whole_text() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    wire.say(invoke("s", "echo", "one two three")).await.expect("it takes it");
    let started = wire.until(|message| message["type"] == "run_started").await.expect("it starts");
    wire.until(|message| message["type"] == "done").await.expect("it ends");
    for (attempt, offset) in [(0, 0), (7, 5), (7, 500)] {
        let run_id = started["run_id"].as_str().expect("a run");
        let runs = json!({run_id: {"attempt": attempt, "offset": offset}});
        let cursor = json!({"session_id": "s", "after_seq": started["seq"], "runs": runs});
        let mut wire = WebSocketClient::hello(node.http, "ann", vec![cursor]).await.expect("it connects");
        let mut text = String::new();
        loop {
            let message = wire.next().await.expect("a message");
            match message["type"].as_str() {
                Some("delta") => text.push_str(message["text"].as_str().expect("a text")),
                Some("done") => break,
                _ => {}
            }
        }
        assert_eq!(text, "one two three", "attempt {attempt}, offset {offset}");
    }
}
