//! Tests nodes whose Redis is in another region: every answer is delayed, and turns still complete.
use crate::refusals::until_ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Chunks in flight in one direction of one connection.
const UNDER_WAY_MAX: usize = 4096;

/// A TCP proxy that delays all bytes, in each direction.
struct DelayProxy {
    port: u16,
    way_ms: Arc<AtomicU64>,
}

impl DelayProxy {
    async fn to(port: u16, way_ms: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let way_ms = Arc::new(AtomicU64::new(way_ms));
        let way = Arc::clone(&way_ms);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                carry(from_client, to_server, Arc::clone(&way));
                carry(from_server, to_client, Arc::clone(&way));
            }
        });
        Self { port: own, way_ms }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way_ms: Arc<AtomicU64>) {
    let (send, mut under_way) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY_MAX);
    tokio::spawn(async move {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            let due = Instant::now() + Duration::from_millis(way_ms.load(Ordering::Relaxed));
            if send.send((due, bytes[..count].to_vec())).await.is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move {
        while let Some((due, bytes)) = under_way.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    });
}

async fn turn(node: &Node, session: &str) {
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    // Just after a node has got its lease, its first answers may be late.
    let mut tries = 0;
    let accepted = loop {
        let answer = wire.ask(session, invoke(session, "echo", "hello")).await.expect("an answer");
        tries += 1;
        if answer["type"] == "turn_accepted" || tries == 5 {
            break answer;
        }
    };
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    let done = wire.until(|message| message["type"] == "done").await.expect("the turn ends");
    assert_eq!(done["status"], "completed", "{done}");
}

/// Covers: G9, S-46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_complete_with_a_distant_redis() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let far = DelayProxy::to(server.port, 160).await;
    let node = Node::start_on(&far.url(), dir.path(), &["--demo", "--durability", "mem"]).await;
    until_ready(node.admin, 200, "true").await;
    turn(&node, "s1").await;
}

/// Covers: G9, S-46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_complete_while_redis_latency_grows() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(&dir.path().join("redis"), &[]);
    let far = DelayProxy::to(server.port, 5).await;
    let node = Node::start_on(&far.url(), dir.path(), &["--demo", "--durability", "mem"]).await;
    for (n, way_ms) in [100, 300, 450].into_iter().enumerate() {
        far.way_ms.store(way_ms, Ordering::Relaxed);
        turn(&node, &format!("s{n}")).await;
        until_ready(node.admin, 200, "true").await;
    }
}
