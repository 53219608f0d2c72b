//! Edge cases of HTTP with clients, balancers and browsers: half-closed requests, disconnects, other origins,
//! and unknown event ids.
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{AgentStream, Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

const JSON: (&str, &str) = ("content-type", "application/json");
const PAGE: &str = "https://app.example.com";

/// Returns a POST request as sent on the wire.
fn post(to: SocketAddr, path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {to}\r\nx-user-id: ann\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn call(stream: bool) -> Value {
    json!({"model": "agent/a", "stream": stream, "messages": [{"role": "user", "content": "begin"}]})
}

async fn connect_and_say(node: &Node, text: &str) -> TcpStream {
    let mut socket = TcpStream::connect(node.http).await.expect("it accepts");
    socket.write_all(text.as_bytes()).await.expect("it takes it");
    socket
}

async fn rest(mut socket: TcpStream) -> String {
    let mut bytes = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut bytes)).await.expect("it ends").expect("it answers");
    String::from_utf8(bytes).expect("text")
}

/// Covers: ST-18.
#[tokio::test]
async fn half_closed_requests_get_their_answers() {
    let agents = Agents::start(|_| {
        Reply::speak(|stream| async move {
            stream.delta("a word").await?;
            tokio::time::timeout(std::time::Duration::from_millis(400), stream.hung_up()).await.unwrap_or(Ok(()))?;
            stream.done().await
        })
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a")]).await;
    let turn = post(node.http, "/v1/sessions/s/turns", &json!({"message": {"content": "x"}}));
    let get = format!("GET /v1/agents HTTP/1.1\r\nhost: {}\r\nx-user-id: ann\r\n\r\n", node.http);
    for (request, whole) in [
        (turn, "\"type\":\"done\""),
        (get, "\"agent_id\":\"a\""),
        (post(node.http, "/v1/chat/completions", &call(false)), "\"content\":\"a word\""),
        (post(node.http, "/v1/chat/completions", &call(true)), "data: [DONE]"),
    ] {
        let mut socket = connect_and_say(&node, &request).await;
        socket.shutdown().await.expect("its half is closed");
        let answer = rest(socket).await;
        assert!(answer.contains(whole), "{request}\n{answer}");
    }
}

/// Covers: ST-18, ST-41.
#[tokio::test]
async fn disconnect_is_detected_with_any_trailing_bytes() {
    let (told, mut events) = mpsc::unbounded_channel();
    let agents = Agents::start(move |_| {
        let told = told.clone();
        Reply::speak(async move |voice: AgentStream| {
            voice.delta("begun").await?;
            // The receiver is gone once the test is over.
            _ = told.send("begun");
            let gone = voice.hung_up().await;
            _ = told.send("closed");
            gone
        })
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a")]).await;
    let get = format!("GET /v1/agents HTTP/1.1\r\nhost: {}\r\n\r\n", node.http);
    for stream in [false, true] {
        for behind in ["", "\r\n", "\r\n\r\n\r\n", "garbage", &get] {
            let request = post(node.http, "/v1/chat/completions", &call(stream)) + behind;
            let socket = connect_and_say(&node, &request).await;
            assert_eq!(timeout(PATIENCE, events.recv()).await, Ok(Some("begun")));
            drop(socket);
            assert_eq!(timeout(PATIENCE, events.recv()).await, Ok(Some("closed")), "{stream} {behind:?}");
        }
    }
}

/// Covers: S-09.
#[tokio::test]
async fn only_listed_origins_may_read_answers() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--origins", PAGE]).await;
    let web = Web::new(node.http, Some("ann"));
    let asks = [
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-lang"),
    ];
    for path in [
        "/v1/chat/completions",
        "/v1/sessions/s/turns",
        "/v1/models",
        "/v1/sessions",
        "/openapi.json",
        "/asyncapi.json",
    ] {
        let preflight = web.ask("OPTIONS", path, &[asks[0], asks[1], ("origin", PAGE)], "").await;
        let header = |name: &str| preflight.headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!((preflight.status, header("access-control-allow-origin")), (204, Some(PAGE)), "{path}");
        assert_eq!(header("access-control-allow-headers"), Some(asks[1].1));
        assert!(header("access-control-allow-methods").is_some_and(|methods| methods.contains("POST")));
        assert_eq!((header("vary"), header("access-control-allow-credentials")), (Some("origin"), None));
        let strange = web.ask("OPTIONS", path, &[asks[0], ("origin", "https://evil.example")], "").await;
        assert_eq!(strange.status, 403);
        assert!(!strange.headers.contains_key("access-control-allow-origin"));
        // A request without an origin or without a requested method is no preflight.
        assert_eq!(web.ask("OPTIONS", path, &[asks[0]], "").await.status, 405);
        assert_eq!(web.ask("OPTIONS", path, &[("origin", PAGE)], "").await.status, 405);
    }
    // Answers and refusals are readable, including their headers.
    for (method, path, status) in
        [("GET", "/v1/sessions", 200), ("GET", "/v1/nothing", 404), ("POST", "/v1/chat/completions", 415)]
    {
        let answer = web.ask(method, path, &[("origin", PAGE)], "").await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(
            answer.headers.get("access-control-allow-origin").map(|origin| origin.as_bytes()),
            Some(PAGE.as_bytes())
        );
        let exposed = answer.headers.get("access-control-expose-headers").and_then(|names| names.to_str().ok());
        assert!(exposed.is_some_and(|names| names.contains("retry-after")), "{path}");
    }
    // Requests without an origin get no CORS headers, and the admin listener sends none.
    assert!(!web.get("/v1/sessions").await.headers.contains_key("access-control-allow-origin"));
    let admin = Web::new(node.admin, None);
    let local = format!("http://{}", node.admin);
    let answer = admin.ask("GET", "/readyz", &[("origin", &local)], "").await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
}

/// Covers: LN-SR2.
#[tokio::test]
async fn last_event_id_of_another_stream_is_ignored() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let web = Web::new(node.http, Some("ann"));
    let path = "/v1/sessions/s/turns";
    let body = r#"{"message":{"content":"one two three"},"agent_id":"echo"}"#;
    let named = [JSON, ("idempotency-key", "k")];
    let first = web.open("POST", path, &named, body).await.rest().await;
    let text = said(&first);
    let last = first.last().and_then(|event| event.id.clone()).expect("an id");
    assert_eq!(text, "one two three");
    let mut parts: Vec<&str> = last.split('-').collect();
    let tag = parts.pop().expect("a tag");
    // A position before all events, in an attempt that never existed.
    let never = format!("0-0-7-3-{tag}");
    for id in ["", "7", "x", "12-3", "0-0-1-3-aaaaaaaa", "-----", &"9".repeat(300), &never] {
        let again = web.open("POST", path, &[named[0], named[1], ("last-event-id", id)], body).await.rest().await;
        assert_eq!(said(&again), text, "{id:?}");
    }
    for id in ["", "x", "0-0-1-3-aaaaaaaa"] {
        let log = web.ask("GET", "/v1/sessions/s/events", &[("last-event-id", id)], "").await;
        assert_eq!((log.status, log.json()["events"][0]["seq"].as_u64()), (200, Some(1)), "{id:?}: {}", log.text);
    }
}

fn said(events: &[turnway_tests::real::web::Event]) -> String {
    let deltas = events.iter().filter(|event| event.data["type"] == "delta");
    deltas.filter_map(|event| event.data["text"].as_str()).collect()
}

/// Refuses a body at the first byte over the limit, not after its end.
///
/// Covers: S-11.
#[tokio::test]
async fn oversized_body_is_refused_before_its_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let head = format!(
        "POST /v1/sessions/s/turns HTTP/1.1\r\nhost: {}\r\nx-user-id: ann\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n",
        node.http
    );
    let mut socket = connect_and_say(&node, &(head + &" ".repeat(100_000))).await;
    let mut line = [0; 12];
    timeout(PATIENCE, socket.read_exact(&mut line)).await.expect("in time").expect("it answers");
    assert_eq!(std::str::from_utf8(&line), Ok("HTTP/1.1 413"));
}

/// Refuses a request whose body arrives after the node has begun to drain.
///
/// Covers: G-14, ST-18.
#[tokio::test]
async fn turn_with_a_body_arriving_during_drain_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let body = json!({"agent_id": "echo", "message": {"content": "x"}}).to_string();
    let head = format!(
        "POST /v1/sessions/s/turns HTTP/1.1\r\nhost: {}\r\nx-user-id: ann\r\nexpect: 100-continue\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        node.http,
        body.len()
    );
    let mut socket = connect_and_say(&node, &head).await;
    let mut go_on = [0; 25];
    timeout(PATIENCE, socket.read_exact(&mut go_on)).await.expect("in time").expect("it waits for the body");
    assert_eq!(go_on, *b"HTTP/1.1 100 Continue\r\n\r\n");
    // The stream of the log shows when the node drains.
    let ann = Web::new(node.http, Some("ann"));
    ann.turn("other", "echo", "m", "hi", None).await.rest().await;
    let accept = [("accept", "text/event-stream")];
    let mut log = ann.open("GET", "/v1/sessions/other/events", &accept, "").await;
    node.signal("-TERM").await;
    log.until(|event| event.name.as_deref() == Some("go_away")).await;
    socket.write_all(body.as_bytes()).await.expect("it takes it");
    let answer = rest(socket).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\"draining\""), "{answer}");
}
