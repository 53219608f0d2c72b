//! Connections that send nothing, or only a part of a request.
use super::call;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;
use turnway_tests::real::{PATIENCE, figure};

/// Number of concurrent connections of each kind.
const MANY: usize = 1_000;
/// Tolerance on a busy machine for the limits: 5 s for a header and a hello, 10 s for a body.
const SLACK: Duration = Duration::from_secs(5);
/// Interval of the bytes of a slow client.
const PACE: Duration = Duration::from_millis(500);
/// Memory allowed for a thousand such connections: 32 KiB each, 16 KiB of which are for the header.
const MEMORY_KIB_MAX: u64 = 32 * 1024;

const SHAKE: &str = "GET /v1/connect HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const HALF_A_HEAD: &str = "GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: ";
const HALF_A_BODY: &str = "POST /v1/sessions/s1/turns HTTP/1.1\r\nhost: localhost\r\n\
    content-type: application/json\r\ncontent-length: 5000\r\n\r\n{\"a\":\"";

/// Sends these bytes, then single bytes if `slow`, and returns the time until the node closes the connection.
async fn linger(to: SocketAddr, said: &'static str, slow: bool) -> Duration {
    let mut stream: TcpStream = call([127, 0, 0, 1], to, said.as_bytes()).await;
    let begun = Instant::now();
    let mut pace = interval(PACE);
    let mut unread = [0; 1024];
    let gone = async {
        loop {
            tokio::select! {
                read = stream.read(&mut unread) => match read {
                    Ok(count) if count > 0 => {}
                    Ok(_) | Err(_) => return,
                },
                _ = pace.tick(), if slow => {
                    // A failed write is noticed by the read.
                    let _ = stream.write_all(b"a").await;
                }
            }
        }
    };
    timeout(2 * PATIENCE, gone).await.expect("it is let go");
    begun.elapsed()
}

/// Runs `count` such connections at once while another client is served. Returns the longest time until a
/// close, and the node's peak memory in KiB.
async fn flood(node: &Node, count: usize, said: &'static str, slow: bool) -> (Duration, u64) {
    let mut bystander = WebSocketClient::hello(node.http, "bystander", vec![]).await.expect("welcome");
    let mut all = JoinSet::new();
    for _ in 0..count {
        all.spawn(linger(node.http, said, slow));
    }
    let mut longest = Duration::ZERO;
    let mut turns = 0;
    let mut peak = 0;
    while !all.is_empty() {
        let id = format!("t{turns}");
        let session = format!("{}-{slow}-{count}", said.len());
        let (text, _) = bystander.turn(&session, "echo", &id, "hi").await.expect("served");
        assert_eq!(text, "hi");
        turns += 1;
        peak = peak.max(node.resident_kib());
        while let Some(stayed) = all.try_join_next() {
            longest = longest.max(stayed.expect("it ends"));
        }
        if !all.is_empty() {
            longest = longest.max(all.join_next().await.expect("one is there").expect("it ends"));
        }
    }
    (longest, peak)
}

/// Covers: S-04, S-10, S-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_partial_connections_time_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    let before = node.resident_kib();
    for (what, count, said, slow, limit) in [
        ("silent", MANY, "", false, 5),
        ("slow header", MANY, HALF_A_HEAD, true, 5),
        ("no hello", MANY, SHAKE, false, 5),
        ("slow body", MANY / 5, HALF_A_BODY, true, 10),
    ] {
        let (longest, peak) = flood(&node, count, said, slow).await;
        let grown = peak.saturating_sub(before);
        figure(what, format!("{count} gone within {longest:?}, the node had grown by {grown} KiB"));
        assert!(grown < MEMORY_KIB_MAX, "{what}: {grown} KiB");
        assert!(longest < Duration::from_secs(limit) + SLACK, "{what}: {longest:?}");
    }
    // The other clients' connections may not be closed yet.
    let nobody = "turnway_link_connections{transport=\"websocket\"} 0\n";
    let begun = Instant::now();
    let mut metrics = String::new();
    while !metrics.contains(nobody) {
        assert!(begun.elapsed() < PATIENCE, "{nobody} is not in {metrics}");
        metrics = get(node.admin, "/metrics").await.expect("metrics").1;
    }
    let late = format!("turnway_link_closes_total{{code=\"4408\",transport=\"websocket\"}} {MANY}\n");
    assert!(metrics.contains(&late), "{late} is not in {metrics}");
    node.must_run();
}
