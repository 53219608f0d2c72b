//! Tests a Redis outage: requests fail at once and do not hang, answers with an unknown outcome are reported as
//! such, and the store reconnects soon after the server is back, without a reconnect storm.
use crate::store_client::{StoreClient, accept, holder};
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::net::TcpListener;
use tokio::time::timeout;
use turnway::config::Durability;
use turnway::store::Store;
use turnway_core::store::{Reply, StoreError};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{PATIENCE, figure, size};

/// Longest time for an answer: the store's own timeout, and slack for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(4);
/// Longest time until the store is ready again.
const BACK_WITHIN: Duration = Duration::from_secs(3);
const ASKED: usize = 50;

async fn refused_at_once(store: &mut StoreClient) {
    let began = Instant::now();
    for n in 0..ASKED {
        let answer = store.ask(accept("refused", &format!("m{n}"))).await;
        assert_eq!(answer, Err(StoreError::Unavailable));
    }
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
}

async fn back(store: &StoreClient, what: &str) {
    let began = Instant::now();
    timeout(PATIENCE, store.store.ready()).await.expect("it is back");
    figure(&format!("the store is back after {what}, ms"), began.elapsed().as_millis());
    assert!(began.elapsed() < BACK_WITHIN, "{:?}", began.elapsed());
}

/// The server is stopped: it neither answers nor closes connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_server_is_left_and_reconnected() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    store.era(holder(1, 1), true).await;
    server.signal("-STOP");
    let began = Instant::now();
    (0..ASKED).for_each(|n| store.store.submit(accept("s", &format!("m{n}"))));
    for _ in 0..ASKED {
        assert_eq!(store.answer().await, Err(StoreError::Unknown));
    }
    assert!(began.elapsed() < ANSWERED_WITHIN, "{:?}", began.elapsed());
    timeout(ANSWERED_WITHIN, store.store.disconnected()).await.expect("it is left");
    refused_at_once(&mut store).await;
    server.signal("-CONT");
    back(&store, "a stop").await;
    for n in 0..ASKED {
        let (reply, _) = store.ask_until(&accept("s", &format!("m{n}"))).await;
        // Either the inbox was full by then, or the input is stored once.
        assert!(matches!(reply, Reply::Accepted(_) | Reply::Refused(_)), "{reply:?}");
    }
    let there: usize = server.command(&["XLEN", "in:{default/s}"]);
    let taken: usize = server.command(&["HLEN", "dd:{default/s}"]);
    assert_eq!(there, taken);
    assert_eq!(server.command::<usize>(&["EXISTS", "own:{default/refused}"]), 0);
}

/// A server that loads its data accepts connections and answers no command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loading_server_counts_as_unavailable() {
    let dir = tempdir().expect("a directory");
    let slow = ["--appendonly", "yes", "--appendfsync", "no", "--key-load-delay", "1000"];
    let mut server = Redis::start(dir.path(), &slow);
    let mut store = StoreClient::open(&server.url(), Durability::Os).await;
    for n in 0..size("REDIS_LOAD_SESSIONS", 300) {
        store.accept(&format!("s{n}"), "m").await.expect("accepted");
    }
    server.kill();
    timeout(ANSWERED_WITHIN, store.store.disconnected()).await.expect("it is left");
    let (sender, loaded) = tokio::sync::oneshot::channel();
    let restarting = tokio::task::spawn_blocking(move || {
        server.restart();
        // The receiver is gone if the test has failed.
        let _ = sender.send(());
        server
    });
    let mut loaded = std::pin::pin!(loaded);
    let mut asked = 0;
    while timeout(Duration::from_millis(50), loaded.as_mut()).await.is_err() {
        refused_at_once(&mut store).await;
        asked += 1;
    }
    assert!(asked > 5, "it loaded too quickly to see anything: {asked}");
    let _server = restarting.await.expect("it is there again");
    back(&store, "loading").await;
    let again = store.accept("s0", "m").await.expect("accepted");
    assert!(again.duplicate);
}

/// A listener in the place of the server accepts connections and closes them at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnect_attempts_back_off() {
    let dir = tempdir().expect("a directory");
    let mut server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    server.kill();
    timeout(ANSWERED_WITHIN, store.store.disconnected()).await.expect("it is left");
    let listener = TcpListener::bind(("127.0.0.1", server.port)).await.expect("its port is free");
    let mut knocks = Vec::new();
    // Seven from each of the store's two connections.
    while knocks.len() < 14 {
        let (stream, _) = timeout(PATIENCE, listener.accept()).await.expect("in time").expect("a knock");
        drop(stream);
        knocks.push(Instant::now());
        assert_eq!(store.ask(accept("s", "m")).await, Err(StoreError::Unavailable));
    }
    let took = knocks[13] - knocks[0];
    figure("14 knocks of two lines took, ms", took.as_millis());
    assert!(took > Duration::from_millis(1200), "{took:?}");
    let longest = knocks.windows(2).map(|two| two[1] - two[0]).max().expect("some");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    drop(listener);
    server.restart();
    back(&store, "an outage").await;
    store.accept("s", "m").await.expect("accepted");
}
