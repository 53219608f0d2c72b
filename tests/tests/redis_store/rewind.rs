//! Tests a server restored from an older copy, with its clock set back: the forgotten owner and the next owner then
//! have the same epoch.
use crate::library::SOURCE;
use crate::store_client::{Answered, StoreClient, accept, holder, key};
use redis::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::tempdir;
use turnway::config::Durability;
use turnway::store::redis::RedisStoreOptions;
use turnway_core::id::{Epoch, Nonce, OwnershipSnapshot, Seq};
use turnway_core::store::{Append, Op, Reply};
use turnway_simulator::script::START_TIME;
use turnway_tests::real::redis::Redis;

/// Opens the store of a node whose store clock stands still.
async fn node(server: &Redis, n: u128) -> StoreClient {
    let options = RedisStoreOptions {
        durability: Durability::Mem,
        clock: Some(Arc::new(|| START_TIME)),
        ..RedisStoreOptions::default()
    };
    let mut store = StoreClient::try_open(&server.url(), options).await.expect("a store");
    store.era(holder(n, n), true).await;
    store
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for file in fs::read_dir(from).expect("its files") {
        let file = file.expect("a file");
        fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

/// Returns the answer of a server with these functions to an owner that the server has forgotten and replaced.
async fn overtaken(functions: &str) -> Answered {
    let dir = tempdir().expect("a directory");
    let mut server = Redis::start(dir.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let _: Value = server.command(&["FUNCTION", "LOAD", functions]);
    let mut first = node(&server, 1).await;
    let mut second = node(&server, 2).await;
    let taken = first.accept("s", "m").await.expect("accepted");

    let files = dir.path().join("appendonlydir");
    let older = dir.path().join("older");
    copy(&files, &older);
    let forgotten = first.claim("s", holder(1, 1), OwnershipSnapshot::default()).await;
    server.kill();
    fs::remove_dir_all(&files).expect("they go");
    copy(&older, &files);
    server.restart();
    first.store.ready().await;
    second.store.ready().await;
    let key = key("s");
    let holder = holder(2, 2);
    let nonce = Nonce(9);
    let claim = Op::Claim { key: key.clone(), holder, nonce, expect: OwnershipSnapshot::default(), floor: Epoch(0) };
    let (Reply::Claimed(claimed), _) = second.ask_until(&claim).await else { panic!("it is free again") };
    assert_eq!(claimed.token.epoch, forgotten.token.epoch);

    let Op::Accept { input, .. } = accept("s", "m") else { unreachable!("an accept") };
    let append = Append {
        key,
        token: forgotten.token,
        after: Seq(0),
        facts: Vec::new(),
        ends: vec![(taken.position, input.run_id.clone())],
        answers: Vec::new(),
        closed: None,
        annotations: Vec::new(),
        known_listeners: forgotten.version,
    };
    Ok(first.ask_until(&Op::Append(Box::new(append))).await.0)
}

/// Without the nonce check, the forgotten owner ends a turn of the new owner.
///
/// Covers: G1, G3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_owner_is_fenced_by_its_nonce() {
    assert_eq!(overtaken(SOURCE).await, Ok(Reply::Fenced));
    let blind = SOURCE.replace(" or h.c ~= nonce", "");
    assert_ne!(blind, SOURCE);
    assert!(matches!(overtaken(&blind).await, Ok(Reply::Appended { .. })));
}
