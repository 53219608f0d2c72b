//! Ten answers on one connection over a lossy network, one of which is not read: over QUIC this does not
//! delay the others.
use crate::network::Network;
use crate::timed_agents::{self, Journal, PIECE_BYTES, whole};
use quinn::{Endpoint, TransportConfig, VarInt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::time::Duration;
use tempfile::tempdir;
use tokio::task::JoinSet;
use tokio::time::interval_at;
use turnway_client::limits;
use turnway_tests::real::quic::{QuicConnection, TextStream, config, take};
use turnway_tests::real::tls::Trust;
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{amount, figure, quantile};

/// Number of concurrent answers on the connection.
const RUNS: usize = 10;
/// Interval of the deltas of one answer: 2,500 a second reach the node.
const PACE: Duration = Duration::from_millis(4);
/// Packets lost of a thousand, each way.
const LOST: u32 = 20;
/// Maximum ratio of the other nine answers' 99th percentile to that with all answers read.
const SLOWER: f64 = 1.5;
/// Delay that is always tolerated: one scheduling delay affects 1 % of a short answer. A blocked answer would
/// wait for seconds.
const HICCUP: Duration = Duration::from_millis(500);
/// Number of pairs from which on a single delay cannot decide the median.
const PAIRS_MANY: usize = 5;
/// Time for which a WebSocket with all ten answers is not read.
const NOT_READ: Duration = Duration::from_secs(3);

/// A future of the ages of deltas.
type Reading = Pin<Box<dyn Future<Output = Vec<Duration>> + Send>>;

/// Address, credentials and expected answers of the clients.
#[derive(Clone)]
struct ClientConfig {
    trust: Trust,
    key: String,
    journal: Journal,
    deltas: usize,
}

fn hello(door: &ClientConfig) -> Value {
    json!({"type": "hello", "api_key": door.key})
}

/// Returns the windows that the client crate grants: 64 KiB for each stream.
fn usual() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_uni_streams(VarInt::from_u32(limits::STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(limits::STREAM_BYTES_MAX))
        .receive_window(VarInt::from_u32(limits::STREAMS_BYTES_MAX));
    transport
}

/// Reads a stream to its end, and returns the age of each delta on arrival.
async fn read(mut lane: TextStream, door: ClientConfig, session: String) -> Vec<Duration> {
    let mut text = String::new();
    let mut ages = Vec::new();
    while let Some(message) = lane.next().await.expect("the connection stays") {
        take(&mut text, &message);
        ages.extend(door.journal.ages(&session, ages.len(), text.len()));
    }
    assert!(text == whole(&session, door.deltas), "{session}: {} bytes", text.len());
    ages
}

/// Runs ten answers over QUIC; with `stalls` the first is read only after the others have ended. Returns the
/// ages of the other nine answers' deltas.
async fn by_quic(door: ClientConfig, round: String, stalls: bool) -> Vec<Duration> {
    let end = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into()).expect("a port");
    let line = QuicConnection::open_from(&end, Network::quic(), config(&door.trust, b"turnway/1", usual())).await;
    let mut line = line.expect("it connects").greet_with(hello(&door)).await.expect("welcome");
    let session = |n: usize| format!("{round}-{n}");
    for n in 0..RUNS {
        line.ask(&format!("m{n}"), invoke(&session(n), "a", "go")).await.expect("accepted");
    }
    let mut others = JoinSet::new();
    let mut first = None;
    for _ in 0..RUNS {
        let lane = line.accept_text_stream().await.expect("a stream");
        let of = lane.head["session_id"].as_str().expect("a session").to_owned();
        if of == session(0) {
            first = Some(lane);
        } else {
            _ = others.spawn(read(lane, door.clone(), of));
        }
    }
    let first = read(first.expect("one of them"), door.clone(), session(0));
    let first: Reading = if stalls {
        Box::pin(first)
    } else {
        let reading = tokio::spawn(first);
        Box::pin(async { reading.await.expect("it is read") })
    };
    let mut ages = Vec::new();
    while let Some(read) = others.join_next().await {
        ages.extend(read.expect("it is read"));
    }
    assert_eq!(ages.len(), (RUNS - 1) * door.deltas, "deltas of the other answers");
    // The answer is complete whenever it is read.
    first.await;
    for _ in 0..RUNS {
        let done = line.until(|message| message["type"] == "done").await.expect("it stays");
        assert_eq!(done["status"], "completed", "{done}");
    }
    ages
}

/// Runs ten answers over one WebSocket; with `stalls` nothing is read for a while, from the middle on.
async fn by_websocket(door: ClientConfig, round: String, stalls: bool) -> Vec<Duration> {
    let wire = door.trust.open(Network::http()).await.expect("it connects");
    let mut wire: WebSocketClient = wire.greet_with(hello(&door)).await.expect("welcome");
    for n in 0..RUNS {
        // Text of the first answer arrives before the last input is sent.
        let mut ask = invoke(&format!("{round}-{n}"), "a", "go");
        ask["request_id"] = format!("m{n}").into();
        wire.say(ask).await.expect("said");
    }
    let mut said = BTreeMap::<String, String>::new();
    let mut seen = BTreeMap::<String, usize>::new();
    let mut ages = Vec::new();
    let mut ended = 0;
    let mut stalls = stalls;
    while ended < RUNS {
        let message = wire.next().await.expect("it stays");
        match message["type"].as_str() {
            Some("delta") => {
                let session = message["run_id"].as_str().expect("a run").split('.').next().expect("a session");
                let said = said.entry(session.into()).or_default();
                let seen = seen.entry(session.into()).or_default();
                take(said, &message);
                let new = door.journal.ages(session, *seen, said.len());
                *seen += new.len();
                ages.extend(new);
            }
            Some("done") => {
                assert_eq!(message["status"], "completed", "{message}");
                ended += 1;
            }
            _ => {}
        }
        if stalls && ages.len() > RUNS * door.deltas / 2 {
            stalls = false;
            interval_at(tokio::time::Instant::now() + NOT_READ, NOT_READ).tick().await;
        }
    }
    assert_eq!((said.len(), ages.len()), (RUNS, RUNS * door.deltas), "answers, and their deltas");
    for (session, said) in said {
        assert!(said == whole(&session, door.deltas), "{session}: {} bytes", said.len());
    }
    ages
}

struct Quantiles {
    p50: Duration,
    p99: Duration,
    most: Duration,
}

/// Reports the quantiles of ages.
fn told(what: &str, mut ages: Vec<Duration>) -> Quantiles {
    let told =
        Quantiles { p50: quantile(&mut ages, 0.5), p99: quantile(&mut ages, 0.99), most: quantile(&mut ages, 1.0) };
    let count = ages.len();
    figure(what, format!("p50 {:.1?}, p99 {:.1?}, last {:.1?} of {count} deltas", told.p50, told.p99, told.most));
    told
}

/// Covers: MP-A1, G8.
#[test]
fn unread_quic_answer_does_not_delay_others_under_loss() {
    let deltas = amount("LOSS_DELTAS", 2000);
    let pairs = amount("LOSS_PAIRS", 1);
    let dir = tempdir().expect("a directory");
    let way = Network::make();
    let nodes = way.threads("nodes");
    let clients = way.threads("clients");
    let pair = Network::pair(dir.path());
    let store = format!("embedded:{}", dir.path().join("data").display());
    let begun = nodes.spawn({
        let dir = dir.path().to_owned();
        let pair = pair.clone();
        async move {
            let (agents, journal) = timed_agents::agents(deltas, PACE).await;
            let node = timed_agents::node(&store, &dir, &pair, &agents.flag("a")).await;
            let key = timed_agents::key(&node).await;
            (agents, journal, node, key)
        }
    });
    let (agents, journal, mut node, key) = nodes.block_on(begun).expect("a node");
    way.rule(timed_agents::rules_for(&node, 1, LOST));
    let door = ClientConfig { trust: Trust::of([&pair]), key, journal, deltas };
    let share = f64::from(LOST) / 10.0;
    figure("network", format!("{share} % of packets lost each way by nftables, no delay but the machine's own"));
    figure("ten answers at a time, each", format!("{deltas} deltas of {PIECE_BYTES} bytes, one each {PACE:?}"));
    figure("counted", "deltas as the agent gave them; the node gathers for up to 20 ms what goes in one message");
    figure("their age", "from when the agent wrote one to when the client had read its last byte");
    let run = |work: Reading| clients.block_on(clients.spawn(work)).expect("it is done");
    let mut ratios = Vec::new();
    let mut slowest = Duration::ZERO;
    for n in 0..pairs {
        // The order alternates, because the machine is warmer for the second run.
        let both = [n % 2 == 1, n % 2 == 0].map(|stalls| {
            let what = if stalls { "one not read" } else { "all read" };
            let ages = run(Box::pin(by_quic(door.clone(), format!("q{n}{}", u8::from(stalls)), stalls)));
            let p99 = told(&format!("QUIC, pair {n}: the nine others, {what}"), ages).p99;
            slowest = slowest.max(if stalls { p99 } else { Duration::ZERO });
            (stalls, p99)
        });
        let of = |which: bool| both.iter().find(|(stalls, _)| *stalls == which).expect("both").1.as_secs_f64();
        ratios.push(of(true) / of(false));
    }
    ratios.sort_by(f64::total_cmp);
    let middle = ratios[ratios.len() / 2];
    figure("QUIC: p99 of the others, one not read / all read, by pairs", format!("{ratios:.2?}, median {middle:.2}"));
    told("WebSocket: all ten, all read", run(Box::pin(by_websocket(door.clone(), "w0".to_owned(), false))));
    let stopped = run(Box::pin(by_websocket(door.clone(), "w1".to_owned(), true)));
    let stopped = told(&format!("WebSocket: all ten, not read for {NOT_READ:?}"), stopped);
    assert!(stopped.most > NOT_READ / 2, "{:?}", stopped.most);
    let lost = way.packets("lost");
    let passed = way.packets("passed");
    figure("packets lost, and not", format!("{lost}, {passed}"));
    // Half of the share, because which packets are lost is left to chance.
    let least = (lost + passed) * u64::from(LOST) / 2000;
    assert!(lost > 0 && lost >= least, "{lost} packets were lost, of {passed} and more at least {least}");
    node.must_run();
    drop(agents);
    assert!(middle <= SLOWER || (pairs < PAIRS_MANY && slowest <= HICCUP), "{ratios:?}, {slowest:?}");
}
