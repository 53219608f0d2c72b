//! Tests that the sweep finds the sessions of a dead node, in whichever state the node died, and that the sweep's
//! indexes are emptied again.
use crate::store_client::{StoreClient, accept, ann, holder, key};
use redis::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::tempdir;
use turnway::config::Durability;
use turnway::store::embedded::ClockFn;
use turnway::store::redis::RedisStoreOptions;
use turnway_core::id::{FenceToken, LinkId, Nonce, OwnershipSnapshot, Seq, TenantId};
use turnway_core::store::{Op, Reply};
use turnway_core::time::{Mono, Now};
use turnway_simulator::script::START_TIME;
use turnway_tests::real::redis::Redis;

/// A server, and a clock that the test advances.
struct Scene {
    server: Redis,
    now: Arc<Mutex<Now>>,
}

impl Scene {
    fn begin(dir: &std::path::Path) -> Self {
        Self { server: Redis::start(dir, &[]), now: Arc::new(Mutex::new(START_TIME)) }
    }

    fn pass(&self, seconds: u64) {
        let mut now = self.now.lock().expect("a clock");
        let wait = Duration::from_secs(seconds);
        *now = Now { mono: now.mono + wait, store: now.store.after(wait) };
    }

    /// Sets the server's clock back.
    fn set_back(&self, seconds: u64) {
        let mut now = self.now.lock().expect("a clock");
        now.store.0 -= seconds * 1000;
    }

    /// Opens the store of a new node, with a lease.
    async fn node(&self, n: u128) -> StoreClient {
        let now = Arc::clone(&self.now);
        let clock: ClockFn = Arc::new(move || *now.lock().expect("a clock"));
        let options =
            RedisStoreOptions { durability: Durability::Mem, clock: Some(clock), ..RedisStoreOptions::default() };
        let mut store = StoreClient::try_open(&self.server.url(), options).await.expect("a store");
        store.era(holder(n, n), true).await;
        store
    }

    /// Creates this many sessions with an input accepted by a node that then dies, and deletes the indexes.
    async fn lose_track_of(&self, sessions: usize) {
        let mut dead = self.node(1).await;
        for n in 0..sessions {
            dead.accept(&format!("s{n}"), "m").await.expect("accepted");
        }
        drop(dead);
        for lost in self.keys("nidx:*") {
            let _: Value = self.server.command(&["DEL", &lost]);
        }
        self.pass(4);
    }

    fn count(&self, key: &str) -> u64 {
        self.server.command(&["ZCARD", key])
    }

    fn keys(&self, pattern: &str) -> Vec<String> {
        self.server.command(&["KEYS", pattern])
    }
}

async fn found(store: &mut StoreClient) -> Vec<(String, OwnershipSnapshot)> {
    match store.ask(Op::Sweep { limit: 64 }).await {
        Ok(Reply::Unowned { sessions }) => {
            sessions.into_iter().map(|(key, seen)| (key.session.to_string(), seen)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn names(found: &[(String, OwnershipSnapshot)]) -> Vec<&str> {
    found.iter().map(|(name, _)| name.as_str()).collect()
}

/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_finds_all_sessions_of_a_dead_node() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    let mut first = scene.node(1).await;
    let mut second = scene.node(2).await;
    let me = holder(1, 1);
    // Sessions in each state: accepted but not claimed, claimed and idle, claimed with an open input.
    first.accept("accepted", "m").await.expect("accepted");
    let idle = first.claim("idle", me, OwnershipSnapshot::default()).await;
    let taken = first.accept("busy", "m").await.expect("accepted");
    first.claim("busy", me, taken.owner).await;
    assert_eq!(names(&found(&mut first).await), ["accepted"], "its own, which it does not own");
    // Sessions of a live owner are not returned; sessions without an owner may be found by the walk.
    let others = found(&mut second).await;
    assert!(others.iter().all(|(name, _)| name == "accepted"), "{others:?}");
    scene.pass(4);
    second.era(holder(2, 3), true).await;
    let left = found(&mut second).await;
    assert_eq!(names(&left), ["accepted", "busy", "idle"]);
    assert_eq!(left[2].1, OwnershipSnapshot { holder: Some(me), epoch: idle.token.epoch });
    // Sessions are returned until a node claims them.
    assert_eq!(found(&mut second).await, left);
    for (name, seen) in left {
        second.claim(&name, holder(2, 3), seen).await;
    }
    assert_eq!(found(&mut second).await, []);
}

/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_finds_sessions_released_by_a_draining_node() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    let mut first = scene.node(1).await;
    let mut second = scene.node(2).await;
    let taken = first.accept("s", "m").await.expect("accepted");
    let claimed = first.claim("s", holder(1, 1), taken.owner).await;
    let release = Op::Release { key: key("s"), token: claimed.token, tail: Seq(0), drain: true };
    assert_eq!(first.ask(release).await, Ok(Reply::Released));
    assert_eq!(names(&found(&mut second).await), ["s"]);
}

/// The walk would hide the loss of a registration, so it is kept busy with newer sessions.
///
/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_transfer_to_oneself_keeps_the_registration() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    let mut store = scene.node(1).await;
    store.accept("first", "m").await.expect("accepted");
    scene.pass(1);
    for n in 0..24 {
        store.accept(&format!("newer{n:02}"), "m").await.expect("accepted");
    }
    let token = FenceToken::default();
    let transfer = Op::Transfer { key: key("first"), token, tail: Seq(0), to: holder(1, 1), nonce: Nonce(9) };
    assert_eq!(store.ask(transfer).await, Ok(Reply::Fenced));
    let found = found(&mut store).await;
    assert_eq!((found.len(), found[0].0.as_str()), (25, "first"));
}

/// The second fallback, the index, misses sessions if the index is lost; the third, a walk through all sessions,
/// finds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_without_an_index_walks_all_sessions() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    scene.lose_track_of(100).await;
    let mut second = scene.node(2).await;
    let mut all = 0;
    let mut sweeps = 0;
    while all < 64 {
        all = found(&mut second).await.len();
        sweeps += 1;
        assert!(sweeps < 10, "{all} found");
    }
    // A session found by the walk is registered again, so that every node finds it.
    let mut third = scene.node(3).await;
    assert_eq!(found(&mut third).await.len(), 64);
    assert!(scene.count("nidx:{ffffffffffffffffffffffffffffffff}:ffffffffffffffffffffffffffffffff") >= 64);
}

/// Foreign data under the store's keys, such as from another program or an operator's mistake.
///
/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_skips_unreadable_sessions() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    let mut first = scene.node(1).await;
    for name in ["a", "kind", "lane", "name", "z"] {
        first.accept(name, "m").await.expect("accepted");
    }
    drop(first);
    for overwritten in ["own:{default/kind}", "in:{default/lane}"] {
        let _: Value = scene.server.command(&["SET", overwritten, "something else"]);
    }
    let _: Value = scene.server.command(&["HSET", "own:{default/name}", "n", "nobody", "i", "at all"]);
    scene.pass(4);
    let mut second = scene.node(2).await;
    // Found by registration first, and later by the walk as well.
    for _ in 0..3 {
        assert_eq!(names(&found(&mut second).await), ["a", "z"]);
    }
}

/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_walk_is_repeated() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    scene.lose_track_of(30).await;
    let mut second = scene.node(2).await;
    let _: Value = scene.server.command(&["ACL", "SETUSER", "default", "-hmget"]);
    let failed = second.ask(Op::Sweep { limit: 64 }).await;
    assert!(failed.is_err(), "{failed:?}");
    let _: Value = scene.server.command(&["ACL", "SETUSER", "default", "+hmget"]);
    assert_eq!(found(&mut second).await.len(), 24, "as many as one sweep walks past");
}

/// A claim checks the inbox again.
///
/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_accepted_input_is_found_until_claimed() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    let mut store = scene.node(1).await;
    let claimed = store.claim("s", holder(1, 1), OwnershipSnapshot::default()).await;
    let index = "nidx:{00000000000000000000000000000001}:00000000000000000000000000000001";
    let stamp: String = scene.server.command(&["ZSCORE", index, "default/s"]);
    let release = Op::Release { key: key("s"), token: claimed.token, tail: Seq(0), drain: false };
    assert_eq!(store.ask(release).await, Ok(Reply::Released));
    // The accept was sent before the release, and its answer is lost.
    let keys = ["own:{default/s}", "in:{default/s}", "dd:{default/s}"];
    let now = START_TIME.store.0.to_string();
    let Op::Accept { input, .. } = accept("s", "late") else { unreachable!("an accept") };
    let run = input.run_id.to_string();
    let json = serde_json::to_string(&input).expect("JSON");
    let args = [&now, "ann", "0", &run, "hash", "9", "0", &json, "21", "999999", &stamp, &now];
    let answer: Vec<String> =
        scene.server.command(&[&["FCALL", "turnway1_accept", "3"], &keys[..], &args[..]].concat());
    assert_eq!(answer[0], "OK");
    assert_eq!(found(&mut store).await, []);
    scene.pass(62);
    store.era(holder(1, 2), true).await;
    for _ in 0..3 {
        assert_eq!(names(&found(&mut store).await), ["s"]);
    }
    let again = store.claim("s", holder(1, 2), OwnershipSnapshot { holder: None, epoch: claimed.token.epoch }).await;
    assert_eq!(again.inbox.inputs.len(), 1);
    assert_eq!(found(&mut store).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_indexes_are_emptied() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    let mut first = scene.node(1).await;
    let mut second = scene.node(2).await;
    let me = holder(1, 1);
    for n in 0..20 {
        let name = format!("s{n}");
        let taken = first.accept(&name, "m").await.expect("accepted");
        let claimed = first.claim(&name, me, taken.owner).await;
        let Op::Accept { input, .. } = accept(&name, "m") else { unreachable!("an accept") };
        let append = turnway_core::store::Append {
            key: key(&name),
            token: claimed.token,
            after: Seq(0),
            facts: Vec::new(),
            ends: vec![(taken.position, input.run_id.clone())],
            answers: Vec::new(),
            closed: None,
            annotations: Vec::new(),
            known_listeners: claimed.version,
        };
        assert!(matches!(first.ask(Op::Append(Box::new(append))).await, Ok(Reply::Appended { .. })));
        // Half of the sessions are released; the owner of the others dies.
        if n % 2 == 0 {
            let release = Op::Release { key: key(&name), token: claimed.token, tail: Seq(0), drain: n % 4 == 0 };
            assert_eq!(first.ask(release).await, Ok(Reply::Released));
        }
    }
    // An accept sent before a release may rely on a registration, so no registration is removed at once.
    assert_eq!(scene.count("nidx:{00000000000000000000000000000001}:00000000000000000000000000000001"), 20);
    drop(first);
    scene.pass(4);
    second.era(holder(2, 3), true).await;
    let mut left = found(&mut second).await;
    assert_eq!(left.len(), 10);
    for (name, seen) in left.drain(..) {
        let claimed = second.claim(&name, holder(2, 3), seen).await;
        let release = Op::Release { key: key(&name), token: claimed.token, tail: Seq(0), drain: false };
        assert_eq!(second.ask(release).await, Ok(Reply::Released));
    }
    // A young registration may be about to be used.
    assert_eq!(found(&mut second).await, []);
    assert_eq!(scene.keys("nidx:*").len(), 3);
    scene.pass(61);
    second.era(holder(2, 4), true).await;
    // A session claimed a moment ago is skipped a few times.
    for _ in 0..6 {
        assert_eq!(found(&mut second).await, []);
    }
    assert_eq!(scene.keys("nidx:*"), Vec::<String>::new());
    let lives: Vec<String> = scene.server.command(&["HKEYS", "lives"]);
    assert_eq!(lives, ["00000000000000000000000000000002:00000000000000000000000000000004"]);
}

/// A session that was announced but never created is in no list, and its index line is removed in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_line_without_a_session_is_not_listed() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    let mut store = scene.node(1).await;
    store.accept("s", "m").await.expect("accepted");
    let now = START_TIME.store.0.to_string();
    for name in ["ghost", "s2"] {
        let _: Value =
            scene.server.command(&["FCALL", "turnway1_enter", "2", "ix:{default}", "ix:{default}:YW5u", &now, name]);
    }
    // Announced twice at different times, created once.
    scene.pass(1);
    store.accept("s2", "m").await.expect("accepted");
    let tenant = TenantId::default_tenant();
    let user = ann().user;
    let lists = [None, Some(user)].map(|user| Op::ListSessions {
        tenant: tenant.clone(),
        user,
        before: None,
        limit: 10,
        link: LinkId(1),
    });
    let first = Op::ListSessions { tenant: tenant.clone(), user: None, before: None, limit: 1, link: LinkId(1) };
    let Ok(Reply::Sessions { sessions, more }) = store.ask(first).await else { panic!("not a list") };
    assert_eq!((sessions.len(), more), (1, true), "a line without a session does not hide the sessions behind it");
    for (wait, lines) in [(0, 3), (121, 2)] {
        scene.pass(wait);
        for list in &lists {
            let Ok(Reply::Sessions { sessions, more: false }) = store.ask(list.clone()).await else { panic!() };
            let names: Vec<_> = sessions.iter().map(|one| one.birth.session.as_str()).collect();
            assert_eq!(names, ["s2", "s"]);
            store.ask(list.clone()).await.expect("again");
        }
        assert_eq!((scene.count("ix:{default}"), scene.count("ix:{default}:YW5u")), (lines, lines));
    }
}

/// A node that died under a clock that was an hour ahead does not count as alive for that hour; a live node keeps
/// its lease.
///
/// Covers: G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_from_a_fast_clock_ends_when_the_clock_is_corrected() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    scene.pass(3600);
    let dead = scene.node(1).await;
    let mut alive = scene.node(2).await;
    drop(dead);
    scene.set_back(3600);
    alive.era(holder(2, 2), false).await;
    let lease = |n: u128| Op::Lease { node: holder(n, n).node, sent: Mono::default() };
    let (reply, _) = alive.ask_until(&lease(1)).await;
    assert_eq!(reply, Reply::Leased { left: None });
    let (reply, _) = alive.ask_until(&lease(2)).await;
    assert!(matches!(reply, Reply::Leased { left: Some(_) }), "{reply:?}");
}

/// The registration of a released session leaves the node's index while the node lives, once no request can rely on
/// the registration.
///
/// Covers: G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_session_leaves_the_index_of_its_node() {
    let dir = tempdir().expect("a directory");
    let scene = Scene::begin(dir.path());
    let mut node = scene.node(1).await;
    let me = holder(1, 1);
    let index = "nidx:{00000000000000000000000000000001}:00000000000000000000000000000001";
    let claimed = node.claim("s", me, OwnershipSnapshot::default()).await;
    let release = Op::Release { key: key("s"), token: claimed.token, tail: Seq(0), drain: false };
    assert_eq!(node.ask(release).await, Ok(Reply::Released));
    for _ in 0..32 {
        scene.pass(2);
        assert!(matches!(node.renew(me, false).await, Ok(Reply::Renewed { .. })));
    }
    assert_eq!(scene.count(index), 1);
    assert_eq!(found(&mut node).await, []);
    assert_eq!(scene.count(index), 0, "each sweep would read it for as long as the node lives");
}
