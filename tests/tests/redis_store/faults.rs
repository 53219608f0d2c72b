//! Tests lost messages and server crashes: answered requests persist, and unanswered ones can be repeated without
//! harm.
use crate::proxy::{Loss, Proxy};
use crate::store_client::{StoreClient, holder};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::tempdir;
use turnway::config::Durability;
use turnway::store::Store;
use turnway::store::redis::RedisStoreOptions;
use turnway_core::id::{InboxPosition, Seq};
use turnway_core::store::{ModelStore, Op, Reply};
use turnway_core::time::Now;
use turnway_simulator::script::{START_TIME, Script, lists};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{figure, size};

const OPS: usize = 120;

/// A store that suffers faults, and a model of it that suffers none.
struct Pair {
    client: StoreClient,
    script: Script,
    model: ModelStore,
    clock: Arc<Mutex<Now>>,
    now: Now,
    repeated: u32,
}

impl Pair {
    async fn open(url: &str, durability: Durability, seed: u64) -> Self {
        let clock = Arc::new(Mutex::new(START_TIME));
        let reads = Arc::clone(&clock);
        let reads: turnway::store::embedded::ClockFn = Arc::new(move || *reads.lock().expect("a clock"));
        let options = RedisStoreOptions { durability, clock: Some(reads), ..RedisStoreOptions::default() };
        let store = StoreClient::try_open(url, options).await.expect("a store");
        let script = Script::new(seed, true);
        let model = ModelStore::new(false);
        Self { client: store, script, model, clock, now: START_TIME, repeated: 0 }
    }

    fn pass(&mut self, wait: Duration) {
        self.now = Now { mono: self.now.mono + wait, store: self.now.store.after(wait) };
        *self.clock.lock().expect("a clock") = self.now;
    }

    /// Submits a request. A request that was sent once must have the model's answer, and a repeated one either this
    /// answer or the answer to a repeat.
    async fn ask(&mut self, op: Op, harm: impl FnOnce()) {
        let first = self.model.apply(self.now, &op);
        let again = self.model.apply(self.now, &op);
        self.client.store.submit(op.clone());
        harm();
        let (reply, tries) = match self.client.answer().await {
            Ok(reply) => (reply, 1),
            Err(_) => {
                let (reply, tries) = self.client.ask_until(&op).await;
                (reply, tries + 1)
            }
        };
        let mut reply = reply;
        // The model has no eras and no published offers.
        if let Reply::Renewed { era, .. } = &mut reply {
            *era = 0;
        }
        if let Reply::Accepted(accepted) = &mut reply {
            accepted.offer_receivers = None;
        }
        let known = reply == first || (tries > 1 && reply == again);
        assert!(known, "{op:#?}\nasked {tries} times: {reply:#?}\nexpected {first:#?}\nor again {again:#?}");
        self.repeated += u32::from(tries > 1);
        self.script.learn(&op, &reply);
    }

    /// Runs a sequence of requests, with a fault during this percentage of them.
    async fn run(&mut self, percent: u64, mut harm: impl FnMut(u64)) {
        for _ in 0..OPS {
            let wait = self.script.rng().below(40);
            self.pass(Duration::from_millis(if wait == 0 { 4000 } else { wait }));
            let op = self.script.next(self.now);
            let hit = self.script.rng().chance(percent);
            let kind = self.script.rng().next_u64();
            self.ask(op, || {
                if hit {
                    harm(kind)
                }
            })
            .await;
        }
        let mut all = vec![Op::Sweep { limit: 100 }];
        all.extend(lists(self.script.keys()));
        for key in self.script.keys().to_vec() {
            all.push(Op::ReadView { key: key.clone() });
            all.push(Op::Read { key: key.clone(), after: Seq(0), limit: u32::MAX });
            let after = InboxPosition(0);
            let control_after = InboxPosition(0);
            all.push(Op::Inbox { key, token: Default::default(), after, control_after });
        }
        for op in all {
            self.ask(op, || {}).await;
        }
    }
}

/// Covers: G-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_repeated_after_lost_messages_are_idempotent() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let proxy = Proxy::to(server.port).await;
    let sequences = size("REDIS_SEQUENCES", 6);
    let mut repeated = 0;
    for seed in 1..=sequences as u64 {
        let _: String = server.command(&["FLUSHALL"]);
        let mut pair = Pair::open(&proxy.url(), Durability::Mem, seed).await;
        pair.run(15, |kind| proxy.lose(if kind % 3 == 0 { Loss::Question } else { Loss::Answer })).await;
        repeated += pair.repeated;
        proxy.lose(Loss::Nothing);
    }
    figure("ops asked again after a lost connection", repeated);
    assert!(repeated > 0);
}

/// Covers: G-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_requests_survive_server_crashes() {
    let dir = tempdir().expect("a directory");
    let mut server = Redis::start(dir.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let kills_max = size("REDIS_KILLS", 12);
    let mut kills = 0;
    let mut seed = 0;
    let mut repeated = 0;
    while kills < kills_max {
        seed += 1;
        let _: String = server.command(&["FLUSHALL"]);
        let mut pair = Pair::open(&server.url(), Durability::Fsync, seed).await;
        pair.run(3, |_| {
            server.kill();
            server.restart();
            kills += 1;
        })
        .await;
        repeated += pair.repeated;
    }
    figure("kills of redis-server", kills);
    figure("ops without an answer, asked again", repeated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wiped_data_starts_a_new_era() {
    let dir = tempdir().expect("a directory");
    let mut server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    let first = store.era(holder(1, 1), true).await;
    assert_eq!(store.era(holder(1, 1), false).await, first);
    store.accept("s", "m1").await.expect("accepted");

    // The data is wiped while the connection stays open.
    let _: String = server.command(&["FLUSHALL"]);
    assert_eq!(store.renew(holder(1, 1), false).await, Ok(Reply::LeaseLost));
    let second = store.era(holder(1, 2), true).await;
    assert_ne!(second, first);
    // Registrations that were cached before the wipe are not used.
    let accepted = store.accept("s", "m1").await.expect("accepted");
    assert!(!accepted.duplicate);

    // The data is lost with the process, functions included.
    server.kill();
    server.restart();
    store.store.ready().await;
    let (reply, _) = store.ask_until(&crate::store_client::accept("s", "m1")).await;
    assert!(matches!(reply, Reply::Accepted(accepted) if !accepted.duplicate));
    let third = store.era(holder(1, 3), true).await;
    assert!(third != second && third != first);
}
