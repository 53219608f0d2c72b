//! Tests of the Redis connection against real servers: it reconnects by itself, and requests fail at once while it
//! is down.
use redis::{Value, cmd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::tempdir;
use tokio::runtime::Handle;
use tokio::time::timeout;
use turnway::config::redis::RedisUrl;
use turnway::redis::{Line, Missed, Settings};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::redis::Redis;

fn settings() -> Settings {
    let answer_within = Duration::from_millis(500);
    Settings { name: "test", answer_within, channels: Vec::new(), hears: None }
}

fn open(redis: &Redis, settings: Settings) -> Line {
    Line::open(RedisUrl::parse(&redis.url()).expect("a URL"), settings, &Handle::current())
}

async fn until_turn(line: &mut Line, wanted: Option<u64>) {
    timeout(PATIENCE, async { while line.turned().await != wanted {} }).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connection_is_reported_at_once_and_reconnects() {
    let dir = tempdir().expect("a directory");
    let mut redis = Redis::start(dir.path(), &[]);
    let mut line = open(&redis, settings());
    until_turn(&mut line, Some(1)).await;
    assert_eq!(line.ask(&cmd("PING")).await, Ok(Value::SimpleString("PONG".into())));
    let refused = line.ask(cmd("GET").arg("a").arg("b")).await;
    assert!(matches!(&refused, Err(Missed::Refused { code, .. }) if code == "ERR"), "{refused:?}");

    redis.kill();
    until_turn(&mut line, None).await;
    assert_eq!(line.ask(&cmd("PING")).await, Err(Missed::NotSent));
    redis.restart();
    until_turn(&mut line, Some(2)).await;
    assert_eq!(line.ask(&cmd("PING")).await, Ok(Value::SimpleString("PONG".into())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_server_is_disconnected() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &[]);
    let mut line = open(&redis, settings());
    until_turn(&mut line, Some(1)).await;
    redis.signal("-STOP");
    assert_eq!(line.ask(&cmd("PING")).await, Err(Missed::Unanswered));
    until_turn(&mut line, None).await;
    assert_eq!(line.ask(&cmd("PING")).await, Err(Missed::NotSent));
    redis.signal("-CONT");
    until_turn(&mut line, Some(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_are_subscribed_again_on_each_connection() {
    let dir = tempdir().expect("a directory");
    let mut redis = Redis::start(dir.path(), &[]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (notes, bell) = (Arc::clone(&heard), Arc::new(tokio::sync::Notify::new()));
    let rings = Arc::clone(&bell);
    let hears = move |push: redis::PushInfo| {
        if push.kind == redis::PushKind::Message {
            notes.lock().expect("a list").push(push.data);
            rings.notify_one();
        }
    };
    let settings = Settings { channels: vec!["inbox:a".into()], hears: Some(Arc::new(hears)), ..settings() };
    let mut line = open(&redis, settings);
    for turn in 1..=2 {
        until_turn(&mut line, Some(turn)).await;
        let receivers: u64 = redis.command(&["PUBLISH", "inbox:a", "x"]);
        assert_eq!(receivers, 1);
        timeout(PATIENCE, bell.notified()).await.expect("heard");
        if turn == 1 {
            redis.kill();
            until_turn(&mut line, None).await;
            redis.restart();
        }
    }
    assert_eq!(heard.lock().expect("a list").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_is_not_accepted_as_a_server() {
    let dir = tempdir().expect("a directory");
    let primary = Redis::start(&dir.path().join("a"), &[]);
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = Redis::start(&dir.path().join("b"), &["--replicaof", &of]);
    let mut line = open(&replica, settings());
    assert_eq!(line.turn(), None);
    let _: Value = replica.command(&["REPLICAOF", "NO", "ONE"]);
    until_turn(&mut line, Some(1)).await;
}
