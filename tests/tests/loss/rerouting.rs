//! Clients whose NAT mapping changes in mid-answer, or that are routed to another node, without notice.
use crate::network::Network;
use crate::timed_agents::{self, Journal, PIECE_BYTES, whole};
use quinn::{Endpoint, TransportConfig};
use serde_json::json;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use turnway_client::{Client, Done, Event, Options, UserInput};
use turnway_tests::real::agent::Agents;
use turnway_tests::real::node::Node;
use turnway_tests::real::quic::{QuicConnection, config, take};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::tls::{Pair, Trust};
use turnway_tests::real::wire::invoke;
use turnway_tests::real::{PATIENCE, figure, http};

/// Maximum time until a client receives more of its answer.
const WITHIN: Duration = Duration::from_secs(2);
/// Number of pieces of an answer, which lasts 8 s.
const PIECES: usize = 400;
const PACE: Duration = Duration::from_millis(20);
/// Number of times that the router forgets its mappings.
const MOVES: usize = 3;
/// Time in which another node would have answered.
const NOTHING_FOR: Duration = Duration::from_secs(1);

/// Nodes on one Redis, their agents, and a user's key.
struct Fleet {
    nodes: Vec<Node>,
    journal: Journal,
    key: String,
    _redis: Redis,
    _agents: Agents,
}

impl Fleet {
    async fn start(dir: &Path, pair: &Pair, count: usize) -> Self {
        let redis = Redis::start(&dir.join("redis"), &[]);
        let (agents, journal) = timed_agents::agents(PIECES, PACE).await;
        let mut nodes = Vec::new();
        for n in 0..count {
            let own = dir.join(format!("n{n}"));
            std::fs::create_dir(&own).expect("a directory");
            let agent = agents.flag("a") + ",on_owner_loss=retry";
            nodes.push(timed_agents::node(&redis.url(), &own, pair, &agent).await);
        }
        let key = timed_agents::key(&nodes[0]).await;
        Self { nodes, journal, key, _redis: redis, _agents: agents }
    }
}

/// A fleet in its namespace, and a runtime for the clients in theirs.
struct Fixture {
    fleet: Fleet,
    pair: Pair,
    clients: Runtime,
    nodes: Runtime,
    way: Network,
    _dir: TempDir,
}

impl Fixture {
    fn set(count: usize) -> Self {
        let dir = tempdir().expect("a directory");
        let way = Network::make();
        let nodes = way.threads("nodes");
        let clients = way.threads("clients");
        let pair = Network::pair(dir.path());
        let begun = nodes.spawn({
            let dir = dir.path().to_owned();
            let pair = pair.clone();
            async move { Fleet::start(&dir, &pair, count).await }
        });
        let fleet = nodes.block_on(begun).expect("a fleet");
        way.rule(timed_agents::rules_for(&fleet.nodes[0], 1, 0));
        Self { fleet, pair, clients, nodes, way, _dir: dir }
    }

    fn options(&self) -> Options {
        let mut options = Options::new(format!("quic://{}", Network::quic()))
            .ca(std::fs::read(&self.pair.cert).expect("a certificate"));
        options.api_key = Some(self.fleet.key.clone());
        options
    }

    /// Returns the value of a node's metric.
    fn sample(&self, node: usize, name: &'static str) -> f64 {
        let admin = self.fleet.nodes[node].admin;
        let text = self.nodes.spawn(async move { http::get(admin, "/metrics").await.expect("it answers").1 });
        let text = self.nodes.block_on(text).expect("asked");
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
        line.trim().parse().expect("a number")
    }

    /// Starts a client and returns the events of its answer in this session.
    fn listen(&self, session: &'static str) -> mpsc::UnboundedReceiver<(Instant, Event)> {
        let (tell, told) = mpsc::unbounded_channel();
        let options = self.options();
        self.clients.spawn(async move {
            let mut client = Client::connect(options).await.expect("it connects");
            client.session(session).invoke(UserInput::text("go")).await.expect("said");
            loop {
                let event = timeout(PATIENCE, client.next_event()).await.expect("in time").expect("it goes on");
                let is_last = matches!(event, Event::Done(_));
                if tell.send((Instant::now(), event)).is_err() || is_last {
                    return client.close().await;
                }
            }
        });
        told
    }
}

/// Events that a client has received so far.
struct Listener {
    events: mpsc::UnboundedReceiver<(Instant, Event)>,
    session: &'static str,
    text: String,
    /// Nodes to which the client was connected.
    nodes: Vec<String>,
    done: Option<Box<Done>>,
}

impl Listener {
    fn new(scene: &Fixture, session: &'static str) -> Self {
        Self { events: scene.listen(session), session, text: String::new(), nodes: Vec::new(), done: None }
    }

    /// Reads until this many bytes of the answer have arrived, and returns the time of arrival.
    fn read(&mut self, bytes: usize) -> Instant {
        loop {
            let (at, event) = self.events.blocking_recv().expect("it goes on");
            if let Event::Text { text, .. } = event {
                self.text.push_str(&text);
            } else if let Event::Connected { node_id, .. } = event {
                self.nodes.push(node_id);
            } else if let Event::Done(done) = event {
                self.done = Some(done);
            }
            if self.text.len() >= bytes || self.done.is_some() {
                return at;
            }
        }
    }

    /// Reads until text arrives that was sent after this call, and returns the time since `moved`.
    fn goes_on(&mut self, journal: &Journal, moved: Instant) -> Duration {
        let said = journal.of(self.session);
        let now = journal.now();
        loop {
            let at = self.read(self.text.len() + 1);
            let last = self.text.len() / PIECE_BYTES;
            if last > 0 && said[last - 1].load(Ordering::Relaxed) > now {
                return at - moved;
            }
            assert!(self.done.is_none(), "it was over too soon");
        }
    }

    fn finish(&mut self) {
        while self.done.is_none() {
            self.read(usize::MAX);
        }
        let done = self.done.as_ref().expect("it is done");
        let whole = whole(self.session, PIECES);
        assert!(done.complete && done.text == whole && self.text == whole, "{} bytes", self.text.len());
    }
}

/// Changes the client's port: the router drops its mapping and creates another one at the client's next
/// packet.
///
/// Covers: S-24.
#[test]
fn answer_continues_after_a_nat_rebinding() {
    let scene = Fixture::set(1);
    let mut listener = Listener::new(&scene, "s1");
    listener.read(20 * PIECE_BYTES);
    let mut slowest = Duration::ZERO;
    for n in 0..MOVES {
        scene.way.rule(timed_agents::rules_for(&scene.fleet.nodes[0], 2 + u16::try_from(n).expect("few"), 0));
        slowest = slowest.max(listener.goes_on(&scene.fleet.journal, Instant::now()));
        listener.read(listener.text.len() + 20 * PIECE_BYTES);
    }
    listener.finish();
    figure("another port in mid-answer: more of it after at most", format!("{} ms, of {MOVES}", slowest.as_millis()));
    figure("another port in mid-answer: connections it took", listener.nodes.len());
    assert!(slowest < WITHIN, "{slowest:?}");
}

/// Covers: S-24.
#[test]
fn packets_routed_to_another_node_get_no_answer() {
    let scene = Fixture::set(2);
    let trust = Trust::of([&scene.pair]);
    let key = scene.fleet.key.clone();
    let opened = scene.clients.spawn(async move {
        let end = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into()).expect("a port");
        let line =
            QuicConnection::open_from(&end, Network::quic(), config(&trust, b"turnway/1", TransportConfig::default()))
                .await;
        let hello = json!({"type": "hello", "api_key": key});
        let mut line = line.expect("it connects").greet_with(hello).await.expect("welcome");
        line.ask("m1", invoke("s1", "a", "go")).await.expect("accepted");
        let mut lane = line.accept_text_stream().await.expect("a stream");
        let mut text = String::new();
        take(&mut text, &lane.next().await.expect("text").expect("text"));
        line
    });
    let mut line = scene.clients.block_on(opened).expect("it is open");
    scene.way.rule(timed_agents::rules_for(&scene.fleet.nodes[1], 2, 0));
    let silent = scene.clients.spawn(async move {
        let before = line.connection.stats().udp_tx.datagrams;
        for n in 0..10 {
            line.say(&json!({"type": "ping", "request_id": format!("p{n}")})).await.expect("said");
        }
        let closed = timeout(NOTHING_FOR, line.connection.closed()).await;
        assert!(closed.is_err(), "{closed:?}");
        line.connection.stats().udp_tx.datagrams - before
    });
    let sent = scene.clients.block_on(silent).expect("it waits");
    // The counter shows that the packets reached the other node.
    assert!(sent > 0 && scene.way.packets("passed") >= sent, "{sent}");
    assert_eq!(scene.way.packets("from_quic"), 0, "it says nothing, not even that");
    assert_eq!(scene.sample(1, "turnway_link_connections{transport=\"quic\"} "), 0.0);
}

/// Covers: S-24, G5.
#[test]
fn client_routed_to_another_node_resumes_there() {
    let scene = Fixture::set(2);
    let mut listener = Listener::new(&scene, "s1");
    listener.read(20 * PIECE_BYTES);
    let mut slowest = Duration::ZERO;
    for n in 0..MOVES {
        scene.way.rule(timed_agents::rules_for(&scene.fleet.nodes[(n + 1) % 2], 2 + u16::try_from(n).expect("few"), 0));
        slowest = slowest.max(listener.goes_on(&scene.fleet.journal, Instant::now()));
        listener.read(listener.text.len() + 20 * PIECE_BYTES);
    }
    listener.finish();
    let [first, second] = [&scene.fleet.nodes[0].id, &scene.fleet.nodes[1].id];
    listener.nodes.dedup();
    assert_eq!(listener.nodes, [first, second, first, second].map(Clone::clone));
    figure("another node in mid-answer: more of it after at most", format!("{} ms, of {MOVES}", slowest.as_millis()));
    assert!(slowest < WITHIN, "{slowest:?}");
}
