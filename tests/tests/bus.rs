//! The bus between nodes over a real Redis: messages arrive in order, and a node that may have missed some is
//! notified.
//!
//! Covers: S-14, S-44, G8.
use prometheus::{Encoder, Registry, TextEncoder};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::time::timeout;
use turnway::bus::redis::{NodeDurability, NodeState, RedisBus as Bus, RedisBusOptions, inbox_channel};
use turnway::bus::{self, AddressedMessage, Bus as _, BusEvent, BusEventReceiver};
use turnway::clock::Clock;
use turnway::config::redis::RedisUrl;
use turnway::metrics::Metrics;
use turnway::phase::{Lifecycle, NodePhase};
use turnway_core::id::{Epoch, MessageId, NodeId, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::chunk::TextChunk;
use turnway_core::protocol::entry::{FACT_LEVEL, LOWEST_FACT_LEVEL};
use turnway_tests::real::bare::RedisBaseline;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{PATIENCE, figure, quantile, size};
use turnway_wire::peer::PeerMessage;
use turnway_wire::peer::frame::{FramePacker, PeerFrame};

const A: NodeId = NodeId(0xa);
const B: NodeId = NodeId(0xb);

/// A node as the bus sees it: its bus, its receiver and its metrics.
struct Node {
    bus: Bus,
    events: BusEventReceiver,
    registry: Registry,
    life: Lifecycle,
    /// The last reported level of facts.
    fact_level: u32,
}

impl Node {
    async fn join(redis: &Redis, node: NodeId) -> Self {
        Self::join_at(&redis.url(), node).await
    }

    async fn join_at(url: &str, node: NodeId) -> Self {
        let (registry, (event_sender, event_receiver)) = (Registry::new(), bus::event_channel());
        let metrics = Arc::new(Metrics::register(&registry).expect("each family once"));
        let url = RedisUrl::parse(url).expect("a URL");
        let name = "test".to_owned();
        let address = "127.0.0.1:1".to_owned();
        let life = Lifecycle::default();
        let clock = Clock::start();
        let durability = NodeDurability { level: "mem".to_owned(), attested: false };
        let options = RedisBusOptions {
            url,
            node,
            name,
            address,
            events: event_sender,
            metrics,
            clock,
            life: life.clone(),
            durability,
        };
        let bus = Bus::open(options, &Handle::current());
        timeout(PATIENCE, bus.wait_joined()).await.expect("it gets there");
        Self { bus, events: event_receiver, registry, life, fact_level: LOWEST_FACT_LEVEL }
    }

    fn post(&self, words: impl IntoIterator<Item = AddressedMessage>) {
        self.bus.publish(&mut words.into_iter().collect());
    }

    async fn next_event(&mut self) -> BusEvent {
        loop {
            let event = timeout(PATIENCE, self.events.recv()).await.expect("in time").expect("the bus stands");
            if !matches!(event, BusEvent::FactLevel(_)) {
                return event;
            }
        }
    }

    /// Waits for the report of a level of facts. A node takes the lowest level for granted, and does not report it first.
    async fn expect_fact_level(&mut self, level: u32) {
        let reported = async {
            while self.fact_level != level {
                if let BusEvent::FactLevel(level) = self.events.recv().await.expect("the bus stands") {
                    self.fact_level = level;
                }
            }
        };
        timeout(PATIENCE, reported).await.unwrap_or_else(|_| panic!("{}, not {level}", self.fact_level));
    }

    /// Returns the peer messages of the next frame.
    async fn next_messages(&mut self) -> Vec<PeerMessage> {
        match self.next_event().await {
            BusEvent::Frame(PeerFrame { from, messages: words }) => {
                assert_eq!(from, A);
                words
            }
            other @ (BusEvent::NotSubscribed(_) | BusEvent::Gap | BusEvent::Successors(_) | BusEvent::FactLevel(_)) => {
                panic!("{other:?} instead of words")
            }
        }
    }

    /// Returns the value of a metric whose line begins with `name`.
    fn counted(&self, name: &str) -> f64 {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    }
}

async fn two() -> (TempDir, Redis, Node, Node) {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &[]);
    let a = Node::join(&redis, A).await;
    let b = Node::join(&redis, B).await;
    (dir, redis, a, b)
}

fn key() -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") }
}

/// Returns a chunk of an answer, numbered by its offset.
fn piece(offset: u64, text: &str) -> PeerMessage {
    let message = MessageId::parse("m1").expect("a name");
    let run_id = RunId::derive(&key(), &UserId::local(), &message);
    let text = Private(Arc::from(text));
    PeerMessage::Chunk {
        key: key(),
        epoch: Epoch(1),
        chunk: TextChunk { run_id, attempt: 1, offset, kind: TextKind::Text, text },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_one_round_arrive_in_one_frame_in_order() {
    let (_dir, _redis, a, mut b) = two().await;
    let words: Vec<PeerMessage> = (0..100).map(|n| piece(n, "word ")).collect();
    a.post(words.iter().map(|words| (B, words.clone())));
    assert_eq!(b.next_messages().await, words);
    // The message arrives before the sender knows that it was sent.
    timeout(PATIENCE, a.bus.flush()).await.expect("it is out");
    assert_eq!(a.counted("turnway_bus_frames_total{direction=\"out\"}"), 1.0);
    assert_eq!(b.counted("turnway_bus_frames_total{direction=\"in\"}"), 1.0);
    assert_eq!(b.counted("turnway_bus_words_total{direction=\"in\",kind=\"chunk\"}"), 100.0);

    // Rounds without a wait between them may share frames, but keep their order.
    let rounds = 5_000;
    for n in 0..rounds {
        a.post([(B, piece(n, "x"))]);
    }
    let mut next = 0;
    while next < rounds {
        for words in b.next_messages().await {
            assert_eq!(words, piece(next, "x"));
            next += 1;
        }
    }
    timeout(PATIENCE, a.bus.flush()).await.expect("all of it is out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_to_an_absent_node_is_reported_as_undelivered() {
    let (_dir, _redis, mut a, mut b) = two().await;
    a.post([(NodeId(7), PeerMessage::Probe), (B, PeerMessage::Probe), (NodeId(7), PeerMessage::Probe)]);
    assert_eq!(a.next_event().await, BusEvent::NotSubscribed(NodeId(7)));
    assert_eq!(b.next_messages().await, [PeerMessage::Probe]);
    assert_eq!(a.counted("turnway_bus_unheard_total"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_listed_until_they_leave() {
    let (_dir, redis, a, b) = two().await;
    let old = r#"{"name":"x","address":"y","state":"serving","frames":1,"release":"0","seen_ms":1}"#;
    let _: u64 = redis.command(&["HSET", "nodes", &NodeId(9).to_string(), old]);
    let _: u64 = redis.command(&["HSET", "nodes", "of a later release", "{}"]);
    b.life.advance(NodePhase::Draining);
    let told = async {
        loop {
            let nodes = a.bus.nodes().await.expect("it answers");
            let states: Vec<_> = nodes.iter().map(|(node, seen)| (*node, seen.record.state)).collect();
            // A node that publishes a new state also removes expired entries.
            if states == [(A, NodeState::Serving), (B, NodeState::Draining)] {
                return nodes;
            }
            tokio::task::yield_now().await;
        }
    };
    let nodes = timeout(PATIENCE, told).await.expect("in time");
    let b_is = &nodes[&B];
    assert_eq!((b_is.record.name.as_str(), b_is.record.frames, b_is.leased), ("test", 1, false));
    b.post([(A, PeerMessage::Probe)]);
    timeout(PATIENCE, b.bus.leave()).await.expect("it can leave");
    assert_eq!(b.counted("turnway_bus_frames_total{direction=\"out\"}"), 1.0);
    assert_eq!(a.bus.nodes().await.expect("it answers").len(), 1);
}

/// Covers: S-14.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_frames_are_counted_and_dropped() {
    let (_dir, redis, a, mut b) = two().await;
    let publish = |blob: &[u8]| {
        let mut command = redis::cmd("PUBLISH");
        let heard: u64 =
            command.arg(inbox_channel(B)).arg(blob).query(&mut redis.connection()).expect("it is published");
        assert_eq!(heard, 1);
    };
    publish(b"");
    publish(b"TWF\x02\0\0\0\0");
    publish(b"TWF\x01\0\0\0\0");
    publish(b"TWB\x01\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    publish(&[7; 100_000]);
    a.post([(B, PeerMessage::Probe)]);
    assert_eq!(b.next_messages().await, [PeerMessage::Probe]);
    assert_eq!(b.counted("turnway_bus_dropped_total{reason=\"version\"}"), 1.0);
    assert_eq!(b.counted("turnway_bus_dropped_total{reason=\"unreadable\"}"), 3.0);
}

/// Repeats a message to node B until it arrives.
async fn until_delivered(a: &Node, b: &mut Node) {
    let mark = piece(4711, "now");
    let heard = async {
        let mut again = tokio::time::interval(Duration::from_millis(20));
        loop {
            tokio::select! {
                _ = again.tick() => a.post([(B, mark.clone())]),
                heard = b.events.recv() => match heard.expect("the bus stands") {
                    BusEvent::Frame(PeerFrame { messages, .. }) if messages.contains(&mark) => return,
                    BusEvent::Frame(_)
                    | BusEvent::NotSubscribed(_)
                    | BusEvent::Gap
                    | BusEvent::Successors(_)
                    | BusEvent::FactLevel(_) => {}
                }
            }
        }
    };
    timeout(PATIENCE, heard).await.expect("it hears again");
}

/// Reads until the gap, and skips what arrived before it.
async fn until_gap(b: &mut Node) {
    while b.next_event().await != BusEvent::Gap {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_subscription_recovers_with_a_gap() {
    let (_dir, redis, mut a, mut b) = two().await;
    for times in 1..=3 {
        let cut: u64 = redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert_eq!(cut, 2);
        until_gap(&mut b).await;
        until_delivered(&a, &mut b).await;
        assert_eq!(b.counted("turnway_bus_gaps_total{cause=\"broken\"}"), f64::from(times));
        // The other node has recovered too before the next cut.
        until_gap(&mut a).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_restart_is_reported_as_a_gap() {
    let (_dir, mut redis, a, mut b) = two().await;
    redis.kill();
    a.post([(B, PeerMessage::Probe)]);
    timeout(PATIENCE, a.bus.flush()).await.expect("given up at once");
    assert_eq!(a.counted("turnway_bus_dropped_total{reason=\"unsent\"}"), 1.0);
    let back = Instant::now();
    redis.restart();
    until_gap(&mut b).await;
    until_delivered(&a, &mut b).await;
    figure("words arrive after Redis is back", format!("{:?}", back.elapsed()));
}

/// Runs a proxy between a node and its server that redirects every subscription to an unused channel while
/// `swaps` is set.
async fn redirecting_proxy(to: u16, swaps: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", to)).await.expect("the server is there");
            let ((mut says, mut hears), (mut answers, mut asked)) = (client.into_split(), server.into_split());
            let swaps = Arc::clone(&swaps);
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut hears).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(count @ 1..) = says.read(&mut bytes).await {
                    let said = &mut bytes[..count];
                    let subscribe = said.windows(9).position(|word| word == b"SUBSCRIBE");
                    if let Some(at) = subscribe.filter(|_| swaps.load(Ordering::Relaxed)) {
                        let name = said[at..].windows(6).position(|word| word == b"inbox:");
                        said[at + name.expect("one piece")] = b'x';
                    }
                    asked.write_all(&bytes[..count]).await.expect("the server is there");
                }
            });
        }
    });
    port
}

/// Covers a subscription that exists for both sides on a live connection, but delivers nothing: only the
/// node's heartbeat to itself can detect this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_subscription_is_detected_by_heartbeat() {
    let (_dir, redis, mut a, _b) = two().await;
    let node = NodeId(0xc);
    let swaps = Arc::new(AtomicBool::new(true));
    let port = redirecting_proxy(redis.port, Arc::clone(&swaps)).await;
    let mut c = Node::join_at(&format!("redis://127.0.0.1:{port}"), node).await;
    let since = Instant::now();
    a.post([(node, PeerMessage::Probe)]);
    assert_eq!(a.next_event().await, BusEvent::NotSubscribed(node));
    swaps.store(false, Ordering::Relaxed);
    until_gap(&mut c).await;
    let noticed = since.elapsed();
    assert!(c.counted("turnway_bus_gaps_total{cause=\"deaf\"}") >= 1.0);
    a.post([(node, PeerMessage::Probe)]);
    assert_eq!(c.next_messages().await, [PeerMessage::Probe]);
    assert!(
        c.counted("turnway_bus_heartbeat_seconds_count") + c.counted("turnway_bus_gaps_total{cause=\"broken\"}") < 3.0
    );
    figure("a dead subscription is noticed after", format!("{noticed:?}"));
}

/// Drops messages beyond the driver's queue, reports them as a gap, and keeps memory bounded.
///
/// Covers: LN-SR8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbox_overflow_drops_messages_and_reports_a_gap() {
    let (_dir, _redis, a, mut b) = two().await;
    let text = "x".repeat(60_000);
    let mut said = 0;
    while b.counted("turnway_bus_dropped_total{reason=\"inbox\"}") == 0.0 {
        a.post((0..100).map(|n| (B, piece(said + n, &text))));
        said += 100;
        timeout(PATIENCE, a.bus.flush()).await.expect("said");
        assert!(said < 10_000, "nothing is ever lost");
    }
    let mut frames = 0;
    while b.next_event().await != BusEvent::Gap {
        frames += 1;
    }
    assert!(frames > 32 && b.counted("turnway_bus_gaps_total{cause=\"overflow\"}") == 1.0);
    until_delivered(&a, &mut b).await;
}

/// Measures the time from the end of a round at one node to the receiver of another, compared with bare
/// commands, and the throughput.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bus_hop_latency_and_throughput_are_measured() {
    let (_dir, redis, a, mut b) = two().await;
    let text = "a piece of an answer, as long as most of them are ".repeat(3);
    let mut hops = Vec::new();
    for n in 0..size("BUS_HOPS", 2_000) as u64 {
        let said = Instant::now();
        let words = piece(n, &text);
        a.post([(B, words.clone())]);
        assert_eq!(b.next_messages().await, [words]);
        hops.push(said.elapsed());
    }
    let bytes = frame(&piece(1, &text));
    let mut raw = RedisBaseline::open(&redis).await;
    let mut bare = Vec::new();
    for _ in 0..hops.len() {
        bare.push(raw.hop(&bytes).await);
    }
    for (name, hops) in [("hop over the bus", &mut hops), ("bare PUBLISH to message", &mut bare)] {
        let half = quantile(hops, 0.5);
        let most = quantile(hops, 0.99);
        figure(&format!("{name}, {} bytes, p50 / p99", bytes.len()), format!("{half:?} / {most:?}"));
    }
    let count = size("BUS_DELTAS", 100_000);
    let flood = raw.flood(&bytes, count).await;
    figure("bare PUBLISH of each delta, pipelined, a second", format!("{flood:.0}"));
    for batch in [1, 20, 200] {
        let count = count as u64;
        let since = Instant::now();
        let mut heard = 0;
        for round in 0..count / batch {
            a.post((0..batch).map(|n| (B, piece(round * batch + n, &text))));
            // Stays at most as far ahead of the reader as nodes do.
            while heard + 20_000 < round * batch {
                heard += b.next_messages().await.len() as u64;
            }
        }
        while heard < count {
            heard += b.next_messages().await.len() as u64;
        }
        let rate = heard as f64 / since.elapsed().as_secs_f64();
        let times = rate / flood;
        figure(&format!("deltas a second, {batch} a round"), format!("{rate:.0}, {times:.2} × the bare ones"));
    }
    assert_eq!(b.counted("turnway_bus_dropped_total{reason=\"inbox\"}"), 0.0);
}

fn frame(words: &PeerMessage) -> Vec<u8> {
    let mut packer = FramePacker::new(A);
    packer.add(words.clone());
    packer.finish().0.remove(0)
}

/// Adds a node to the list of nodes, with a record like that of another except for these fields.
fn listed(redis: &Redis, like: NodeId, node: NodeId, more: &Value) {
    let record: String = redis.command(&["HGET", "nodes", &like.to_string()]);
    let mut record: Value = serde_json::from_str(&record).expect("a record");
    for (field, value) in more.as_object().expect("fields") {
        record[field] = value.clone();
    }
    let _: redis::Value = redis.command(&["HSET", "nodes", &node.to_string(), &record.to_string()]);
}

/// Ignores the record of a node that was killed, though the record still says `serving`.
///
/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_node_gets_only_live_successors() {
    let (_dir, redis, mut a, b) = two().await;
    let dead = NodeId(0xd);
    listed(&redis, B, dead, &json!({}));
    let _: redis::Value = redis.command(&["HSET", &format!("node:{{{B}}}"), "1", "9999999999999"]);
    a.life.advance(NodePhase::Draining);
    match a.next_event().await {
        BusEvent::Successors(successors) => assert_eq!(successors, BTreeSet::from([B])),
        other @ (BusEvent::Frame(_) | BusEvent::NotSubscribed(_) | BusEvent::Gap | BusEvent::FactLevel(_)) => {
            panic!("{other:?} instead of successors")
        }
    }
    drop(b);
}

/// A record with a lease counts, whatever else it has; a lease without a record counts as the lowest level.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fact_level_is_the_lowest_of_the_live_nodes() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &[]);
    let lease = |node: NodeId| {
        let _: redis::Value = redis.command(&["HSET", &format!("node:{{{node}}}"), "1", "9999999999999"]);
    };
    let record = |node: NodeId, text: &str| {
        let _: redis::Value = redis.command(&["HSET", "nodes", &node.to_string(), text]);
    };
    let dead = NodeId(0xd);
    record(dead, r#"{"facts":0}"#);
    let mut a = Node::join(&redis, A).await;
    a.expect_fact_level(FACT_LEVEL).await;
    let other = NodeId(0xe);
    record(other, r#"{"facts":0}"#);
    lease(other);
    let mut b = Node::join(&redis, B).await;
    b.expect_fact_level(0).await;
    record(other, &format!(r#"{{"facts":{}}}"#, FACT_LEVEL + 1));
    let _: redis::Value = redis.command(&["HDEL", "nodes", &dead.to_string()]);
    let _: redis::Value = redis.command(&["HSET", "lives", &format!("{dead}:{:032x}", 1), "1"]);
    lease(dead);
    a.life.advance(NodePhase::Draining);
    a.expect_fact_level(LOWEST_FACT_LEVEL).await;
}

/// Covers: G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_nodes_are_removed_from_the_list() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &[]);
    let a = Node::join(&redis, A).await;
    let old = NodeId(0xd);
    let young = NodeId(0xe);
    listed(&redis, A, old, &json!({"seen_ms": 1}));
    listed(&redis, A, young, &json!({}));
    let _b = Node::join(&redis, B).await;
    let begun = Instant::now();
    let mut again = tokio::time::interval(Duration::from_millis(20));
    loop {
        let nodes = a.bus.nodes().await.expect("the list");
        assert!(nodes.contains_key(&young) && nodes.contains_key(&A), "{nodes:?}");
        if !nodes.contains_key(&old) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it stays");
        again.tick().await;
    }
}
