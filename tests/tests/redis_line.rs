//! Tests of the Redis connection against real servers: it reconnects by itself, and requests fail at once while it
//! is down.
use redis::{Value, cmd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::tempdir;
use tokio::runtime::Handle;
use tokio::time::timeout;
use turnway::config::redis::RedisUrl;
use turnway::redis::{RedisCommandError, RedisConnection, RedisConnectionOptions};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::redis::Redis;

fn settings() -> RedisConnectionOptions {
    let answer_within = Duration::from_millis(500);
    RedisConnectionOptions { name: "test", command_timeout: answer_within, channels: Vec::new(), push_handler: None }
}

fn open(redis: &Redis, settings: RedisConnectionOptions) -> RedisConnection {
    RedisConnection::open(RedisUrl::parse(&redis.url()).expect("a URL"), settings, &Handle::current())
}

async fn until_turn(line: &mut RedisConnection, wanted: Option<u64>) {
    timeout(PATIENCE, async { while line.wait_generation().await != wanted {} }).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connection_is_reported_at_once_and_reconnects() {
    let dir = tempdir().expect("a directory");
    let mut redis = Redis::start(dir.path(), &[]);
    let mut line = open(&redis, settings());
    until_turn(&mut line, Some(1)).await;
    assert_eq!(line.execute(&cmd("PING")).await, Ok(Value::SimpleString("PONG".into())));
    let refused = line.execute(cmd("GET").arg("a").arg("b")).await;
    assert!(matches!(&refused, Err(RedisCommandError::Refused { code, .. }) if code == "ERR"), "{refused:?}");

    redis.kill();
    until_turn(&mut line, None).await;
    assert_eq!(line.execute(&cmd("PING")).await, Err(RedisCommandError::NotSent));
    redis.restart();
    until_turn(&mut line, Some(2)).await;
    assert_eq!(line.execute(&cmd("PING")).await, Ok(Value::SimpleString("PONG".into())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_server_is_disconnected() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &[]);
    let mut line = open(&redis, settings());
    until_turn(&mut line, Some(1)).await;
    redis.signal("-STOP");
    assert_eq!(line.execute(&cmd("PING")).await, Err(RedisCommandError::Unanswered));
    until_turn(&mut line, None).await;
    assert_eq!(line.execute(&cmd("PING")).await, Err(RedisCommandError::NotSent));
    redis.signal("-CONT");
    until_turn(&mut line, Some(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_are_subscribed_again_on_each_connection() {
    let dir = tempdir().expect("a directory");
    let mut redis = Redis::start(dir.path(), &[]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&heard);
    let bell = Arc::new(tokio::sync::Notify::new());
    let rings = Arc::clone(&bell);
    let hears = move |push: redis::PushInfo| {
        if push.kind == redis::PushKind::Message {
            notes.lock().expect("a list").push(push.data);
            rings.notify_one();
        }
    };
    let settings =
        RedisConnectionOptions { channels: vec!["inbox:a".into()], push_handler: Some(Arc::new(hears)), ..settings() };
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
    assert_eq!(line.generation(), None);
    let _: Value = replica.command(&["REPLICAOF", "NO", "ONE"]);
    until_turn(&mut line, Some(1)).await;
}
