//! Tests a busy node: a drain fails no turn, clients that do not read cost little and delay no others, and cancels
//! and steering receipts are quick. `./test long under_load` runs the full size.
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};
use turnway_tests::real::agent::{Agents, Invocation, Reply};
use turnway_tests::real::http::get;
use turnway_tests::real::load::Load;
use turnway_tests::real::node::Node;
use turnway_tests::real::steers::SteeringLog;
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, amount, figure, quantile};

/// Duration of one answer of the slow agents.
const ANSWER: Duration = Duration::from_secs(2);
/// Time from a cancel until the agent's request is closed, 99th percentile (G-17).
const CANCELLED_WITHIN: Duration = Duration::from_millis(100);
/// Time between two pieces of an answer.
const PIECE: Duration = Duration::from_millis(50);

/// Starts an agent that answers slowly, at a steady pace.
async fn slow_agent() -> Agents {
    Agents::start(|_| {
        Reply::speak(|stream| async move {
            let mut pace = interval(PIECE);
            let until = Instant::now() + ANSWER;
            while Instant::now() < until {
                pace.tick().await;
                stream.delta("word ").await?;
            }
            stream.done().await
        })
    })
    .await
}

/// Runs one turn to its end; returns its duration and its `done` message.
async fn turn(to: SocketAddr, round: &str, n: usize, begun: mpsc::Sender<()>) -> (Duration, Value) {
    let session = format!("{round}-{n}");
    let mut wire = WebSocketClient::hello(to, &format!("user-{n}"), vec![]).await.expect("welcome");
    let since = Instant::now();
    let accepted = wire.ask("m", invoke(&session, "slow", "hi")).await.expect("an answer");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    wire.until(|message| message["type"] == "delta").await.expect("it begins");
    begun.send(()).await.expect("the test waits");
    let done = wire.until(|message| message["type"] == "done").await.expect("an end");
    (since.elapsed(), done)
}

/// Runs this many turns at once; runs `then` once all of them have text. Returns their durations.
async fn turns(to: SocketAddr, round: &'static str, count: usize, then: impl Future<Output = ()>) -> Vec<Duration> {
    let (begun, mut speaking) = mpsc::channel(count);
    let mut clients = JoinSet::new();
    for n in 0..count {
        clients.spawn(turn(to, round, n, begun.clone()));
    }
    for _ in 0..count {
        timeout(PATIENCE, speaking.recv()).await.expect("all of them begin in time");
    }
    then.await;
    let mut took = Vec::new();
    while let Some(ended) = clients.join_next().await {
        let (each, done) = ended.expect("no client saw anything wrong");
        assert_eq!(done["status"], "completed", "{done}");
        took.push(each);
    }
    took
}

/// Covers: G-14.
#[tokio::test]
async fn drain_completes_all_open_turns() {
    let agents = slow_agent().await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--agent", &agents.flag("slow")]).await;
    let count = amount("DRAIN_TURNS", 50);
    let mut before = turns(node.http, "before", count, async {}).await;
    let mut asked = None;
    let mut during = turns(node.http, "during", count, async {
        node.signal("-TERM").await;
        asked = Some(Instant::now());
    })
    .await;
    assert_eq!(node.exit().await, Some(0));
    let took = asked.expect("it was asked").elapsed();
    let added = quantile(&mut during, 0.99).saturating_sub(quantile(&mut before, 0.99));
    figure("turns that ran through the drain, all completed", count);
    figure("from SIGTERM to the exit", format!("{took:.2?}"));
    figure("added to the 99th percentile of a turn", format!("{added:.0?}"));
    assert!(took > ANSWER / 4, "the turns were over before the node was asked to leave: {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(added < ANSWER, "{added:?}");
}

/// Covers: G-17.
#[tokio::test]
async fn cancel_closes_the_agent_request_quickly() {
    let (gone, mut hung_up) = mpsc::channel(1);
    let agents = Agents::start(move |_| {
        let gone = gone.clone();
        Reply::speak(|stream| async move {
            let end = stream.hung_up().await;
            gone.send(Instant::now()).await.expect("the test waits");
            end
        })
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &agents.flag("held")]).await;
    let load = Load::start(node.http, amount("CANCEL_LOAD", 8));
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let mut took = Vec::new();
    for n in 0..amount("CANCELS", 50) {
        let run = wire.ask(&format!("m{n}"), invoke("anns", "held", "hi")).await.expect("accepted");
        wire.until(|message| message["name"] == "AGENT_STARTED").await.expect("it runs");
        let asked_at = Instant::now();
        wire.say(json!({"type": "cancel_run", "run_id": run["run_id"]})).await.expect("said");
        let closed = timeout(PATIENCE, hung_up.recv()).await.expect("it is closed").expect("by us");
        took.push(closed - asked_at);
        let done = wire.until(|message| message["type"] == "done").await.expect("an end");
        assert_eq!(done["status"], "cancelled", "{done}");
    }
    let beside = load.stop().await;
    figure("turns beside the cancels", beside);
    // Each client of the load runs a turn after the other, so that a cancel always has turns beside it.
    assert!(beside >= took.len() as u64, "{beside} turns beside {} cancels are no load", took.len());
    let p99 = quantile(&mut took, 0.99);
    figure("from a cancel to the closed request", format!("p50 {:.1?}, p99 {p99:.1?}", quantile(&mut took, 0.5)));
    assert!(p99 <= CANCELLED_WITHIN, "{p99:?}");
}

/// Sends eight steering messages to an agent that answers, and a last one that lets the agent end; returns the
/// times until each was accepted and until its receipt arrived.
async fn interject(wire: &mut WebSocketClient, session: &str, round: usize) -> Vec<(Duration, Duration)> {
    let host = wire.ask(&format!("{round}-host"), invoke(session, "held", "hi")).await.expect("an answer");
    wire.until(|message| message["name"] == "AGENT_STARTED").await.expect("it runs");
    let mut pace = interval(PIECE);
    let mut took = Vec::new();
    for n in 0..=8 {
        pace.tick().await;
        let text = if n < 8 { "more" } else { "end" };
        let asked_at = Instant::now();
        let answer = wire.ask(&format!("{round}-{n}"), invoke(session, "held", text)).await.expect("an answer");
        let accepted = asked_at.elapsed();
        let is_receipt = |message: &Value| message["name"] == "STEER_ACK" && message["run_id"] == answer["run_id"];
        let receipt = wire.until(is_receipt).await.expect("a receipt");
        assert_eq!(receipt["outcome"], "accepted", "{receipt}");
        took.push((accepted, asked_at.elapsed()));
    }
    let is_end = |message: &Value| message["type"] == "done" && message["run_id"] == host["run_id"];
    let done = wire.until(is_end).await.expect("an end");
    assert_eq!(done["status"], "completed", "{done}");
    took
}

/// Covers: ST-7, EV-T6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steering_receipt_follows_acceptance_within_5_ms() {
    /// Allowed difference between the 99th percentiles of receipts and of acceptances, as the median of the rounds.
    const LATER: Duration = Duration::from_millis(5);
    let steers = Arc::new(SteeringLog::default());
    let heard = Arc::clone(&steers);
    let held = move |asked: Invocation| {
        let heard = Arc::clone(&heard);
        Reply::speak(move |stream| async move {
            heard.until(|steered| steered.run_id == asked.run_id && steered.text == "end").await;
            stream.done().await
        })
    };
    let agents = Agents::start_steered(held, steers).await;
    let dir = tempfile::tempdir().expect("a directory");
    let flag = agents.flag("held") + ",steer=true";
    let node = Node::start_on("memory:", dir.path(), &["--agent", &flag]).await;
    let rounds = amount("STEER_ROUNDS", 10);
    let mut clients = JoinSet::new();
    for n in 0..amount("STEER_CLIENTS", 10) {
        let to = node.http;
        clients.spawn(async move {
            let mut wire = WebSocketClient::hello(to, &format!("user-{n}"), vec![]).await.expect("welcome");
            let mut took = Vec::new();
            for round in 0..rounds {
                took.push(interject(&mut wire, &format!("s{n}"), round).await);
            }
            took
        });
    }
    let clients = clients.join_all().await;
    let of = |times: &mut Vec<Duration>| (quantile(times, 0.5), quantile(times, 0.99));
    let mut later = Vec::new();
    for round in 0..rounds {
        let took = clients.iter().flat_map(|rounds| &rounds[round]).copied();
        let (mut accepted, mut receipts): (Vec<_>, Vec<_>) = took.unzip();
        let count = accepted.len();
        let accepted = of(&mut accepted);
        let receipts = of(&mut receipts);
        figure("interjections, p50 and p99 until accepted, and until the agent's receipt is seen", {
            format!("{count}; {accepted:.1?}; {receipts:.1?}")
        });
        later.push(receipts.1.saturating_sub(accepted.1));
    }
    // A pause of the machine lengthens the percentile of the round that it falls into; a slow path, that of each.
    let median = quantile(&mut later, 0.5);
    assert!(median <= LATER, "{later:?}");
}

/// Returns the 99th percentile of small turns, one after the other, for as long as `meanwhile` takes: one a second at
/// least, for the percentile of no turns is 0.
async fn small_turns(to: SocketAddr, user: &str, meanwhile: impl Future<Output = ()>) -> Duration {
    let mut wire = WebSocketClient::hello(to, user, vec![]).await.expect("welcome");
    let mut took = Vec::new();
    let began = Instant::now();
    let mut meanwhile = std::pin::pin!(meanwhile);
    for n in 0.. {
        let since = Instant::now();
        let message = format!("m{n}");
        tokio::select! {
            biased;
            turn = wire.turn(user, "echo", &message, "a word") => drop(turn.expect("a turn")),
            () = &mut meanwhile => break,
        }
        took.push(since.elapsed());
    }
    let seconds = began.elapsed().as_secs();
    assert!(took.len() as u64 >= seconds.max(1), "{} small turns in {seconds} s", took.len());
    quantile(&mut took, 0.99)
}

/// Reads all text of a slow turn in this session.
async fn reader(to: SocketAddr, session: String, bytes: usize) {
    let mut wire = WebSocketClient::hello(to, "ann", vec![]).await.expect("welcome");
    let (said, done) = wire.turn(&session, "flood", "m", "hi").await.expect("a turn");
    assert_eq!((said.len(), &done["status"]), (bytes, &json!("completed")));
}

/// Covers: G-16.
#[tokio::test]
async fn stalled_clients_cost_little_and_delay_nobody() {
    /// Memory for each stalled client.
    const EACH_KIB: u64 = 64;
    /// Memory for the answers themselves while they are produced.
    const ANSWERS_KIB: u64 = 48 * 1024;
    /// More than socket buffers hold, and less than the limit of one answer.
    const ANSWER_BYTES: usize = 7 * 512 * 1024;
    let pieces = 20 * amount("STALLED_SECONDS", 5);
    let agents = Agents::start(move |_| {
        Reply::speak(move |stream| async move {
            let mut pace = interval(PIECE);
            let text = "x".repeat(ANSWER_BYTES / pieces);
            for _ in 0..pieces {
                pace.tick().await;
                stream.delta(&text).await?;
            }
            stream.done().await
        })
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &agents.flag("flood")]).await;
    let calm = small_turns(node.http, "calm", async {
        let mut pace = interval(Duration::from_secs(2));
        pace.tick().await;
        pace.tick().await;
    })
    .await;
    let count = amount("STALLED_LINKS", 100);
    let sessions = amount("STALLED_SESSIONS", 3);
    let mut stalled = Vec::new();
    for n in 0..count {
        let mut wire = WebSocketClient::open_with_small_buffer(node.http).await.expect("a connection");
        wire.say(json!({"type": "hello", "user_id": "ann"})).await.expect("said");
        let session = format!("s{}", n % sessions);
        wire.say(json!({"type": "session_open", "session_id": session})).await.expect("said");
        wire.say(json!({"type": "subscribe", "session_id": session})).await.expect("said");
        stalled.push(wire);
    }
    let before = node.resident_kib();
    let mut readers = JoinSet::new();
    for n in 0..sessions {
        readers.spawn(reader(node.http, format!("s{n}"), ANSWER_BYTES / pieces * pieces));
    }
    let mut most = before;
    let busy = small_turns(node.http, "busy", async {
        let mut pace = interval(Duration::from_millis(100));
        while !readers.is_empty() {
            tokio::select! {
                read = readers.join_next() => read.expect("there are some").expect("every reader has all of it"),
                _ = pace.tick() => most = most.max(node.resident_kib()),
            }
        }
    })
    .await;
    let grown = most - before;
    let (_, metrics) = get(node.admin, "/metrics").await.expect("metrics");
    let slow = metrics.lines().find_map(|line| line.strip_prefix("turnway_delivery_slow_links_total "));
    let slow: f64 = slow.and_then(|count| count.parse().ok()).expect("a number");
    figure("clients that did not read", stalled.len());
    figure("times one was left behind", slow);
    figure("memory they and the answers took, KiB", grown);
    figure("p99 of a small turn beside them", format!("{busy:.1?}, before {calm:.1?}"));
    assert!(slow >= count as f64, "{slow} were left behind: the rest swallowed all of it");
    assert!(grown < ANSWERS_KIB + EACH_KIB * count as u64, "{grown} KiB");
    assert!(busy < calm * 5 + Duration::from_millis(250), "{busy:?} instead of {calm:?}");
}
