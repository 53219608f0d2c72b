//! The memory that long calls take: each holds a part of what the node's users share, and gives it back.
use super::files::{MIB, call, data_url, reading_node};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::{PATIENCE, amount, figure};

/// Growth of the resident memory that long calls at a time may cause: three times the bytes that they may hold together, and
/// what the allocator keeps.
const GROWTH_KIB_MAX: u64 = 512 * 1024;

/// Covers: S-11, G8.
#[tokio::test]
async fn long_requests_release_their_read_capacity() {
    let dir = tempdir().expect("a directory");
    let (node, _agents) = reading_node(dir.path(), "").await;
    let ann = Web::new(node.http, Some("ann"));
    let earlier = json!({"role": "user", "content": "x".repeat(4 * MIB)});
    let messages = json!([earlier, {"role": "user", "content": "hi"}]);
    let body = json!({"model": "agent/nobody", "messages": messages}).to_string();
    // More than the node has for all calls at a time.
    for n in 0..40 {
        let json_ = [("content-type", "application/json")];
        let reply = ann.ask("POST", "/v1/chat/completions", &json_, &body).await;
        assert_eq!(reply.status, 404, "{n}: {}", reply.text);
    }
}

/// Returns the value of a metric of the room for calls.
async fn metric(node: &Node, name: &str) -> u64 {
    let page = Web::new(node.admin, None).get("/metrics").await.text;
    let line = format!("{name}{{resource=\"call_bytes\"}} ");
    let value = page.lines().find_map(|other| other.strip_prefix(&line)).expect("the metric");
    value.parse().expect("a number")
}

/// Sends the beginning of a call, whose length the node learns from the head.
async fn begin(node: &Node, user: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(node.http).await.expect("a connection");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nx-user-id: {user}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        node.http,
        body.len()
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    socket
}

/// Covers: PR-24, S-48, G8.
#[tokio::test]
async fn long_calls_at_a_time_use_bounded_memory() {
    let dir = tempdir().expect("a directory");
    let (node, _agents) = reading_node(dir.path(), "").await;
    let count = amount("LONG_CALLS", 20) as u64;
    let url = data_url("image/png", &random_bytes(1, 9 * MIB - 1024));
    let part = json!({"type": "image_url", "image_url": {"url": url}});
    let messages = json!([{"role": "user", "content": [part]}]);
    let body = json!({"model": "agent/a", "messages": messages}).to_string();
    let warm = call(&Web::new(node.http, Some("ann")), &[], &json!([{"role": "user", "content": "hi"}])).await;
    assert_eq!(warm.status, 200, "{}", warm.text);
    let before = node.resident_kib();
    let mut sockets = Vec::new();
    for number in 0..count {
        sockets.push(begin(&node, &format!("user-{number}"), &body).await);
    }
    // Each call has its room or is refused, before its first byte.
    let decided = async {
        let mut looks = interval(Duration::from_millis(50));
        loop {
            looks.tick().await;
            let held = metric(&node, "turnway_link_held").await / body.len() as u64;
            let refused = metric(&node, "turnway_link_over_total").await;
            if held + refused >= count {
                return refused;
            }
        }
    };
    let refused = timeout(PATIENCE, decided).await.expect("each call is decided");
    assert!(refused > 0 && refused < count, "{refused} of {count} refused");
    let answers = join_all(sockets.into_iter().map(|socket| finish(socket, &body)));
    tokio::pin!(answers);
    let mut looks = interval(Duration::from_millis(20));
    let mut peak = before;
    let answers = loop {
        tokio::select! {
            answers = &mut answers => break answers,
            _ = looks.tick() => peak = peak.max(node.resident_kib()),
        }
    };
    let grown = peak.saturating_sub(before);
    figure("growth during the calls, KiB", grown);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB for {count} calls");
    let answered = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count();
    let limited = |answer: &&String| {
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let error: Value = serde_json::from_str(body).expect("JSON");
        head.starts_with("HTTP/1.1 429") && head.contains("retry-after") && error["error"]["code"] == "over_share"
    };
    let limited = answers.iter().filter(limited).count();
    assert_eq!((answered as u64, limited as u64), (count - refused, refused));
    let returned = async {
        let mut looks = interval(Duration::from_millis(50));
        while metric(&node, "turnway_link_held").await > 0 {
            looks.tick().await;
        }
    };
    timeout(PATIENCE, returned).await.expect("the room is back");
}

/// Sends the body of a call, and returns the whole answer.
async fn finish(mut socket: TcpStream, body: &str) -> String {
    // The answer of a refused call may come before its end.
    let _ = socket.write_all(body.as_bytes()).await;
    let mut answer = String::new();
    timeout(4 * PATIENCE, socket.read_to_string(&mut answer)).await.expect("in time").expect("readable");
    answer
}
