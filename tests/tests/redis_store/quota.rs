//! Tests stored bytes of users in Redis: the counted bytes match the stored ones, and quotas refuse inputs.
use crate::performance::append;
use crate::store_client::{StoreClient, accept, holder, key};
use redis::Value;
use std::collections::BTreeMap;
use tempfile::{TempDir, tempdir};
use turnway::config::Durability;
use turnway::store::redis::RedisStoreOptions;
use turnway_core::id::{Cursor, FenceToken, RunId, Seq};
use turnway_core::limits::UNCOUNTED_BYTES_MAX;
use turnway_core::share::Fraction;
use turnway_core::store::quota::{Quota, Quotas};
use turnway_core::store::{Acceptance, Op, Reply, SnapshotWrite, StoreRefusal};
use turnway_tests::real::redis::Redis;

const BYTES: &str = "ix:{default}/bytes";

async fn open(server: &Redis, quotas: Quotas) -> StoreClient {
    let options = RedisStoreOptions { durability: Durability::Mem, quotas, ..RedisStoreOptions::default() };
    StoreClient::try_open(&server.url(), options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Reads the byte sums from Redis.
fn sums(server: &Redis) -> BTreeMap<String, u64> {
    server.command(&["HGETALL", BYTES])
}

/// Returns the stored bytes of user `ann`: the counted bytes, and those that session `s` has not added to the sum
/// yet.
fn stored(server: &Redis) -> u64 {
    let uncounted: Option<i64> = server.command(&["HGET", "own:{default/s}", "ub"]);
    let counted = sums(server).get("uann").copied().unwrap_or(0);
    counted.checked_add_signed(uncounted.unwrap_or(0)).expect("not less than nothing")
}

/// An owned session `s` of user `ann` with the waiting input `m1`, and its own server.
struct Owned {
    client: StoreClient,
    server: Redis,
    taken: Acceptance,
    token: FenceToken,
    _dir: TempDir,
}

impl Owned {
    async fn start(quotas: Quotas) -> Self {
        let dir = tempdir().expect("a directory");
        let server = Redis::start(dir.path(), &[]);
        let mut store = open(&server, quotas).await;
        let me = holder(1, 1);
        store.era(me, true).await;
        let taken = store.accept("s", "m1").await.expect("accepted");
        let token = store.claim("s", me, taken.owner).await.token;
        Self { client: store, server, taken, token, _dir: dir }
    }
}

/// Appends the fact of this number to session `s`.
async fn write(store: &mut StoreClient, token: FenceToken, n: u64) {
    let reply = store.ask(append("s", token, Seq(n), n)).await;
    assert!(matches!(reply, Ok(Reply::Appended { .. })), "{n}: {reply:?}");
}

/// Stores a snapshot of session `s`.
async fn keep(store: &mut StoreClient, token: FenceToken, seq: u64, state: Vec<u8>) {
    let at = Cursor { seq: Seq(seq), epoch: token.epoch };
    let keep = SnapshotWrite { key: key("s"), token, at, state: state.into() };
    assert_eq!(store.ask(Op::WriteSnapshot(Box::new(keep))).await, Ok(Reply::Done));
}

/// Builds an append of one fact that ends an input.
fn end(session: &str, token: FenceToken, after: Seq, accepted: turnway_core::id::InboxPosition, run: RunId) -> Op {
    let Op::Append(mut append) = append(session, token, after, after.0) else { unreachable!("an append") };
    append.ends = vec![(accepted, run)];
    append.closed = Some(true);
    Op::Append(append)
}

fn run(session: &str, message: &str) -> RunId {
    let Op::Accept { input, .. } = accept(session, message) else { unreachable!("an accept") };
    input.run_id.clone()
}

/// Covers: S-48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_bytes_are_counted_until_the_record_is_deleted() {
    let Owned { client: mut store, server, taken, token, _dir } = Owned::start(Quotas::OFF).await;
    let waits = stored(&server);
    assert!(waits > 100 && sums(&server)["t"] == waits, "{waits}");
    store.accept("s", "m1").await.expect("accepted");
    assert_eq!(stored(&server), waits, "a repeated message is stored once");
    for n in 0..10 {
        for _ in 0..2 {
            write(&mut store, token, n).await;
        }
    }
    let full = stored(&server);
    let log: Vec<(String, BTreeMap<String, String>)> = server.command(&["XRANGE", "log:{default/s}", "-", "+"]);
    let facts: Vec<u64> = log.iter().map(|(_, fields)| fields["j"].len() as u64 + 20).collect();
    assert_eq!(full, waits + facts.iter().sum::<u64>());
    keep(&mut store, token, 8, vec![7; 100]).await;
    for upto in [5, 5, 8] {
        assert_eq!(store.ask(Op::Trim { key: key("s"), token, upto: Seq(upto) }).await, Ok(Reply::Done));
        let left: u64 = facts[usize::try_from(upto).expect("small")..].iter().sum();
        assert_eq!(stored(&server), waits + 120 + left, "{upto}");
    }
    let ended = store.ask(end("s", token, Seq(10), taken.position, run("s", "m1"))).await;
    assert!(matches!(ended, Ok(Reply::Appended { .. })), "{ended:?}");
    let Op::Accept { principal, .. } = accept("s", "m1") else { unreachable!("an accept") };
    for _ in 0..2 {
        let key = key("s");
        let principal = principal.clone();
        let link = Default::default();
        assert_eq!(store.ask(Op::Delete { key, principal, link }).await, Ok(Reply::Done));
        assert!(sums(&server).is_empty(), "{:?}", sums(&server));
    }
}

/// Sums are written rarely: once enough bytes are uncounted, and when a session is released.
///
/// Covers: S-48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn byte_sums_lag_only_a_little_behind_owned_sessions() {
    let Owned { client: mut store, server, taken, token, _dir } = Owned::start(Quotas::OFF).await;
    // The session had no owner when the input came.
    let mut written = 0;
    let mut last = sums(&server)["uann"];
    assert_eq!(last, stored(&server));
    for n in 0..100 {
        write(&mut store, token, n).await;
        let sums = sums(&server);
        let sum = sums.get("uann").copied().unwrap_or(0);
        assert_eq!(sums.get("t").copied().unwrap_or(0), sum, "the tenant has one user");
        let missing = stored(&server).abs_diff(sum);
        assert!(missing < UNCOUNTED_BYTES_MAX, "{missing}");
        written += u64::from(sum != last);
        last = sum;
    }
    let all = stored(&server);
    assert!(written <= all / UNCOUNTED_BYTES_MAX && written > 1, "{written} times for {all} bytes");
    let ended = store.ask(end("s", token, Seq(100), taken.position, run("s", "m1"))).await;
    assert!(matches!(ended, Ok(Reply::Appended { .. })), "{ended:?}");
    let whole = stored(&server);
    let released = Op::Release { key: key("s"), token, tail: Seq(101), drain: false };
    assert_eq!(store.ask(released).await, Ok(Reply::Released));
    assert_eq!((stored(&server), sums(&server)["uann"]), (whole, whole), "nothing is left uncounted");
    assert_eq!(sums(&server)["t"], whole);
}

/// Covers: S-48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_quota_refuses_new_inputs_only() {
    let quotas = Quotas { tenant: Quota::Off, user: Quota::Bytes(4_000) };
    let Owned { client: mut store, token, server: _server, _dir, .. } = Owned::start(quotas).await;
    for n in 0..40 {
        write(&mut store, token, n).await;
    }
    for session in ["s", "another"] {
        let refused = store.accept(session, "m2").await.expect_err("over the quota");
        assert_eq!(refused, Ok(Reply::Refused(StoreRefusal::Quota)), "{session}");
    }
    assert!(store.accept("s", "m1").await.expect("accepted").duplicate, "what is there already is found");
    let Op::Accept { key, mut principal, input, hash, .. } = accept("bobs", "m1") else { unreachable!("an accept") };
    principal.user = turnway_core::id::UserId::parse("bob").expect("a name");
    let bob = store.ask(Op::Accept { key, principal, input, hash, route: None }).await;
    assert!(matches!(bob, Ok(Reply::Accepted(_))), "another user has its own: {bob:?}");
}

/// Covers: S-48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fractional_quota_is_relative_to_maxmemory() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let part = |thousandths| Quota::Part(Fraction::of_thousandths(thousandths).expect("a part"));
    let quotas = Quotas { tenant: part(2), user: part(1) };
    let fill = async |store: &mut StoreClient, from: u64| {
        let mut n = from;
        while store.accept(&format!("s{n}"), "m").await.is_ok() && n < from + 400 {
            n += 1;
        }
        n - from
    };
    assert_eq!(fill(&mut open(&server, quotas).await, 0).await, 400, "nothing is known to be a part of");
    let _: String = server.command(&["FLUSHALL"]);
    // A thousandth of `maxmemory` is 16,000 bytes; each input takes about 150 bytes.
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "16000000"]);
    let taken = fill(&mut open(&server, quotas).await, 1000).await;
    assert!((50..200).contains(&taken), "{taken}");
}

/// When thousands of facts are trimmed at once, their bytes are estimated; the exact count returns with a trim that
/// leaves fewer facts than it removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn estimated_bytes_of_trimmed_facts_are_corrected_later() {
    let Owned { client: mut store, server, token, _dir, .. } = Owned::start(Quotas::OFF).await;
    let waits = stored(&server);
    for n in 0..10_000 {
        write(&mut store, token, n).await;
    }
    let full = stored(&server) - waits;
    keep(&mut store, token, 10_000, vec![]).await;
    let trim = |upto| Op::Trim { key: key("s"), token, upto: Seq(upto) };
    let facts = || stored(&server) - waits - 20;
    assert_eq!(store.ask(trim(4_500)).await, Ok(Reply::Done));
    assert!(facts().abs_diff(full * 55 / 100) < full / 50, "{} of {full}", facts());
    // The largest possible error of an estimate.
    let _: i64 = server.command(&["HSET", "own:{default/s}", "lb", "100000000"]);
    let before = stored(&server);
    assert_eq!(store.ask(trim(9_500)).await, Ok(Reply::Done));
    let log: Vec<(String, BTreeMap<String, String>)> = server.command(&["XRANGE", "log:{default/s}", "-", "+"]);
    let left: u64 = log.iter().map(|(_, fields)| fields["j"].len() as u64 + 20).sum();
    let held: u64 = server.command(&["HGET", "own:{default/s}", "lb"]);
    assert_eq!((log.len(), held), (500, left));
    assert!(stored(&server) < before, "what goes is no longer counted");
    assert_eq!(store.ask(trim(10_000)).await, Ok(Reply::Done));
    assert_eq!(server.command::<u64>(&["HGET", "own:{default/s}", "lb"]), 0);
}

/// Facts written by version 6 of the functions have no byte count; their sum is estimated once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_of_an_older_release_are_estimated_and_freed() {
    let Owned { client: mut store, server, token, _dir, .. } = Owned::start(Quotas::OFF).await;
    for n in 0..50 {
        let id = format!("{}-0", n + 1);
        write(&mut store, token, n).await;
        let lies: Vec<(String, BTreeMap<String, String>)> = server.command(&["XRANGE", "log:{default/s}", &id, &id]);
        let fields = &lies[0].1;
        // Rebuild the stream as that release wrote it.
        let words = ["XADD", "old:{default/s}", &id, "e", &fields["e"], "w", &fields["w"], "j", &fields["j"]];
        let _: Value = server.command(&words);
    }
    let exact = stored(&server);
    let _: Value = server.command(&["RENAME", "old:{default/s}", "log:{default/s}"]);
    let _: Value = server.command(&["HDEL", "own:{default/s}", "lb", "ub"]);
    let _: Value = server.command(&["DEL", BYTES]);
    write(&mut store, token, 50).await;
    let estimated = stored(&server);
    assert!(estimated.abs_diff(exact) < 700, "{estimated} for {exact}");
    keep(&mut store, token, 51, vec![]).await;
    assert_eq!(store.ask(Op::Trim { key: key("s"), token, upto: Seq(40) }).await, Ok(Reply::Done));
    assert_eq!(store.ask(Op::Trim { key: key("s"), token, upto: Seq(51) }).await, Ok(Reply::Done));
    assert_eq!(stored(&server), 20, "only the kept state is left");
}

/// Nodes of the previous release send no quotas, and call the same functions during a rolling upgrade.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_the_previous_release_are_served_and_counted() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let quotas = Quotas { tenant: Quota::Off, user: Quota::Bytes(10) };
    let mut store = open(&server, quotas).await;
    let refused = store.accept("s", "m1").await.expect_err("over the quota");
    assert_eq!(refused, Ok(Reply::Refused(StoreRefusal::Quota)));
    let time: Vec<String> = server.command(&["TIME"]);
    let now = format!("{}000", time[0]);
    let keys = ["own:{default/s}", "in:{default/s}", "dd:{default/s}"];
    let args = ["0", "ann", "0", "run", "hash", "300", "0", "{}", "64", "1000000", &now, &now, "", ""];
    let call = [&["FCALL", "turnway1_accept", "3"][..], &keys, &args].concat();
    for duplicate in ["0", "1"] {
        let said: Vec<String> = server.command(&call);
        assert_eq!((&*said[0], &*said[8]), ("OK", duplicate), "{said:?}");
        assert_eq!(stored(&server), 6, "four bytes, and two of JSON");
    }
}
