//! Tests clients that stop reading in the middle of an answer and continue later.
use crate::{bystanders, pin, times, until};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::interval;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};
use turnway_tests::real::{amount, figure, quantile};

/// Time between two pieces of an answer; the pieces are 64 KiB per second together.
const PIECE: Duration = Duration::from_millis(125);
const PIECE_BYTES: usize = 8 * 1024;
/// Bytes of an answer that are more than the buffers of a socket hold: from then on the node sees that a listener does
/// not read. The sizes below those of `./test long` stay under it; `under_load` has such answers at every size.
const UNREAD_BYTES_MIN: usize = 7 * 512 * 1024;
/// KiB by which the node may grow while the listeners do not read (G-16).
const GROWN_KIB: u64 = 64 * 1024;
/// Limits for other clients: the ratio of their 99th percentile to that of a run with all listeners reading, and
/// its absolute value.
const SLOWER: f64 = 1.5;
const OTHERS_WITHIN: Duration = Duration::from_millis(250);
/// Number of pairs from which on the median of the ratios says something: other load on the machine can decide a single
/// one.
const PAIRS_MANY: usize = 3;
/// Delay of the other clients' median that is tolerated in a single pair, a fifth of the limit for the 99th percentile.
/// A pause of the machine delays some of the turns; only a node that is slow all the time delays half of them.
const HALF_LATER: Duration = Duration::from_millis(50);

/// Behaviour of the listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// The listeners stop reading before the answers begin.
    Stall,
    Read,
    /// No listeners at all.
    Absent,
}

/// A listener, and the facts and text that it has received over all its connections.
struct Listener {
    wire: WebSocketClient,
    to: SocketAddr,
    session: String,
    cursor: Option<(u64, u64)>,
    facts: usize,
    run: Option<String>,
    text: String,
    done: Option<Value>,
    reconnects: usize,
}

impl Listener {
    async fn open(to: SocketAddr, session: String) -> Self {
        let mut wire = WebSocketClient::open_with_small_buffer(to)
            .await
            .expect("a connection")
            .greet("ann", vec![])
            .await
            .expect("welcome");
        let told = wire.ask("open", json!({"type": "session_open", "session_id": session})).await.expect("an answer");
        assert_eq!(told["type"], "session_opened", "{told}");
        let mut listener = Self {
            wire,
            to,
            session,
            cursor: None,
            facts: 0,
            run: None,
            text: String::new(),
            done: None,
            reconnects: 0,
        };
        let subscribe = listener.subscribe();
        listener.wire.say(subscribe).await.expect("said");
        let told = listener.wire.until(|told| told["type"] == "subscribed").await.expect("an answer");
        listener.cursor = told["seq"].as_u64().zip(told["epoch"].as_u64());
        listener
    }

    fn subscribe(&self) -> Value {
        let mut ask = json!({"type": "subscribe", "session_id": self.session});
        if let Some((seq, epoch)) = self.cursor {
            (ask["after_seq"], ask["after_epoch"]) = (seq.into(), epoch.into());
        }
        if let Some(run) = &self.run {
            ask["runs"] = json!({run: {"attempt": 1, "offset": self.text.len()}});
        }
        ask
    }

    /// Reads to the end of the answer, and reconnects whenever the connection is closed.
    async fn read_on(&mut self) {
        while self.done.is_none() {
            match self.wire.next().await {
                Ok(message) => self.take(&message),
                Err(ConnectionEnd::Closed(code)) => {
                    assert_eq!(code, 4508, "{}", self.session);
                    self.come_back().await;
                }
                // A connection closed with unread bytes in it loses the data in flight.
                Err(ConnectionEnd::Broken(_)) => self.come_back().await,
            }
        }
    }

    async fn come_back(&mut self) {
        self.reconnects += 1;
        let resume = self.subscribe();
        self.wire = WebSocketClient::hello(self.to, "ann", vec![resume]).await.expect("it comes back");
    }

    fn take(&mut self, message: &Value) {
        let number = |name: &str| message[name].as_u64().unwrap_or_default();
        match message["type"].as_str().unwrap_or_default() {
            "subscribed" => return assert!(message["reset"] != json!(true), "{message}"),
            "error" => panic!("{message}"),
            "delta" => {
                self.run = message["run_id"].as_str().map(str::to_owned);
                let start = (number("attempt"), number("offset"));
                assert_eq!(start, (1, self.text.len() as u64), "a gap or a repeat in {}", self.session);
                self.text.push_str(message["text"].as_str().expect("text"));
            }
            "done" => assert!(self.done.replace(message.clone()).is_none(), "it ended twice: {message}"),
            _ => {}
        }
        if message.get("seq").is_some() {
            let last = self.cursor.map_or(0, |(seq, _)| seq);
            assert!(number("seq") > last, "a fact came again: {message}");
            self.cursor = Some((number("seq"), number("epoch")));
            self.facts += 1;
        }
    }
}

/// Starts a task for each listener that reads to the end.
fn read_on(readers: &mut JoinSet<Listener>, listeners: Vec<Listener>) {
    for mut listener in listeners {
        readers.spawn(async move {
            listener.read_on().await;
            listener
        });
    }
}

/// Result of one run.
struct Came {
    /// Median and 99th percentile of the other clients' turns.
    p50: Duration,
    p99: Duration,
    grown_kib: u64,
    reconnects: usize,
    left_behind: f64,
    facts: Vec<usize>,
}

/// Returns the node's count of times that a link was too slow for its text.
async fn left_behind(node: &Node) -> f64 {
    let (_, metrics) = get(node.admin, "/metrics").await.expect("metrics");
    let count = metrics.lines().find_map(|line| line.strip_prefix("turnway_delivery_slow_links_total "));
    count.and_then(|count| count.parse().ok()).expect("a number")
}

/// Runs answers of 64 KiB per second in some sessions, each with many listeners.
async fn run(habit: Habit) -> Came {
    let seconds = amount("STALL_SECONDS", 6);
    let pieces = seconds * 8;
    let agents = Agents::start(move |_| {
        Reply::speak(move |stream| async move {
            let mut pace = interval(PIECE);
            let text = "x".repeat(PIECE_BYTES);
            for _ in 0..pieces {
                pace.tick().await;
                stream.delta(&text).await?;
            }
            stream.done().await
        })
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--durability", "mem", "--agent", &agents.flag("flood")]).await;
    pin(node.pid(), 0).await;
    pin(std::process::id(), 1).await;
    let count = if habit == Habit::Absent { 0 } else { amount("STALL_LINKS", 200) };
    let sessions = amount("STALL_SESSIONS", 4);
    let mut listeners = Vec::new();
    for n in 0..count {
        listeners.push(Listener::open(node.http, format!("s{}", n % sessions)).await);
    }
    let before = node.resident_kib();
    let calm = watch::Sender::new(false);
    let ended = Arc::new(AtomicUsize::new(0));
    let mut speakers = JoinSet::new();
    for n in 0..sessions {
        let to = node.http;
        let ended = Arc::clone(&ended);
        speakers.spawn(async move {
            let mut wire = WebSocketClient::hello(to, "ann", vec![]).await.expect("welcome");
            let (said, done) = wire.turn(&format!("s{n}"), "flood", "m", "hi").await.expect("a turn");
            assert_eq!((said.len(), &done["status"]), (pieces * PIECE_BYTES, &json!("completed")));
            ended.fetch_add(1, Ordering::Relaxed);
        });
    }
    let mut readers = JoinSet::new();
    if habit == Habit::Read {
        read_on(&mut readers, std::mem::take(&mut listeners));
    }
    let others = tokio::spawn(bystanders(node.http, 100, Duration::from_secs(1), calm.subscribe()));
    let mut most = before;
    until(|| {
        most = most.max(node.resident_kib());
        ended.load(Ordering::Relaxed) == sessions
    })
    .await;
    calm.send_replace(true);
    let took = others.await.expect("they are done");
    while let Some(speaker) = speakers.join_next().await {
        speaker.unwrap_or_else(|why| panic!("a speaker: {why}"));
    }
    // The listeners continue to read.
    read_on(&mut readers, listeners);
    let mut reconnects = 0;
    let mut facts = Vec::new();
    while let Some(listener) = readers.join_next().await {
        let listener = listener.unwrap_or_else(|why| panic!("a listener: {why}"));
        let done = listener.done.expect("its end");
        assert_eq!((listener.text.len(), &done["status"]), (pieces * PIECE_BYTES, &json!("completed")));
        reconnects += listener.reconnects;
        facts.push(listener.facts);
    }
    let [p50, p99] = [0.5, 0.99].map(|rank| quantile(&mut times(&took), rank));
    Came { p50, p99, grown_kib: most - before, reconnects, left_behind: left_behind(&node).await, facts }
}

/// Covers: G-16, LN-MP4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_readers_cost_little_memory_and_lose_nothing() {
    let mut ratios = Vec::new();
    let mut most = 0;
    let mut reconnects = 0;
    for _ in 0..amount("STALL_PAIRS", 1) {
        let stalled = run(Habit::Stall).await;
        let reading = run(Habit::Read).await;
        let alone = run(Habit::Absent).await;
        assert!(stalled.facts.iter().all(|facts| *facts == stalled.facts[0]), "{:?}", stalled.facts);
        assert_eq!(reading.reconnects, 0, "listeners that read were cut off");
        let links = stalled.facts.len() as f64;
        let is_seen = amount("STALL_SECONDS", 6) * 8 * PIECE_BYTES >= UNREAD_BYTES_MIN;
        assert!(!is_seen || stalled.left_behind >= links, "{} of {links} did not read", stalled.left_behind);
        ratios.push(stalled.p99.as_secs_f64() / reading.p99.as_secs_f64());
        most = most.max(stalled.grown_kib);
        assert!(stalled.p99 <= OTHERS_WITHIN, "{:?}", stalled.p99);
        let half = reading.p50.mul_f64(SLOWER) + HALF_LATER;
        assert!(stalled.p50 <= half, "{:?}, and {:?} with all listeners reading", stalled.p50, reading.p50);
        reconnects += stalled.reconnects;
        figure(
            "p99 of 100 others while they stall, while they read, and with the same answers and no listeners",
            format!("{:?} {:?} {:?}", stalled.p99, reading.p99, alone.p99),
        );
        figure("their p50", format!("{:?} {:?} {:?}", stalled.p50, reading.p50, alone.p50));
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    figure("listeners that stalled, in sessions of 64 KiB a second", {
        let [links, sessions, seconds] = [("STALL_LINKS", 200), ("STALL_SESSIONS", 4), ("STALL_SECONDS", 6)]
            .map(|(name, default)| amount(name, default));
        format!("{links} in {sessions}, for {seconds} s")
    });
    figure("what the node grew by, KiB", most);
    figure("times one was cut off (4508) and came back", reconnects);
    figure("the others' p99, in that of the same without a stall, median of the pairs", format!("{ratio:.2}"));
    assert!(most <= GROWN_KIB, "{most} KiB");
    assert!(ratios.len() < PAIRS_MANY || ratio <= SLOWER, "{ratio:.2}");
}
