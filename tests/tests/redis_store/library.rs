//! Tests two releases on one server: newer functions stay, and another major version coexists.
use crate::store_client::{StoreClient, key};
use redis::Value;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::tempdir;
use turnway::config::Durability;
use turnway_core::id::Seq;
use turnway_core::store::{Op, Reply};
use turnway_tests::real::redis::Redis;

pub(crate) const SOURCE: &str = include_str!("../../../gateway/src/store/redis/turnway.lua");

/// Digest of each version of the library. A node keeps functions of its own version, so once a release contains a
/// version, any change of the functions needs the next number.
const VERSIONS: &[(u64, &str)] = &[
    (1, "532c10334dd165634ed2bd0fb8daab56f7a8a64f03ab4b27d42b66b3689642e1"),
    (2, "2a5e2587a79f1c2a147b9d485117d79901a456f5dbe2c11b9a44e4189767c84b"),
    (3, "295f129178edef490c4da3e87db8760ab4d9851b7eca3f25d09d164a8390ffad"),
    (4, "2fd5c93fd6dab91fe69949b267b5f5f9b804467f34e4c5810f952c12c57110b6"),
    (5, "4ceaabc90c200638eadbe56ad834e61eb5a0af3b6e94fb041f2e39030de41616"),
    (6, "560d28fb017b833f7b282f063dc25a34e005191006e54ac9a0ecf1fa2a6cd3fe"),
    (7, "1470f3ff66ddcc3ec62d3523131052b3c774918015648d9ac4733ed96f606110"),
    (8, "298aeeff748813579553599f929b3bcb2bdc62c59c4e291ad56d14a01c145081"),
    (9, "5f98146fc68ecf33e625cd16869a4033566c19dec3ab0b3ccffa29549bcca5a8"),
    (10, "d96f5519c7b9a331914a5632e4e4371ed56175be2e18c304b0c09a8ccccfc4cf"),
    (11, "d42cc4eb3af323dc6e80b1be636d2014f88374e3ae2a3b6f86016ad3e56000b6"),
    (12, "52b962b5e49691a75e1a2f65fd2f7bbd76c4c97dd57e9fcfea005be302cd26bd"),
    (13, "9acbecb358291498dfd636ad3fc63e70c21b74ce2e585f68c8aed78c84b17a1d"),
];
/// Version of this release.
const OWN: u64 = VERSIONS[VERSIONS.len() - 1].0;

fn source(version: u64) -> String {
    let own = format!("\nlocal VERSION = {OWN}\n");
    let other = SOURCE.replace(&own, &format!("\nlocal VERSION = {version}\n"));
    assert!(version == OWN || other != SOURCE);
    other
}

fn version(server: &Redis) -> Vec<u64> {
    server.command(&["FCALL_RO", "turnway1_version", "0"])
}

#[test]
fn changed_functions_require_a_new_version() {
    let digest: String = Sha256::digest(SOURCE).iter().map(|byte| format!("{byte:02x}")).collect();
    let (version, expected) = VERSIONS.last().expect("a version");
    assert!(SOURCE.contains(&format!("\nlocal VERSION = {version}\n")));
    assert_eq!(digest, *expected, "changed: a version of its own, if a release had the last one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_functions_are_replaced_and_newer_ones_stay() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    // Loaded version (none, older, own, newer) and the version that is loaded afterwards.
    for (there, then) in [(None, OWN), (Some(OWN - 1), OWN), (Some(OWN), OWN), (Some(OWN + 1), OWN + 1)] {
        let _: Value = server.command(&["FUNCTION", "FLUSH"]);
        if let Some(there) = there {
            let _: Value = server.command(&["FUNCTION", "LOAD", &source(there)]);
        }
        let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
        assert_eq!(version(&server), [then], "{there:?}");
        store.accept("s", &format!("m{then}-{there:?}")).await.expect("accepted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_can_load_functions_at_once() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let nodes = (0..8).map(|_| {
        let url = server.url();
        tokio::spawn(async move { StoreClient::open(&url, Durability::Mem).await })
    });
    for node in nodes.collect::<Vec<_>>() {
        node.await.expect("it starts");
    }
    assert_eq!(version(&server), [OWN]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_major_version_coexists() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let other = SOURCE.replace("turnway1", "turnway2");
    let _: Value = server.command(&["FUNCTION", "LOAD", &other]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    store.accept("s", "m1").await.expect("accepted");
    // The other major version reads the same data through its own functions.
    let look = ["own", "in", "ctl"].map(|name| format!("{name}:{{default/s}}"));
    let seen: Vec<String> = server.command(&["FCALL_RO", "turnway2_look", "3", &look[0], &look[1], &look[2], "0"]);
    assert_eq!(seen[3], "1", "{seen:?}");
    let _: Value = server.command(&["FUNCTION", "DELETE", "turnway2"]);
    store.accept("s", "m2").await.expect("accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_functions_are_loaded_again() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    store.accept("s", "m1").await.expect("accepted");
    let _: Value = server.command(&["FUNCTION", "FLUSH"]);
    let read = Op::Read { key: key("s"), after: Seq(0), limit: 10 };
    assert!(matches!(store.ask(read).await, Ok(Reply::Facts(_))));
    let again = store.accept("s", "m1").await.expect("accepted");
    assert!(again.duplicate);
}

/// Covers: S-41.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_functions_causes_no_errors() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    let done = Arc::new(AtomicBool::new(false));
    let mut replaced = 0;
    let seen = Arc::clone(&done);
    let mut connection = server.connection();
    let deployer = std::thread::spawn(move || {
        for version in OWN + 1.. {
            let mut load = redis::cmd("FUNCTION");
            load.arg("LOAD").arg("REPLACE").arg(source(version));
            let _: Value = load.query(&mut connection).expect("loaded");
            replaced += 1;
            if seen.load(Ordering::Relaxed) {
                break;
            }
        }
        replaced
    });
    for n in 0..500 {
        store.accept(&format!("s{}", n / 20), &format!("m{n}")).await.expect("accepted");
    }
    done.store(true, Ordering::Relaxed);
    let replaced: u32 = deployer.join().expect("a deployer");
    assert!(replaced > 5, "{replaced}");
}
