//! A server that would not keep the promise is refused, with what would have to be done.
use crate::desk::{Desk, accept};
use redis::Value;
use tempfile::tempdir;
use turnway::config::Durability;
use turnway::store::redis::Options;
use turnway_core::store::{Op, Refused, Reply};
use turnway_tests::real::command::run;
use turnway_tests::real::redis::{Redis, free_port};

/// Covers: S-42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_is_not_given_is_refused_before_anybody_is_served() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let serve = |level: &'static str, url: String| {
        let dir = dir.path().to_owned();
        async move {
            let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--durability", level];
            run(&dir, &[&args[..], &["--store", &url]].concat(), &[]).await
        }
    };
    let ended = serve("fsync", server.url()).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    for said in ["not fsync but mem", "`appendonly yes`", "`appendfsync always`", "`store.durability` mem"] {
        assert!(ended.err.contains(said), "{said}: {}", ended.err);
    }
    let _: Value = server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    let ended = serve("fsync+replica", server.url()).await;
    assert_eq!(ended.code, Some(69));
    for said in ["not fsync+replica but os", "`appendfsync always`", "connect a replica"] {
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

/// A full server refuses new inputs, and lets what is under way end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_takes_nothing_new_and_lets_the_rest_end() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut desk = Desk::open(&server.url(), Durability::Mem).await;
    let me = crate::desk::holder(1, 1);
    desk.era(me, true).await;
    let taken = desk.accept("s", "m1").await.expect("accepted");
    let _: Value = server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    assert_eq!(desk.ask(accept("s", "m2")).await, Ok(Reply::Refused(Refused::Full)));
    let claimed = desk.claim("s", me, taken.owner).await;
    let Op::Accept { input, .. } = accept("s", "m1") else { unreachable!("an accept") };
    let append = turnway_core::store::Append {
        key: crate::desk::key("s"),
        token: claimed.token,
        after: claimed.tail.seq,
        facts: Vec::new(),
        ends: vec![(taken.place, input.run_id.clone())],
        answers: Vec::new(),
        closed: None,
        known: claimed.version,
    };
    assert!(matches!(desk.ask(Op::Append(Box::new(append))).await, Ok(Reply::Appended { .. })));
    desk.era(me, false).await;
    let _: Value = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    desk.accept("s", "m2").await.expect("accepted");
}

/// Before a node is told of trouble, nothing is kept for later: an op without a connection did not happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_connection_an_op_is_answered_at_once() {
    let dir = tempdir().expect("a directory");
    let mut server = Redis::start(dir.path(), &[]);
    let options = Options { durability: Durability::Mem, ..Options::default() };
    let mut desk = Desk::try_open(&server.url(), options).await.expect("a store");
    server.kill();
    desk.store.lost().await;
    let began = std::time::Instant::now();
    for n in 0..100 {
        let answer = desk.ask(accept("s", &format!("m{n}"))).await;
        assert_eq!(answer, Err(turnway_core::store::StoreError::Unavailable));
    }
    assert!(began.elapsed() < std::time::Duration::from_millis(500), "{:?}", began.elapsed());
}
