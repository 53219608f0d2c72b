//! Tests that a server without the required durability is refused, with the changes that it needs.
use crate::store_client::{StoreClient, accept};
use redis::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;
use turnway::config::Durability;
use turnway::store::redis::RedisStoreOptions;
use turnway_core::store::{Op, Reply, StoreError, StoreRefusal};
use turnway_core::time::Mono;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::run;
use turnway_tests::real::node::binary;
use turnway_tests::real::redis::{Redis, free_port};

/// Covers: S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_durability_is_refused_at_startup() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let serve = |level: &'static str, url: String| {
        let dir = dir.path().to_owned();
        async move {
            let args =
                ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic", "off", "--durability", level];
            // Do not wait for a server that is down.
            let env = [("TURNWAY_STORE_WAIT", "0s")];
            run(&dir, &[&args[..], &["--store", &url]].concat(), &env).await
        }
    };
    let ended = serve("fsync", server.url()).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    for said in ["durability mem, not fsync", "`appendonly yes`", "`appendfsync always`", "`store.durability` to mem"] {
        assert!(ended.err.contains(said), "{said}: {}", ended.err);
    }
    let _: Value = server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    let ended = serve("fsync+replica", server.url()).await;
    assert_eq!(ended.code, Some(69));
    for said in ["durability os, not fsync+replica", "`appendfsync always`", "connect a replica"] {
        assert!(ended.err.contains(said) && !ended.err.contains("appendonly"), "{said}: {}", ended.err);
    }
    let _: Value = server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let ended = serve("mem", server.url()).await;
    assert_eq!(ended.code, Some(69));
    assert!(ended.err.contains("`maxmemory-policy noeviction`"), "{}", ended.err);
    let ended = serve("mem", format!("redis://ann:hunter2@127.0.0.1:{}", free_port())).await;
    assert_eq!(ended.code, Some(69));
    assert!(ended.err.contains("refused") && !ended.err.contains("hunter2"), "{}", ended.err);
}

/// A full server refuses new inputs and lets open turns end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_refuses_inputs_and_lets_open_turns_end() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    let me = crate::store_client::holder(1, 1);
    store.era(me, true).await;
    let taken = store.accept("s", "m1").await.expect("accepted");
    let _: Value = server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    assert_eq!(store.ask(accept("s", "m2")).await, Ok(Reply::Refused(StoreRefusal::Full)));
    let claimed = store.claim("s", me, taken.owner).await;
    let Op::Accept { input, .. } = accept("s", "m1") else { unreachable!("an accept") };
    let append = turnway_core::store::Append {
        key: crate::store_client::key("s"),
        token: claimed.token,
        after: claimed.view.tail.seq,
        facts: Vec::new(),
        ends: vec![(taken.position, input.run_id.clone())],
        answers: Vec::new(),
        closed: None,
        annotations: Vec::new(),
        known_listeners: claimed.version,
    };
    assert!(matches!(store.ask(Op::Append(Box::new(append))).await, Ok(Reply::Appended { .. })));
    store.era(me, false).await;
    let _: Value = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    store.accept("s", "m2").await.expect("accepted");
}

/// Nothing is queued without a connection: the operation is answered at once and did not happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operation_without_a_connection_fails_at_once() {
    let dir = tempdir().expect("a directory");
    let mut server = Redis::start(dir.path(), &[]);
    let options = RedisStoreOptions { durability: Durability::Mem, ..RedisStoreOptions::default() };
    let mut store = StoreClient::try_open(&server.url(), options).await.expect("a store");
    server.kill();
    store.store.disconnected().await;
    let began = Instant::now();
    for n in 0..100 {
        let answer = store.ask(accept("s", &format!("m{n}"))).await;
        assert_eq!(answer, Err(StoreError::Unavailable));
    }
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
}

/// A server whose settings changed, as after a failover, can be read, and writes are refused because their
/// durability is no longer met.
///
/// Covers: S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_reduced_durability_accepts_no_writes() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let mut store = StoreClient::open(&server.url(), Durability::Fsync).await;
    store.accept("s", "m1").await.expect("accepted");
    let _: Value = server.command(&["CONFIG", "SET", "appendfsync", "everysec"]);
    let mut other = server.connection();
    let _: Value = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut other).expect("cut");
    // The next connection is usable at once, but only for reads.
    let read = Op::Lease { node: turnway_core::id::NodeId(1), sent: Mono::default() };
    while store.ask(read.clone()).await.is_err() {}
    assert_eq!(store.ask(accept("s", "m2")).await, Err(StoreError::Unavailable));
    let there: usize = server.command(&["XLEN", "in:{default/s}"]);
    assert_eq!(there, 1);
    let _: Value = server.command(&["CONFIG", "SET", "appendfsync", "always"]);
    timeout(PATIENCE, store.store.ready()).await.expect("it is good again");
    store.accept("s", "m2").await.expect("accepted");
}

/// A node on a Redis that only speaks TLS, with a certificate of `tests/tls`: self-made for this machine's own
/// address, valid for a hundred years.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rediss_url_uses_tls() {
    let dir = tempdir().expect("a directory");
    let tls = Path::new(env!("CARGO_MANIFEST_DIR")).join("tls");
    let file = |name: &str| tls.join(name).display().to_string();
    let port = free_port().to_string();
    let ca = file("ca.pem");
    let own = file("server.pem");
    let secret = file("server.key");
    let args = ["--tls-port", &port, "--tls-auth-clients", "no"];
    let files = ["--tls-ca-cert-file", &ca, "--tls-cert-file", &own, "--tls-key-file", &secret];
    let server = Redis::start(&dir.path().join("redis"), &[&args[..], &files].concat());
    let url = format!("rediss://localhost:{port}");
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--quic",
        "off",
        "--durability",
        "mem",
        "--store",
    ];
    let serve = [&serve[..], &[&url]].concat();

    let stranger = run(dir.path(), &serve, &[]).await;
    assert_eq!(stranger.code, Some(69), "{stranger:?}");
    assert!(stranger.err.contains("ertificate"), "{}", stranger.err);
    let mut node = Command::new(binary())
        .args(&serve)
        .env("SSL_CERT_FILE", &ca)
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the node's binary starts");
    let mut lines = BufReader::new(node.stdout.take().expect("piped")).lines();
    let ready = timeout(PATIENCE, lines.next_line()).await.expect("in time").expect("a line");
    assert!(ready.is_some_and(|line| line.starts_with("turnway ready ")));
    let functions: Vec<u64> = server.command(&["FCALL_RO", "turnway1_version", "0"]);
    assert_eq!(functions.len(), 1);
}
