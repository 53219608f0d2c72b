//! Tests the `turnway` binary as an operator uses it: startup, health pages, metrics, refused input, limits, and
//! shutdown.
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, interval, timeout};
use turnway_core::limits;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::{Node, binary};
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Runs the binary to its end; returns exit code, stdout, stderr.
async fn run(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(binary());
    command.args(args).envs(env.iter().copied()).current_dir(dir).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await.expect("it ends").expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Sends bytes and reads until the peer closes the connection.
async fn exchange(to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.expect("a listener");
    // A node that has read enough may have closed the connection already.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it hangs up");
    answer
}

/// Sends one HTTP request with exactly these headers; returns the status and the whole response.
async fn ask(to: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    let answer = String::from_utf8(exchange(to, request.as_bytes()).await).expect("UTF-8");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, answer)
}

async fn get(to: SocketAddr, path: &str) -> (u16, String) {
    ask(to, "GET", path, &format!("host: {to}\r\n")).await
}

/// Performs a WebSocket handshake and sends raw bytes; returns the response head and the frames after it.
async fn frames(to: SocketAddr, headers: &str, bytes: &[u8]) -> (String, Vec<u8>) {
    let head = format!(
        "GET /v1/connect HTTP/1.1\r\nhost: {to}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    let answer = exchange(to, &[head.as_bytes(), bytes].concat()).await;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("an HTTP answer") + 4;
    (String::from_utf8(answer[..end].to_vec()).expect("UTF-8"), answer[end..].to_vec())
}

/// Returns the close code of the last frame.
fn close_code(mut frames: &[u8]) -> Option<u16> {
    loop {
        let op = frames.first()? & 15;
        let short = usize::from(frames.get(1)? & 127);
        let (skip, length) = match short {
            126 => (4, usize::from(u16::from_be_bytes([*frames.get(2)?, *frames.get(3)?]))),
            _ => (2, short),
        };
        let body = frames.get(skip..skip + length)?;
        if op == 8 {
            return Some(u16::from_be_bytes([*body.first()?, *body.get(1)?]));
        }
        frames = &frames[skip + length..];
    }
}

/// Builds a masked frame (with a mask of zeros) whose header claims `length` bytes.
fn frame(first: u8, length: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match u16::try_from(length) {
        Ok(short) if short < 126 => frame.push(0x80 | u8::try_from(short).expect("short")),
        Ok(medium) => {
            frame.push(0x80 | 126);
            frame.extend(medium.to_be_bytes());
        }
        Err(_) => {
            frame.push(0x80 | 127);
            frame.extend(length.to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(body);
    frame
}

#[tokio::test]
async fn node_prints_its_addresses_and_is_ready() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    assert_eq!(get(node.admin, "/livez").await.0, 200);
    assert_eq!(get(node.admin, "/readyz").await.0, 200);
    let (status, body) = get(node.http, "/").await;
    assert!(status == 200 && body.contains("\"version\""), "{body}");
    assert_eq!(get(node.http, "/metrics").await.0, 404, "operators' pages are not public");
    assert_eq!(get(node.http, "/v1/connect").await.0, 426);
    let mut said = Vec::new();
    while !said.last().is_some_and(|line: &String| line.contains("turnway chat")) {
        said.push(node.line().await.expect("a line to try"));
    }
    assert!(said.iter().any(|line| line.contains("/v1/connect")), "{said:?}");
}

#[tokio::test]
async fn traffic_is_counted_and_content_is_not_logged() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "canary-user-81c2", vec![]).await.expect("welcome");
    let (said, _) = wire.turn("s1", "echo", "r1", "canary-text-5d7e").await.expect("a turn");
    assert_eq!(said, "canary-text-5d7e");
    wire.say(json!({"type": "nonsense", "canary-key-99aa": "canary-value-77bb"})).await.expect("said");
    wire.until(|answer| answer["type"] == "error").await.expect("an error");
    let (status, metrics) = get(node.admin, "/metrics").await;
    assert_eq!(status, 200);
    for sample in [
        "turnway_build_info{version=\"",
        "turnway_link_connections{transport=\"websocket\"} 1\n",
        "turnway_link_handshakes_total{outcome=\"admitted\"} 1\n",
        "turnway_link_messages_total{direction=\"in\"} 3\n",
        "turnway_store_ops_total{op=\"accept\",outcome=\"answered\"} 1\n",
        "turnway_store_op_seconds_count{op=\"append\"} ",
        "turnway_store_commits_total ",
        "turnway_store_commit_seconds_count ",
        "turnway_store_batch_ops_count ",
        "turnway_agent_calls_total{outcome=\"done\"} 1\n",
        "turnway_driver_round_seconds_count ",
        "process_resident_memory_bytes ",
    ] {
        assert!(metrics.contains(sample), "{sample} is not in {metrics}");
    }
    for text in [&metrics, &node.log()] {
        assert!(!text.contains("canary"), "{text}");
    }
}

/// Requests are counted by route, and connections while they are open.
#[tokio::test]
async fn requests_and_open_connections_are_counted() {
    let dir = directory();
    let node = Node::start(dir.path(), &["--demo"]).await;
    Web::new(node.http, Some("ann")).turn("s1", "echo", "m1", "hi", None).await.rest().await;
    let turns =
        "turnway_http_requests_total{method=\"POST\",route=\"/v1/sessions/{session_id}/turns\",status=\"2xx\"} 1\n";
    let (_, metrics) = get(node.admin, "/metrics").await;
    assert!(metrics.contains(turns), "{turns} is not in {metrics}");
    let wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    until_open(&node, 1).await;
    drop(wire);
    until_open(&node, 0).await;
}

/// Waits until the node reports this many open WebSockets.
async fn until_open(node: &Node, count: usize) {
    let sample = format!("turnway_link_connections{{transport=\"websocket\"}} {count}\n");
    let begun = Instant::now();
    let mut again = interval(Duration::from_millis(20));
    while !get(node.admin, "/metrics").await.1.contains(&sample) {
        assert!(begun.elapsed() < PATIENCE, "not {sample}");
        again.tick().await;
    }
}

#[tokio::test]
async fn invalid_configuration_reports_all_errors() {
    let dir = directory();
    std::fs::write(dir.path().join("turnway.toml"), "[listen]\nhttp = \"x\"\nport = 1\n").expect("a file");
    let args = ["--store", "redis://u:canary@h:x", "--quic", "somewhere", "--agent", "a"];
    for command in ["serve", "check-config"] {
        let env = [("TURNWAY_LISTEN_ADMIN", "0.0.0.0:1")];
        let (code, out, err) = run(dir.path(), &[&[command][..], &args].concat(), &env).await;
        assert_eq!((code, out.as_str()), (Some(64), ""), "{err}");
        for part in [
            "turnway.toml:2:8: listen.http",
            "turnway.toml:3:1: listen.port: unknown key",
            "environment TURNWAY_LISTEN_ADMIN: listen.admin: 0.0.0.0:1 is not a loopback address",
            "flag --store: store.url: expected HOST or HOST:PORT",
            "flag --quic: listen.quic",
            "flag --agent: expected ID=URL",
        ] {
            assert!(err.contains(part), "{part} is not in {err}");
        }
        assert!(err.lines().count() == 6 && !err.contains("canary"), "{err}");
    }
    std::fs::remove_file(dir.path().join("turnway.toml")).expect("it was there");
    assert_eq!(run(dir.path(), &["check-config"], &[]).await, (Some(0), "ok\n".into(), String::new()));
    assert_eq!(run(dir.path(), &["serve", "--config", "none.toml"], &[]).await.0, Some(64));
    assert_eq!(run(dir.path(), &["serve", "--colour"], &[]).await.0, Some(64));
    assert_eq!(run(dir.path(), &["version"], &[]).await.0, Some(0));
}

#[tokio::test]
async fn second_node_on_a_data_directory_is_refused() {
    let dir = directory();
    let node = Node::start(dir.path(), &[]).await;
    let store = format!("embedded:{}", dir.path().join("data").display());
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic", "off", "--store", &store];
    let (code, out, err) = run(dir.path(), &args, &[]).await;
    assert_eq!((code, out.as_str()), (Some(69), ""), "{err}");
    assert!(err.contains("another process"), "{err}");
    let taken = node.http.to_string();
    let (code, _, err) = run(dir.path(), &["serve", "--store", "memory:", "--listen", &taken], &[]).await;
    assert!(code == Some(69) && err.contains(&taken), "{err}");
}

/// Covers: LN-TP8.
#[tokio::test]
async fn sigterm_drains_and_finishes_open_turns() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let counting = invoke("s1", "counter", "count to 10 every 50ms");
    wire.ask("r1", counting).await.expect("accepted");
    wire.until(|message| message["type"] == "delta").await.expect("it counts");
    node.signal("-TERM").await;
    wire.until(|message| message["type"] == "go_away").await.expect("asked to go");
    let (status, body) = get(node.admin, "/readyz").await;
    assert!(status == 503 && body.contains("draining"), "{body}");
    assert_eq!(get(node.admin, "/livez").await.0, 200);
    assert!(WebSocketClient::open(node.http).await.is_err(), "it takes on nobody");
    let done = wire.until(|message| message["type"] == "done").await.expect("the turn ends");
    assert_eq!(done["status"], "completed");
    assert_eq!(wire.next().await, Err(ConnectionEnd::Closed(4503)));
    assert_eq!(node.exit().await, Some(0));
}

/// Covers: LN-TP8.
#[tokio::test]
async fn drain_request_stops_the_node_and_second_signal_is_immediate() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    node.signal("-HUP").await;
    let host = format!("host: {}\r\n", node.admin);
    assert_eq!(ask(node.admin, "POST", "/drain", &host).await.0, 202);
    assert_eq!(node.exit().await, Some(0));

    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.ask("r1", invoke("s1", "counter", "count to 1000 every 50ms")).await.expect("accepted");
    node.signal("-INT").await;
    wire.until(|message| message["type"] == "go_away").await.expect("asked to go");
    let asked_at = Instant::now();
    assert_eq!(node.terminate().await, Some(1));
    assert!(asked_at.elapsed() < Duration::from_secs(5), "{:?}", asked_at.elapsed());
}

/// Covers: S-09, S-45.
#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    let dir = directory();
    let node = Node::start(dir.path(), &[]).await;
    for to in [node.http, node.admin] {
        assert_eq!(ask(to, "GET", "/", "host: evil.example\r\n").await.0, 403);
        assert_eq!(ask(to, "GET", "/", "").await.0, 403);
    }
    let host = format!("host: {}\r\n", node.http);
    for (origin, status) in [("https://evil.example", 403), ("null", 403), ("http://localhost:3000", 101)] {
        let headers = format!("origin: {origin}\r\n");
        let (head, _) = frames(node.http, &headers, &frame(0x88, 0, &[])).await;
        assert!(head.contains(&format!(" {status} ")), "{origin}: {head}");
    }
    let admin = format!("host: {}\r\norigin: https://evil.example\r\n", node.admin);
    assert_eq!(ask(node.admin, "POST", "/drain", &admin).await.0, 403);
    assert_eq!(get(node.admin, "/readyz").await.0, 200);
    assert_eq!(ask(node.http, "POST", "/drain", &host).await.0, 404);
}

/// Covers: S-10.
#[tokio::test]
async fn request_headers_are_limited_in_size_number_and_time() {
    let dir = directory();
    let node = Node::start(dir.path(), &[]).await;
    let host = format!("host: {}\r\n", node.http);
    let long = format!("{host}x: {}\r\n", "a".repeat(17 * 1024));
    assert_eq!(ask(node.http, "GET", "/", &long).await.0, 431);
    let huge = format!("{host}x: {}\r\n", "a".repeat(1024 * 1024));
    assert!(matches!(ask(node.http, "GET", "/", &huge).await.0, 431 | 0));
    let many: String = (0..70).map(|n| format!("x-{n}: a\r\n")).collect();
    assert_eq!(ask(node.http, "GET", "/", &format!("{host}{many}")).await.0, 431);
    let some: String = (0..60).map(|n| format!("x-{n}: a\r\n")).collect();
    assert_eq!(ask(node.http, "GET", "/", &format!("{host}{some}")).await.0, 200);
    let began = Instant::now();
    let unfinished = format!("GET / HTTP/1.1\r\n{host}");
    assert!(!exchange(node.http, unfinished.as_bytes()).await.starts_with(b"HTTP/1.1 200"));
    let waited = began.elapsed();
    assert!((4..15).contains(&waited.as_secs()), "{waited:?}");
}

/// Covers: S-11.
#[tokio::test]
async fn invalid_frames_close_the_connection() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &[]).await;
    let hello = json!({"type": "hello", "user_id": "ann"}).to_string();
    let hello = frame(0x81, hello.len() as u64, hello.as_bytes());
    for (what, bytes, code) in [
        ("unmasked", vec![0x81, 2, b'{', b'}'], 1002),
        ("reserved bit", frame(0xc1, 2, b"{}"), 1002),
        ("unknown opcode", frame(0x83, 2, b"{}"), 1002),
        ("long ping", frame(0x89, 126, &[0; 126]), 1002),
        ("ping in pieces", frame(0x09, 0, &[]), 1002),
        ("nothing to go on with", frame(0x80, 0, &[]), 1002),
        ("not UTF-8", frame(0x81, 1, &[0xff]), 1007),
        ("binary", frame(0x82, 2, b"{}"), 1003),
        ("a large message", [hello.clone(), frame(0x81, 70_000, &[b' '; 70_000])].concat(), 4413),
        ("claims a terabyte", [hello.clone(), frame(0x81, 1 << 40, b"x")].concat(), 4413),
        (
            "large in pieces",
            [hello, frame(0x01, 60_000, &[b' '; 60_000]), frame(0x80, 6_000, &[b' '; 6_000])].concat(),
            4413,
        ),
    ] {
        let (head, said) = frames(node.http, "", &bytes).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{what}: {head}");
        assert_eq!(close_code(&said), Some(code), "{what}");
    }
    node.must_run();
}

#[tokio::test]
async fn known_subprotocol_is_echoed() {
    let dir = directory();
    let node = Node::start(dir.path(), &[]).await;
    let leave = frame(0x88, 0, &[]);
    for (offered, echoed) in [("", false), ("turnway.v1", true), ("graphql, turnway.v1", true), ("graphql", false)] {
        let header = if offered.is_empty() { String::new() } else { format!("sec-websocket-protocol: {offered}\r\n") };
        let (head, _) = frames(node.http, &header, &leave).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{offered}: {head}");
        assert_eq!(head.contains("sec-websocket-protocol: turnway.v1\r\n"), echoed, "{offered}: {head}");
    }
}

/// Closes a connection that sends no hello with 4408, when the time for the hello is over (docs/protocol.md) and not
/// before.
#[tokio::test]
async fn connection_without_hello_times_out() {
    /// Tolerance for timers before, and for a busy machine after the limit.
    const EARLIER: Duration = Duration::from_millis(100);
    const LATER: Duration = Duration::from_secs(5);
    let dir = directory();
    let node = Node::start(dir.path(), &[]).await;
    let begun = Instant::now();
    let mut wire = WebSocketClient::open(node.http).await.expect("open");
    // The close is the first that the node says.
    let gone = wire.next().await;
    let waited = begun.elapsed();
    assert_eq!(gone, Err(ConnectionEnd::Closed(4408)));
    let limit = limits::HELLO_TIMEOUT;
    assert!((limit - EARLIER..limit + LATER).contains(&waited), "{waited:?}");
    let (_, metrics) = get(node.admin, "/metrics").await;
    assert!(metrics.contains("turnway_link_closes_total{code=\"4408\",transport=\"websocket\"} 1\n"), "{metrics}");
}

/// Covers: S-16.
#[tokio::test]
async fn full_node_answers_503_until_a_connection_closes() {
    let dir = directory();
    // Of the 11 file descriptors beside those of the store and of operators, attempts at agents get three.
    let script = "ulimit -n 395; exec \"$0\" serve --store memory: --listen 127.0.0.1:0 --admin 127.0.0.1:0 --quic off";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .arg(binary())
        .current_dir(dir.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a shell");
    let mut ready = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = timeout(PATIENCE, ready.next_line()).await.expect("in time").expect("a line").expect("a line");
    let http = ready.split(' ').find_map(|part| part.strip_prefix("http=")).expect("an address");
    let http: SocketAddr = http.parse().expect("an address");
    let mut guests = Vec::new();
    for _ in 0..8 {
        guests.push(WebSocketClient::hello(http, "ann", vec![]).await.expect("room"));
    }
    assert_eq!(get(http, "/").await.0, 503);
    // Admitted connections are served, and closing them frees their places.
    guests[0].ask("r1", json!({"type": "session_open", "session_id": "s1"})).await.expect("served");
    guests.clear();
    let begun = Instant::now();
    while get(http, "/").await.0 != 200 {
        assert!(begun.elapsed() < PATIENCE, "nobody left");
    }
}

/// A node that cannot accept for a moment refuses no connection: a client that finds the listen queue full would
/// retry only after one second, and then after two.
///
/// Covers: G-12.
#[tokio::test]
async fn connection_burst_waits_in_the_listen_queue() {
    let dir = directory();
    let mut node = Node::start(dir.path(), &[]).await;
    node.signal("-STOP").await;
    let mut waiting = Vec::new();
    for n in 0..400 {
        let connected = timeout(PATIENCE, TcpStream::connect(node.http)).await;
        waiting.push(connected.unwrap_or_else(|_| panic!("connection {n} found no place")).expect("a listener"));
    }
    node.signal("-CONT").await;
    drop(waiting);
    assert_eq!(get(node.http, "/").await.0, 200);
    node.must_run();
}
