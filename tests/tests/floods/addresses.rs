//! Limits on connections by client address, and the addresses that proxies report.
use super::{call, head, rest};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::haproxy;
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::free_port;
use turnway_tests::real::wire::WebSocketClient;

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

async fn node(dir: &Path, args: &[&str]) -> Node {
    Node::start_on("memory:", dir, &[&["--demo"], args].concat()).await
}

/// Opens a connection that stays open and returns the status of its answer, or 0 without an answer.
async fn ask(from: [u8; 4], to: SocketAddr, before: &[u8]) -> (u16, TcpStream) {
    let mut stream = call(from, to, &[before, GET].concat()).await;
    let head = head(&mut stream).await;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, stream)
}

async fn counted(node: &Node, outcome: &str, count: u32) {
    let (_, metrics) = get(node.admin, "/metrics").await.expect("metrics");
    let sample = format!("turnway_link_handshakes_total{{outcome=\"{outcome}\"}} {count}\n");
    assert!(metrics.contains(&sample), "{sample} is not in {metrics}");
}

/// Covers: S-16.
#[tokio::test]
async fn connections_per_address_are_limited() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &["--per-address", "4"]).await;
    let mut inside = Vec::new();
    for _ in 0..4 {
        let (status, stream) = ask([127, 0, 0, 2], node.http, b"").await;
        assert_eq!(status, 200);
        inside.push(stream);
    }
    let refused = rest(call([127, 0, 0, 2], node.http, GET).await).await;
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("\r\nretry-after: "), "{refused}");
    counted(&node, "crowded", 1).await;
    // Other addresses are admitted, and WebSockets count too.
    assert_eq!(ask([127, 0, 0, 3], node.http, b"").await.0, 200);
    let mut links = Vec::new();
    for _ in 0..4 {
        links.push(WebSocketClient::hello(node.http, "ann", vec![]).await.expect("room"));
    }
    assert!(WebSocketClient::hello(node.http, "ann", vec![]).await.is_err(), "the fifth from 127.0.0.1");
    // A closed connection frees its slot.
    inside.pop();
    let begun = Instant::now();
    while ask([127, 0, 0, 2], node.http, b"").await.0 != 200 {
        assert!(begun.elapsed() < PATIENCE, "nobody left");
    }
}

/// Does not limit connections from this machine unless configured.
///
/// Covers: S-16.
#[tokio::test]
async fn loopback_connections_are_unlimited_by_default() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &[]).await;
    let mut inside = Vec::new();
    for _ in 0..150 {
        let (status, stream) = ask([127, 0, 0, 1], node.http, b"").await;
        assert_eq!(status, 200);
        inside.push(stream);
    }
}

/// Covers: S-49, S-16.
#[tokio::test]
async fn trusted_proxy_reports_the_client_address() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &["--proxies", "127.0.0.2", "--per-address", "2"]).await;
    let proxy = [127, 0, 0, 2];
    let one = b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\r\n";
    let other = b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 443\r\n";
    let _first = ask(proxy, node.http, one).await;
    let _second = ask(proxy, node.http, one).await;
    assert_eq!((_first.0, _second.0), (200, 200));
    assert_eq!(ask(proxy, node.http, one).await.0, 429);
    assert_eq!(ask(proxy, node.http, other).await.0, 200);
    // The proxy's own connection, in the binary form of the protocol.
    let own = [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[0x20, 0, 0, 0]].concat();
    assert_eq!(ask(proxy, node.http, &own).await.0, 200);
    counted(&node, "crowded", 1).await;
    // A trusted proxy must send the header, and in time.
    assert_eq!(rest(call(proxy, node.http, GET).await).await, "");
    assert_eq!(rest(call(proxy, node.http, b"PROXY TCP4 192.0.2.7").await).await, "");
    counted(&node, "unnamed", 2).await;
}

/// Uses the socket's address for any peer that is no configured proxy, whatever it sends.
///
/// Covers: S-49.
#[tokio::test]
async fn proxy_headers_of_untrusted_peers_are_ignored() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &["--proxies", "127.0.0.2", "--per-address", "2"]).await;
    let said = b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\r\n";
    assert_eq!(ask([127, 0, 0, 3], node.http, said).await.0, 400);
    let mut inside = Vec::new();
    for n in 0..3 {
        let head = format!(
            "GET / HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: 192.0.2.{n}\r\nforwarded: for=192.0.2.{n}\r\n\r\n"
        );
        let mut stream = call([127, 0, 0, 4], node.http, head.as_bytes()).await;
        inside.push((self::head(&mut stream).await, stream));
    }
    let statuses: Vec<&str> = inside.iter().map(|(head, _)| head.split(' ').nth(1).unwrap_or_default()).collect();
    assert_eq!(statuses, ["200", "200", "429"]);
}

/// Runs HAProxy, configured by its manual, in front of a node that trusts it.
///
/// Covers: S-49.
#[tokio::test]
async fn haproxy_proxy_protocol_headers_are_accepted() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &["--proxies", "127.0.0.1", "--per-address", "3"]).await;
    for send in ["send-proxy", "send-proxy-v2"] {
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let config = dir.path().join(format!("{send}.cfg"));
        let text = format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
             listen front\n bind {at}\n server n1 {} {send}\n",
            node.http
        );
        std::fs::write(&config, text).expect("written");
        let mut command = Command::new(haproxy::binary());
        command.args(["-db", "-f"]).arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _front = command.kill_on_drop(true).spawn().expect("it starts");
        let serves = async {
            while TcpStream::connect(at).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, serves).await.expect("it serves in time");
        // Three connections from one address are admitted and a fourth is refused, though all come through
        // the proxy.
        let mut wire = WebSocketClient::hello(at, "ann", vec![]).await.expect("welcome");
        let (text, _) = wire.turn(send, "echo", "r1", "hi").await.expect("a turn");
        assert_eq!(text, "hi");
        let mut inside = Vec::new();
        for _ in 0..3 {
            inside.push(ask([127, 0, 0, 5], at, b"").await);
        }
        assert_eq!(inside.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 200, 200]);
        assert_eq!(ask([127, 0, 0, 5], at, b"").await.0, 429);
    }
}

/// Frees the node's slot of each connection that is refused for its address.
///
/// Covers: S-16.
#[tokio::test]
async fn refused_connections_free_their_slots() {
    let dir = tempfile::tempdir().expect("a directory");
    // The node has room for eight connections.
    let node = Node::start_with_files(395, "memory:", dir.path(), &["--per-address", "2"]).await;
    let _inside = (ask([127, 0, 0, 2], node.http, b"").await, ask([127, 0, 0, 2], node.http, b"").await);
    for n in 0..12 {
        let refused = rest(call([127, 0, 0, 2], node.http, GET).await).await;
        assert!(refused.starts_with("HTTP/1.1 429 "), "{n}: {refused}");
    }
    let begun = Instant::now();
    while ask([127, 0, 0, 3], node.http, b"").await.0 != 200 {
        assert!(begun.elapsed() < PATIENCE, "the node is full of those it has turned away");
    }
}
