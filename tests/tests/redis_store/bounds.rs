//! Tests limits of a session in Redis, and the keys that remain when the session is over.
use crate::store_client::{StoreClient, ann, holder, key};
use redis::Value;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::time::interval;
use turnway::config::Durability;
use turnway_core::id::ControlId;
use turnway_core::limits;
use turnway_core::protocol::input::{ControlEntry, ControlRequest};
use turnway_core::store::{Op, Reply, StoreRefusal};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{self, Agents};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{WebSocketClient, invoke};

const FLAGS: [&str; 3] = ["--demo", "--durability", "mem"];

/// Ended inputs free their inbox bytes, however many there were.
///
/// Covers: S-48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_inputs_free_their_inbox_bytes() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let node = Node::start_on(&server.url(), dir.path(), &FLAGS).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let long = "x".repeat(50_000);
    for n in 0..2 * limits::INBOX_BYTES_MAX / long.len() {
        wire.turn("s1", "echo", &format!("m{n}"), &long).await.expect("a turn");
    }
}

/// Covers: S-48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbox_bytes_are_limited() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let slow = Agents::start(|_| agent::Reply::speak(async |stream| stream.hung_up().await)).await;
    let agent = slow.flag("slow");
    let flags = [&FLAGS[..], &["--agent", &agent]].concat();
    let node = Node::start_on(&server.url(), dir.path(), &flags).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let long = "x".repeat(60_000);
    let most = limits::INBOX_BYTES_MAX / long.len();
    assert!(most < limits::INBOX_INPUTS_MAX, "bytes are to end it, and not the count");
    for n in 0..most {
        let answer = wire.ask(&format!("m{n}"), invoke("s1", "slow", &long)).await.expect("an answer");
        assert_eq!(answer["type"], "turn_accepted", "{n}: {answer}");
    }
    let answer = wire.ask("more", invoke("s1", "slow", &long)).await.expect("an answer");
    assert_eq!(answer["code"], "too_many_pending", "{answer}");
}

/// A node that is gone leaves no lease behind.
///
/// Covers: G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_key_expires_with_the_lease() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    store.era(holder(7, 1), true).await;
    let keys: Vec<String> = server.command(&["KEYS", "node:*"]);
    assert_eq!(keys.len(), 1);
    let left: i64 = server.command(&["PTTL", &keys[0]]);
    assert!((1..=3000).contains(&left), "{left} ms");
}

/// The key of a deleted session remains, without any content.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_session_keeps_only_its_owner_key() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let node = Node::start_on(&server.url(), dir.path(), &FLAGS).await;
    let ann = Web::new(node.http, Some("ann"));
    ann.turn("gone", "echo", "m", "secret words", None).await.rest().await;
    assert_eq!(ann.ask("DELETE", "/v1/sessions/gone", &[], "").await.status, 204);
    let keys = || server.command::<Vec<String>>(&["KEYS", "*:{*/gone}"]);
    let begun = Instant::now();
    let mut again = interval(Duration::from_millis(50));
    // Subscriber nodes remove their entries by themselves.
    while keys().iter().any(|key| key.starts_with("ls:")) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", keys());
        again.tick().await;
    }
    assert!(keys().iter().all(|key| key.starts_with("own:")), "{:?}", keys());
    let own: Vec<String> = server.command(&["HKEYS", &keys()[0]]);
    assert!(!own.iter().any(|field| ["ib", "seq", "fl", "ss"].contains(&field.as_str())), "{own:?}");
}

/// A node is listed as a subscriber of a session that it does not follow, because its message about leaving was
/// lost. The node leaves again when it gets news of that session.
///
/// Covers: G8, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_subscriber_node_unsubscribes() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let one = dir.path().join("one");
    let two = dir.path().join("two");
    [&one, &two].iter().for_each(|path| std::fs::create_dir_all(path).expect("a directory"));
    let owner = Node::start_on(&server.url(), &one, &FLAGS).await;
    let other = Node::start_on(&server.url(), &two, &FLAGS).await;
    let mut wire = WebSocketClient::hello(owner.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "m1", "hi").await.expect("a turn");
    let listeners: Vec<String> = server.command(&["KEYS", "ls:*"]);
    let [listeners] = &listeners[..] else { panic!("{listeners:?}") };
    let own = listeners.replacen("ls:", "own:", 1);
    let _: Value = server.command(&["HSET", listeners, &other.id, "0"]);
    let _: Value = server.command(&["HINCRBY", &own, "lv", "1"]);
    wire.turn("s1", "echo", "m2", "hi").await.expect("a turn");
    let begun = Instant::now();
    let mut again = interval(Duration::from_millis(50));
    while server.command::<bool>(&["HEXISTS", listeners, &other.id]) {
        assert!(begun.elapsed() < PATIENCE, "it stays among the listeners");
        again.tick().await;
    }
    let answer = wire.ask("n", json!({"type": "subscribe", "session_id": "s1"})).await.expect("an answer");
    assert_eq!(answer["type"], "subscribed", "who shows it still listens");
}

/// Covers: G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_entries_are_limited() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    store.era(holder(1, 1), true).await;
    store.accept("s", "m").await.expect("accepted");
    let mut close = async |n: usize| {
        let id = ControlId::parse(&format!("c{n}")).expect("a name");
        let user = ann().user;
        let control = Arc::new(ControlEntry { id, user, request_id: None, what: ControlRequest::Close });
        store.ask(Op::Control { key: key("s"), principal: ann(), control, create: false }).await
    };
    for n in 0..limits::CONTROL_ENTRIES_MAX {
        assert!(matches!(close(n).await, Ok(Reply::Accepted(_))), "{n}");
    }
    assert_eq!(close(limits::CONTROL_ENTRIES_MAX).await, Ok(Reply::Refused(StoreRefusal::TooMany)));
    assert!(matches!(close(0).await, Ok(Reply::Accepted(_))), "one that is there is there");
}

/// An input of a session without an owner is stored only if the session is registered for the sweep.
///
/// Covers: G9, I3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_of_an_unowned_session_requires_registration() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let _functions = StoreClient::open(&server.url(), Durability::Mem).await;
    let accept = |registered: &str| -> Vec<String> {
        let keys = ["own:{t/s}", "in:{t/s}", "dd:{t/s}"];
        let input = ["1000000", "ann", "0", "s.r", "hash", "10", "0", "{}", "21", "1000000"];
        let words = [&["FCALL", "turnway1_accept", "3"][..], &keys, &input, &[registered, "1000000", "", ""]];
        server.command(&words.concat())
    };
    for stale in ["0", "900000"] {
        assert_eq!(accept(stale)[0], "REGISTER", "{stale}");
    }
    assert_eq!(accept("990000")[0], "OK");
}

/// Removing an old registration keeps one that was made since.
///
/// Covers: G9, I3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_registration_survives_an_old_unregister() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let _functions = StoreClient::open(&server.url(), Durability::Mem).await;
    let register =
        || -> Vec<String> { server.command(&["FCALL", "turnway1_register", "1", "nidx:{n}:l", "1000000", "t/s"]) };
    let unregister = |stamp: &str| {
        let _: Value = server.command(&["FCALL", "turnway1_unregister", "1", "nidx:{n}:l", "t/s", stamp]);
        server.command::<u64>(&["ZCARD", "nidx:{n}:l"])
    };
    let first = register();
    let second = register();
    assert_eq!(unregister(&first[0]), 1, "the second one stands");
    assert_eq!(unregister(&second[0]), 0);
}
