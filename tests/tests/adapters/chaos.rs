//! Deliveries while replies are lost, platforms refuse, adapters vanish, nodes are killed and Redis goes away. The verdict
//! comes from the platform's own journal.
use super::{TestAdapter, recorded};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{Instant, interval, timeout};
use turnway_core::rng::Rng;
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::{PATIENCE, figure, size};

/// Messages of one room, unless there would be less than [`ROOMS_MIN`] rooms: the answers of a room wait for each other.
const ROOM_MESSAGES: usize = 12;
const ROOMS_MIN: usize = 32;
/// Messages that wait for their acceptance at a time.
const OPEN_MAX: usize = 32;
/// Messages for each further second that the answers may take.
const MESSAGES_PER_SECOND: u64 = 20;

/// Maximum reads and writes of values in the store for each message and each second, by both nodes.
const VALUE_OPS_MAX: u64 = 40;
const VALUE_OPS: [&str; 2] = [
    r#"turnway_store_ops_total{op="get",outcome="answered"}"#,
    r#"turnway_store_ops_total{op="put",outcome="answered"}"#,
];

/// A platform: what it was sent, in order.
#[derive(Clone, Default)]
struct Platform(Arc<Mutex<PlatformState>>);

#[derive(Default)]
struct PlatformState {
    /// Lines by key; a platform without keys gives each line another name.
    lines: BTreeMap<String, Value>,
    /// Answered messages, as often as they were answered.
    answers: BTreeMap<String, usize>,
}

impl Platform {
    /// Adds a line, unless the platform recognises its key. Returns its id.
    fn add(&self, part: &Value, has_keys: bool) -> String {
        let mut state = self.0.lock().expect("the platform");
        let key = part["key"].as_str().expect("a key").to_owned();
        let name = if has_keys { key } else { format!("{key}/{}", state.lines.len()) };
        if !state.lines.contains_key(&name) {
            let answered = part["reply_to"].as_str().expect("a message").to_owned();
            *state.answers.entry(answered).or_default() += 1;
            state.lines.insert(name.clone(), part.clone());
        }
        name
    }

    /// Checks that each line is in the room of the message that it answers.
    fn assert_places(&self, messages: &BTreeMap<String, String>) {
        for line in self.0.lock().expect("the platform").lines.values() {
            let answered = line["reply_to"].as_str().expect("a message");
            let room = messages.get(answered).expect("a message of this account");
            assert_eq!(line["conversation"]["conversation_id"], room.as_str(), "at its place: {line}");
        }
    }

    fn answered(&self) -> BTreeMap<String, usize> {
        self.0.lock().expect("the platform").answers.clone()
    }
}

/// An account with its adapter, which connects again and again.
struct Account {
    name: &'static str,
    has_keys: bool,
    platform: Platform,
    /// Messages that are to be accepted, by id, with their rooms.
    messages: BTreeMap<String, String>,
    sessions: Arc<Mutex<BTreeSet<String>>>,
    rng: Rng,
}

fn room_of(n: usize, count: usize) -> String {
    format!("room-{}", n % (count / ROOM_MESSAGES).max(ROOMS_MIN))
}

impl Account {
    fn new(name: &'static str, has_keys: bool, count: usize, seed: u64) -> Self {
        let messages = (0..count).map(|n| (format!("{name}-{n:05}"), room_of(n, count))).collect();
        let platform = Platform::default();
        Self { name, has_keys, platform, messages, sessions: Arc::default(), rng: Rng::from_number(seed) }
    }

    /// Brings all messages, and answers orders until nobody needs the adapter any more.
    async fn run(mut self, nodes: Vec<std::net::SocketAddr>) {
        let mut open = self.messages.clone();
        let mut connections = interval(Duration::from_millis(100));
        loop {
            connections.tick().await;
            let node = nodes[self.rng.below(nodes.len() as u64) as usize];
            if let Some(adapter) =
                TestAdapter::try_connect(node, self.name, json!({"key": 2 * i8::from(self.has_keys)})).await
            {
                self.serve(adapter, &mut open).await;
            }
        }
    }

    /// Serves one connection until it ends or the adapter vanishes.
    async fn serve(&mut self, mut adapter: TestAdapter, open: &mut BTreeMap<String, String>) {
        let mut asked: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            let now = Instant::now();
            asked.retain(|_, at| now - *at < Duration::from_secs(3));
            let next: Vec<(String, String)> = open
                .iter()
                .filter(|(id, _)| !asked.contains_key(*id))
                .take(OPEN_MAX.saturating_sub(asked.len()))
                .map(|(id, room)| (id.clone(), room.clone()))
                .collect();
            for (id, room) in next {
                asked.insert(id.clone(), now);
                if adapter.client.say(adapter.message(&room, &id, "hello")).await.is_err() {
                    return;
                }
            }
            let Ok(message) = timeout(Duration::from_millis(200), adapter.client.next()).await else { continue };
            let Ok(message) = message else { return };
            match message["type"].as_str() {
                Some("inbound_accepted") => {
                    open.remove(message["request_id"].as_str().expect("the message's id"));
                    let session = message["session_id"].as_str().expect("a session").to_owned();
                    self.sessions.lock().expect("sessions").insert(session);
                }
                Some("deliver") if self.answer(&mut adapter, &message).await.is_err() => return,
                _ => {}
            }
        }
    }

    /// Sends a part to the platform and reports on it, as a bad day has it. Fails if the adapter vanishes. The day is good
    /// from the fourth attempt on: each attempt waits twice as long as the one before.
    async fn answer(&mut self, adapter: &mut TestAdapter, part: &Value) -> Result<(), ()> {
        let is_bad_day = part["attempt"].as_u64().expect("an attempt") < 4;
        match if is_bad_day { self.rng.below(100) } else { 100 } {
            // The platform's reply is lost.
            0..25 => {
                self.platform.add(part, self.has_keys);
                adapter.report(part, json!({"outcome": "unknown"})).await;
            }
            // The adapter dies after the platform has the part.
            25..27 => {
                self.platform.add(part, self.has_keys);
                return Err(());
            }
            // The adapter dies before.
            27 => return Err(()),
            28..38 => adapter.report(part, json!({"outcome": "rejected", "code": "transient"})).await,
            38..43 => {
                adapter.report(part, json!({"outcome": "rejected", "code": "rate_limit", "retry_after_ms": 700})).await;
            }
            43..48 => adapter.report(part, json!({"outcome": "not_sent", "proof": "refused"})).await,
            _ => {
                let id = self.platform.add(part, self.has_keys);
                adapter.confirm(part, &id).await;
            }
        }
        Ok(())
    }
}

/// Returns the number of held deliveries in the logs of some sessions.
async fn held(node: &Node, sessions: &BTreeSet<String>) -> usize {
    let mut held = 0;
    for session in sessions {
        held += recorded(node, session).await.iter().filter(|fact| fact.starts_with("delivery.held")).count();
    }
    held
}

/// Returns how often a node has read and written values in the store since it has started: most of them are those of the
/// accounts.
async fn value_ops(node: &Node) -> u64 {
    let (_, page) = get(node.admin, "/metrics").await.expect("metrics");
    let is_one = |line: &&str| VALUE_OPS.iter().any(|name| line.starts_with(name));
    page.lines()
        .filter(is_one)
        .map(|line| line.rsplit(' ').next().expect("a number").parse::<u64>().expect("a number"))
        .sum()
}

/// Checks that the nodes have not read and written the values of accounts again and again.
async fn assert_few_value_ops(nodes: &[Node], work: u64) {
    let ops = value_ops(&nodes[0]).await + value_ops(&nodes[1]).await;
    figure("reads and writes of values in the store since the last restarts", ops.to_string());
    assert!(ops <= VALUE_OPS_MAX * work, "{ops}");
}

/// Checks that each line of a platform was requested in the log of a session of its account, with its place and its text.
async fn assert_requested(node: &Node, sessions: &BTreeSet<String>, platform: &Platform) {
    assert!(!sessions.is_empty());
    let mut requested = BTreeMap::new();
    for session in sessions {
        let path = format!("/v1/sessions/{session}/events?types=delivery.requested&limit=500");
        let page = Web::new(node.http, None).json(&path).await;
        for event in page["events"].as_array().expect("events") {
            let data = event["data"].clone();
            requested.insert(data["delivery_id"].as_str().expect("an id").to_owned(), data);
        }
    }
    for line in platform.0.lock().expect("the platform").lines.values() {
        let data = requested.get(line["delivery_id"].as_str().expect("an id")).expect("a delivery of the account");
        let part = line["part"].as_u64().expect("a part") as usize - 1;
        assert_eq!((&data["conversation"], &data["parts"][part]), (&line["conversation"], &line["text"]));
    }
}

/// Covers: BD-C1, BD-C2, BD-C3, BD-C5, BD-C7, BD-Q1, BD-Q7, BD-S9, BD-S10, BR-12, BR-39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_arrive_once_while_everything_fails() {
    let count = size("ADAPTER_MESSAGES", 400);
    let seed = size("ADAPTER_SEED", 1) as u64;
    let bad_days = Duration::from_secs(size("ADAPTER_FAULT_SECONDS", 15) as u64);
    let dirs = [tempdir().expect("a directory"), tempdir().expect("a directory"), tempdir().expect("a directory")];
    let mut redis = Redis::start(dirs[2].path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let mut nodes = Vec::new();
    for dir in &dirs[..2] {
        nodes.push(Node::start_on(&redis.url(), dir.path(), &["--demo"]).await);
    }
    let addresses: Vec<_> = nodes.iter().map(|node| node.http).collect();
    let accounts = [Account::new("keyed", true, count, seed), Account::new("plain", false, count / 4, seed + 1)];
    let watched = accounts.each_ref().map(|it| (it.platform.clone(), it.messages.clone(), Arc::clone(&it.sessions)));
    let adapters = accounts.map(|account| tokio::spawn(account.run(addresses.clone())));
    let begun = Instant::now();
    let mut rng = Rng::from_number(seed + 2);
    let mut kills = 0;
    let mut outages = 0;
    let [(keyed, keyed_messages, keyed_sessions), (plain, plain_messages, plain_sessions)] = watched;
    let mut looks = interval(Duration::from_millis(500));
    let settled = async {
        loop {
            looks.tick().await;
            let is_bad_day = begun.elapsed() < bad_days;
            match rng.below(100) {
                0..12 if is_bad_day => {
                    redis.kill();
                    looks.tick().await;
                    redis.restart();
                    outages += 1;
                }
                12..50 if is_bad_day => {
                    nodes[rng.below(2) as usize].kill_and_restart().await;
                    kills += 1;
                }
                _ if is_bad_day => {}
                _ => {
                    let sessions = plain_sessions.lock().expect("sessions").clone();
                    let missing = plain_messages.len() - plain.answered().len();
                    if keyed.answered().len() == keyed_messages.len() && held(&nodes[0], &sessions).await >= missing {
                        return;
                    }
                }
            }
        }
    };
    let patience = bad_days + 4 * PATIENCE + Duration::from_secs(count as u64 / MESSAGES_PER_SECOND);
    let in_time = timeout(patience, settled).await.is_ok();
    let sessions = plain_sessions.lock().expect("sessions").clone();
    let was_held = held(&nodes[0], &sessions).await;
    adapters.iter().for_each(|adapter| assert!(!adapter.is_finished(), "the adapter runs"));
    adapters.iter().for_each(tokio::task::JoinHandle::abort);
    let answers = [keyed.answered(), plain.answered()];
    figure("messages, kills of nodes, kills of Redis", format!("{count}+{}, {kills}, {outages}", plain_messages.len()));
    figure("answered with keys, without keys, held", format!("{} {} {was_held}", answers[0].len(), answers[1].len()));
    figure("until all were answered or held", format!("{:.1?}", begun.elapsed()));
    assert!(in_time, "answered {} of {count}; without keys {} and {was_held} held", answers[0].len(), answers[1].len());
    assert!(kills > 3 && outages > 0, "{kills} {outages}");
    assert_few_value_ops(&nodes, count as u64 + begun.elapsed().as_secs()).await;
    for (answers, messages) in answers.iter().zip([&keyed_messages, &plain_messages]) {
        assert!(answers.values().all(|times| *times == 1), "answered twice: {answers:?}");
        assert!(answers.keys().all(|id| messages.contains_key(id)), "nobody asked");
    }
    keyed.assert_places(&keyed_messages);
    plain.assert_places(&plain_messages);
    let keyed_sessions = keyed_sessions.lock().expect("sessions").clone();
    for (sessions, platform) in [(&keyed_sessions, &keyed), (&sessions, &plain)] {
        assert_requested(&nodes[0], sessions, platform).await;
    }
}
