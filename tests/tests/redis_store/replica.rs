//! Tests durability `fsync+replica`: an answered request is on a replica as well, and a request that is not
//! replicated is not answered.
use crate::store_client::{StoreClient, accept, holder, key};
use redis::Value;
use std::path::Path;
use std::time::Instant;
use tempfile::tempdir;
use turnway::config::Durability;
use turnway_core::id::{OwnershipSnapshot, Seq};
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::Mono;
use turnway_tests::real::figure;
use turnway_tests::real::redis::{Redis, Sentinel};

const ALWAYS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Starts a replica, and returns once the replica is in sync.
pub(crate) fn replica_of(primary: &Redis, dir: &Path) -> Redis {
    let of = format!("127.0.0.1 {}", primary.port);
    let mut args = ALWAYS.to_vec();
    args.extend(["--replicaof", &of]);
    let replica = Redis::start(dir, &args);
    // A replica counts for `WAIT` only once it is online, and answers for the first time once it has loaded everything. The
    // messages give it something to acknowledge.
    while !has_acknowledged(&primary.command::<String>(&["INFO", "replication"])) {
        let _: u64 = primary.command(&["PUBLISH", "begin", "replica"]);
    }
    replica
}

/// Returns whether the only replica is online and has acknowledged something.
fn has_acknowledged(replication: &str) -> bool {
    let Some(replica) = replication.lines().find_map(|line| line.strip_prefix("slave0:")) else { return false };
    let offset = replica.split(',').find_map(|part| part.strip_prefix("offset="));
    replica.contains("state=online") && offset.is_some_and(|offset| offset != "0")
}

/// Covers: S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_request_is_on_a_replica() {
    let dir = tempdir().expect("a directory");
    let primary = Redis::start(&dir.path().join("a"), &ALWAYS);
    let replica = replica_of(&primary, &dir.path().join("b"));
    let mut store = StoreClient::open(&primary.url(), Durability::FsyncReplica).await;
    for n in 0..10 {
        store.accept("s", &format!("m{n}")).await.expect("accepted");
    }
    let there: u64 = replica.command(&["XLEN", "in:{default/s}"]);
    assert_eq!(there, 10);

    replica.signal("-STOP");
    assert_eq!(store.accept("s", "m10").await, Err(Err(StoreError::Unknown)));
    // A repeat of an unanswered request is not answered either.
    assert_eq!(store.accept("s", "m10").await, Err(Err(StoreError::Unknown)));
    // A read promises no durability.
    let read = Op::Read { key: key("s"), after: Seq(0), limit: 10 };
    assert!(matches!(store.ask(read).await, Ok(Reply::Facts(_))));
    replica.signal("-CONT");
    let (reply, _) = store.ask_until(&accept("s", "m10")).await;
    assert!(matches!(&reply, Reply::Accepted(accepted) if accepted.duplicate), "{reply:?}");
}

/// Covers: S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failover_loses_no_answered_request() {
    let dir = tempdir().expect("a directory");
    let mut primary = Redis::start(&dir.path().join("a"), &ALWAYS);
    let _replica = replica_of(&primary, &dir.path().join("b"));
    let sentinel = Sentinel::watch(&dir.path().join("s"), &primary, "main");
    let mut store = StoreClient::open(&sentinel.url("main"), Durability::FsyncReplica).await;
    let me = holder(1, 1);
    let era = store.era(me, true).await;
    let mut accepted = Vec::new();
    for n in 0..10 {
        accepted.push(store.accept("s", &format!("m{n}")).await.expect("accepted").position);
    }
    let claimed = store.claim("s", me, OwnershipSnapshot::default()).await;

    primary.kill();
    let began = Instant::now();
    // No replica is left, so no write may be answered; reads are.
    let (reply, _) = store.ask_until(&Op::ReadView { key: key("s") }).await;
    let Reply::View(view) = reply else { panic!("{reply:?}") };
    figure("a fail-over, by a Sentinel that waits 500 ms, ms", began.elapsed().as_millis());
    assert_eq!(view.owner.epoch, claimed.token.epoch);
    let inbox =
        Op::Inbox { key: key("s"), token: claimed.token, after: Default::default(), control_after: Default::default() };
    let (reply, _) = store.ask_until(&inbox).await;
    let Reply::Inbox(inputs) = reply else { panic!("{reply:?}") };
    let positions: Vec<_> = inputs.inputs.iter().map(|(position, _)| *position).collect();
    assert_eq!(positions, accepted);
    assert_eq!(store.accept("s", "m10").await, Err(Err(StoreError::Unknown)));
    let (reply, _) = store.ask_until(&Op::Lease { node: me.node, sent: Mono::default() }).await;
    assert!(matches!(reply, Reply::Leased { .. }));
    assert_ne!(store.era(holder(1, 2), true).await, era);

    // The old primary returns as a replica of the new one.
    primary.restart();
    let (reply, _) = store.ask_until(&accept("s", "m11")).await;
    assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
    let _: Value = primary.command(&["PING"]);
}
