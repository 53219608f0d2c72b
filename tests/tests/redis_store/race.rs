//! Tests concurrent requests of nodes that may die: in whichever order the keys of a session and its registration
//! are written, a sweep finds every session without a live owner.
use crate::store_client::{accept, holder, key};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::tempdir;
use turnway::config::Durability;
use turnway::config::redis::RedisUrl;
use turnway::store::Store;
use turnway::store::embedded::ClockFn;
use turnway::store::redis::{RedisStore, RedisStoreOptions};
use turnway_core::id::{
    Epoch, FenceToken, Holder, InboxPosition, ListenersVersion, Nonce, OwnershipSnapshot, RunId, Seq, SessionKey,
};
use turnway_core::rng::Rng;
use turnway_core::store::{Append, Op, Reply, StoreError};
use turnway_core::time::{Mono, Now};
use turnway_simulator::script::START_TIME;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{PATIENCE, figure, size};

const NODES: usize = 3;
/// Sessions in use at a time. Each round adds a new session, because a session with many requests is in many
/// indexes.
const SESSIONS: u64 = 8;
const ROUNDS: usize = 40;
/// Operations of one node in flight.
const ABREAST: usize = 6;
/// Lease duration, longer than a round; a node that is to die gives its lease up.
const LEASE: Duration = Duration::from_secs(200);

type Answers = Receiver<(Op, Result<Reply, StoreError>)>;

struct Node {
    store: RedisStore,
    answers: Answers,
    life: Holder,
}

/// A node's knowledge of a session, correct or stale.
#[derive(Default)]
struct Known {
    seen: OwnershipSnapshot,
    token: FenceToken,
    open: Vec<(InboxPosition, RunId)>,
}

struct World {
    url: RedisUrl,
    rng: Rng,
    now: Arc<Mutex<Now>>,
    known: BTreeMap<SessionKey, Known>,
    count: u128,
    round: u64,
}

impl World {
    async fn node(&mut self, n: usize) -> Node {
        let (now, (sender, answers)) = (Arc::clone(&self.now), channel());
        let clock: ClockFn = Arc::new(move || *now.lock().expect("a clock"));
        let options =
            RedisStoreOptions { durability: Durability::Mem, clock: Some(clock), ..RedisStoreOptions::default() };
        // The last answers may come after the end.
        let sink = Arc::new(move |op, result| drop(sender.send((op, result))));
        let store = RedisStore::open(self.url.clone(), options, sink).await.expect("a store");
        let mut node = Node { store, answers, life: Holder::default() };
        self.live(&mut node, n);
        node
    }

    /// Starts a new life of a node, with a new lease.
    fn live(&mut self, node: &mut Node, n: usize) {
        self.count += 1;
        node.life = holder(n as u128 + 1, self.count);
        let renew = Op::Renew { holder: node.life, ttl: LEASE, fresh: true, sent: Mono::default() };
        assert!(matches!(node.ask(renew), Ok(Reply::Renewed { .. })));
    }

    fn op(&mut self, me: Holder, others: &[Holder]) -> Op {
        self.count += 1;
        let name = format!("s{}", self.round + self.rng.below(SESSIONS));
        let nonce = Nonce(self.count);
        let key = key(&name);
        let pick = self.rng.below(10);
        let known = self.known.entry(key.clone()).or_default();
        let token = known.token;
        let tail = Seq(0);
        match pick {
            0..3 => accept(&name, &format!("m{}", self.count)),
            3..6 => Op::Claim { key, holder: me, nonce, expect: known.seen, floor: Epoch(0) },
            6 => Op::Append(Box::new(Append {
                key,
                token,
                after: tail,
                facts: Vec::new(),
                ends: std::mem::take(&mut known.open),
                answers: Vec::new(),
                closed: None,
                annotations: Vec::new(),
                known_listeners: ListenersVersion(0),
            })),
            7 => Op::Release { key, token, tail, drain: self.rng.chance(40) },
            8 => {
                let to = others[self.rng.below(others.len() as u64) as usize];
                Op::Transfer { key, token, tail, to, nonce }
            }
            _ => Op::Sweep { limit: 4 },
        }
    }

    fn learn(&mut self, op: &Op, reply: Reply) {
        let Some(known) = op.key().map(|key| self.known.entry(key.clone()).or_default()) else { return };
        match (op, reply) {
            (Op::Accept { input, .. }, Reply::Accepted(accepted)) => {
                known.seen = accepted.owner;
                known.open.push((accepted.position, input.run_id.clone()));
            }
            (Op::Claim { holder, .. }, Reply::Claimed(claimed)) => {
                known.token = claimed.token;
                known.seen = OwnershipSnapshot { holder: Some(*holder), epoch: claimed.token.epoch };
            }
            (_, Reply::OwnershipConflict { owner }) => known.seen = owner,
            (Op::Transfer { to, .. }, Reply::Transferred { token }) => {
                known.token = token;
                known.seen = OwnershipSnapshot { holder: Some(*to), epoch: token.epoch };
            }
            (_, Reply::Released) => known.seen.holder = None,
            _ => {}
        }
    }

    fn pass(&mut self) {
        let wait = match self.rng.below(10) {
            0 => 61_000,
            1 => 20_000,
            _ => self.rng.below(500),
        };
        let mut now = self.now.lock().expect("a clock");
        now.store = now.store.after(Duration::from_millis(wait));
    }

    async fn run(&mut self) {
        let mut nodes = Vec::new();
        for n in 0..NODES {
            nodes.push(self.node(n).await);
        }
        for _ in 0..ROUNDS {
            let lives: Vec<Holder> = nodes.iter().map(|node| node.life).collect();
            for node in &nodes {
                (0..ABREAST).for_each(|_| node.store.submit(self.op(node.life, &lives)));
            }
            for node in &nodes {
                for _ in 0..ABREAST {
                    let (op, reply) = node.answers.recv_timeout(PATIENCE).expect("an answer");
                    self.learn(&op, reply.unwrap_or_else(|error| panic!("{op:?}: {error:?}")));
                }
            }
            self.pass();
            self.round += 1;
            for (n, node) in nodes.iter_mut().enumerate() {
                let renew = Op::Renew { holder: node.life, ttl: LEASE, fresh: false, sent: Mono::default() };
                assert!(matches!(node.ask(renew), Ok(Reply::Renewed { .. })));
                if self.rng.chance(5) {
                    assert_eq!(node.ask(Op::Retire { holder: node.life }), Ok(Reply::Done));
                    self.live(node, n);
                }
            }
        }
        for node in &nodes {
            assert_eq!(node.ask(Op::Retire { holder: node.life }), Ok(Reply::Done));
        }
    }
}

impl Node {
    fn ask(&self, op: Op) -> Result<Reply, StoreError> {
        self.store.submit(op);
        self.answers.recv_timeout(PATIENCE).expect("an answer").1
    }
}

/// Returns the sessions without a live owner, by the stored keys.
fn left(server: &Redis) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for own in server.command::<Vec<String>>(&["KEYS", "own:*"]) {
        let holder: Option<String> = server.command(&["HGET", &own, "n"]);
        let lanes = ["in:", "ctl:"].map(|lane| own.replacen("own:", lane, 1));
        let open = lanes.iter().any(|lane| server.command::<u64>(&["XLEN", lane]) > 0);
        if holder.is_some_and(|holder| !holder.is_empty()) || open {
            left.insert(own.trim_start_matches("own:{default/").trim_end_matches('}').to_owned());
        }
    }
    left
}

/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_finds_all_sessions_left_by_concurrent_requests() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut found = 0;
    for seed in 1..=size("REDIS_RACES", 20) as u64 {
        let _: String = server.command(&["FLUSHALL"]);
        let url = RedisUrl::parse(&server.url()).expect("a URL");
        let now = Arc::new(Mutex::new(START_TIME));
        let rng = Rng::from_number(seed);
        let mut world = World { url, rng, now, known: BTreeMap::new(), count: 0, round: 0 };
        world.run().await;
        // The indexes must suffice: without this key the sweep cannot walk through all sessions.
        let _: u64 = server.command(&["DEL", "tenants"]);
        let left = left(&server);
        let survivor = world.node(NODES).await;
        let Ok(Reply::Unowned { sessions }) = survivor.ask(Op::Sweep { limit: 100 }) else { panic!("{seed}") };
        let swept: BTreeSet<String> = sessions.iter().map(|(key, _)| key.session.to_string()).collect();
        assert_eq!(swept, left, "seed {seed}");
        found += swept.len();
    }
    figure("sessions left by races, all found", found);
    assert!(found > 0);
}
