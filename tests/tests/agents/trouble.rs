//! Faulty agents: error statuses, malformed answers, lost connections and unreachable endpoints.
use crate::world::{PATIENCE, World, accept, order, serve, within_patience};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, ErrorResponse};

fn unavailable(why: &str) -> AgentEvent {
    AgentEvent::Failed(AgentFailure::Unavailable(why.to_owned()))
}

/// Returns the failure of an answer that is an error or no event stream.
fn error_answer(why: &str, is_away: bool, retry_after_ms: Option<u64>, body: Option<&str>) -> AgentEvent {
    let why = why.to_owned();
    let body = body.map(|body| Private(body.to_owned()));
    let is_busy = matches!(&*why, "status 429" | "status 503");
    let answer = ErrorResponse { why, is_away, is_busy, retry_after_ms, body };
    AgentEvent::Failed(AgentFailure::Answered(Box::new(answer)))
}

fn broken(why: &str) -> AgentEvent {
    AgentEvent::Failed(AgentFailure::Broken(why.to_owned()))
}

/// Covers: BD-I6, S-27 (redirects are not followed, nothing of a body is read that is no event stream).
#[tokio::test]
async fn error_status_decides_whether_agent_is_away() {
    let mut world = World::new("").await;
    for status in [502, 503, 504, 429, 500, 400, 401, 404, 409, 422, 501] {
        let ask = order("a", &status.to_string(), "hi");
        world.invoke(ask.clone());
        world.call().await.reply(status, "text/event-stream", "event: done\ndata: {}\n\n");
        let why = format!("status {status}");
        let body = "event: done\ndata: {}\n\n";
        world.expect(&ask, error_answer(&why, matches!(status, 502..=504), None, Some(body))).await;
    }
    for status in [301, 302, 307, 308] {
        let ask = order("a", &status.to_string(), "hi");
        world.invoke(ask.clone());
        let call = world.call().await;
        let response = hyper::Response::builder().status(status).header("location", "/elsewhere");
        drop(call.stream_with(response));
        world.expect(&ask, error_answer(&format!("status {status}"), false, None, None)).await;
    }
    for kind in ["application/json", "text/event-streams"] {
        let ask = order("a", kind, "hi");
        world.invoke(ask.clone());
        world.call().await.reply(200, kind, "");
        let why = "status 200, but the response is not an event stream";
        world.expect(&ask, error_answer(why, false, None, None)).await;
    }
    world.until_idle().await;
    assert!(world.calls.try_recv().is_err() && world.reports.try_recv().is_err());
}

/// Fails an answer with a success status other than 200, whatever its body is.
#[tokio::test]
async fn success_status_other_than_200_fails_the_attempt() {
    let mut world = World::new("").await;
    for status in [201, 202, 203, 206, 207, 226] {
        let ask = order("a", &status.to_string(), "hi");
        world.invoke(ask.clone());
        let body = "event: delta\ndata: {\"text\":\"a part\"}\n\nevent: done\ndata: {}\n\n";
        world.call().await.reply(status, "text/event-stream", body);
        world.expect(&ask, error_answer(&format!("status {status}"), false, None, Some(body))).await;
    }
    for status in [204, 205, 304] {
        let ask = order("a", &status.to_string(), "hi");
        world.invoke(ask.clone());
        world.call().await.reply(status, "text/event-stream", "");
        world.expect(&ask, error_answer(&format!("status {status}"), false, None, None)).await;
    }
    world.until_idle().await;
}

#[tokio::test]
async fn retry_after_of_an_error_is_reported() {
    let mut world = World::new("").await;
    for (status, wait, expected) in [
        (429, "7", Some(7_000)),
        (503, "0", Some(0)),
        (503, "Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
        (500, "120", Some(120_000)),
        (503, "soon", None),
    ] {
        let ask = order("a", &format!("{status} {wait}"), "hi");
        world.invoke(ask.clone());
        let response = hyper::Response::builder().status(status).header("retry-after", wait);
        drop(world.call().await.stream_with(response));
        world.expect(&ask, error_answer(&format!("status {status}"), status == 503, expected, None)).await;
    }
}

/// Reads the body of an error as far as it is available at once, and only up to the documented size.
#[tokio::test]
async fn body_of_an_error_is_bounded_text() {
    let mut world = World::new("").await;
    let max = turnway_core::limits::AGENT_ERROR_BYTES_MAX;
    for (name, sent, expected) in [
        ("short", "no such model: gpt-9".to_owned(), "no such model: gpt-9".to_owned()),
        ("long", "é".repeat(max), "é".repeat(max / 2)),
    ] {
        let ask = order("a", name, "hi");
        world.invoke(ask.clone());
        let response = hyper::Response::builder().status(500).header("content-type", "text/plain");
        let stream = world.call().await.stream_with(response);
        stream.send(sent).await;
        // The body never ends, and the turn does not wait for its end.
        world.expect(&ask, error_answer("status 500", false, None, Some(&expected))).await;
        stream.closed().await;
    }
    let ask = order("a", "packed", "hi");
    world.invoke(ask.clone());
    let response = hyper::Response::builder().status(500).header("content-encoding", "gzip");
    let stream = world.call().await.stream_with(response);
    stream.sender().try_send("packed".into()).expect("room");
    world.expect(&ask, error_answer("status 500", false, None, None)).await;
}

/// Covers: MP-D15, MP-G8, and that an agent that cannot be reached is looked for until it is back.
#[tokio::test]
async fn unreachable_agent_is_unavailable_until_health_succeeds() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let (_, calls) = mpsc::unbounded_channel();
    let mut world = World::with(&format!("a=http://{address}/base"), calls, 8);
    let ask = order("a", "m1", "hi");
    assert!(world.agents.is_healthy(&ask.agent_id, &ask.key.tenant));
    world.invoke(ask.clone());
    world.expect(&ask, unavailable("cannot connect")).await;
    assert!(!world.agents.is_healthy(&ask.agent_id, &ask.key.tenant));
    world.until_idle().await;

    world.calls = serve(TcpListener::bind(address).await.expect("the same port"));
    let call = world.call().await;
    assert_eq!((call.head.method.as_str(), call.head.uri.path()), ("GET", "/base/health"));
    assert!(!call.head.headers.contains_key("authorization"));
    call.reply(503, "text/plain", "ill");
    let call = world.call().await;
    assert!(!world.agents.is_healthy(&ask.agent_id, &ask.key.tenant));
    call.reply(200, "text/plain", "");
    within_patience("it is found", async {
        while !world.agents.is_healthy(&ask.agent_id, &ask.key.tenant) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Times out a connect to a listener that never accepts, after its own deadline of 3 s.
#[tokio::test]
async fn connect_times_out_before_the_attempt() {
    // Without an accepting process and without room in the queue, the system leaves further connections
    // unanswered.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let listener = socket.listen(0).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut held = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(std::time::Duration::from_millis(300), tokio::net::TcpStream::connect(address)).await
    {
        held.push(stream);
    }
    let (_, calls) = mpsc::unbounded_channel();
    let mut world = World::with(&format!("a=http://{address}"), calls, 8);
    let ask = order("a", "m1", "hi");
    let started = tokio::time::Instant::now();
    world.invoke(ask.clone());
    let end = world.event(&ask).await;
    assert!(matches!(end, AgentEvent::Failed(AgentFailure::Unavailable(_))), "{end:?}");
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
}

/// Covers: MP-G9, S-27, S-48.
#[tokio::test]
async fn malformed_event_fails_and_closes_the_answer() {
    let mut world = World::new("").await;
    for (bytes, why) in [
        (&b"event: delta\ndata: {\"text\":\n\n"[..], "malformed delta event: not valid JSON"),
        (b"event: delta\ndata: hello\n\n", "malformed delta event: not valid JSON"),
        (b"event: delta\ndata:\n\n", "malformed delta event: not valid JSON"),
        (b"event: delta\n\n", "malformed delta event: field missing: text"),
        (b"event: delta\ndata: {\"text\":7}\n\n", "malformed delta event: field has the wrong type or format: text"),
        (b"event: state\ndata: []\n\n", "malformed state event: not a JSON object"),
        (b"event: done\ndata: {\"usage\"}\n\n", "malformed done event: not valid JSON"),
        (b"event: error\ndata: 7\n\n", "malformed error event: not a JSON object"),
        (b"event: delta\ndata: {\"text\":\"\xff\xfe\"}\n\n", "not UTF-8"),
        (b"event: delta\ndata: {\"text\":\"\xe4\xb8\"}\n\n", "not UTF-8"),
        (b"event: delta\ndata: {\"text\":\"x\",\"run_id\":\"s2.y\"}\n\n", "delta names another run"),
    ] {
        let ask = order("a", &String::from_utf8_lossy(bytes), "hi");
        let (stream, _) = world.begin(&ask).await;
        stream.delta("good").await;
        stream.send(bytes).await;
        let (text, end) = world.text(&ask).await;
        assert_eq!((text.as_str(), end), ("good", broken(why)));
        stream.closed().await;
        world.until_idle().await;
    }
}

/// Covers: MP-G6: an answer without its end is no answer.
#[tokio::test]
async fn stream_without_done_or_error_fails() {
    let mut world = World::new("").await;
    let nothing = "the stream ended without a done or error event";
    for tail in ["", "event: delta\ndata: {\"text\":\"lost\"}", "event: done\ndata: {}\n", "garbage\n\n\u{0}"] {
        let ask = order("a", tail, "hi");
        let (stream, _) = world.begin(&ask).await;
        stream.delta("good").await;
        stream.send(tail).await;
        drop(stream);
        assert_eq!(world.text(&ask).await, ("good".to_owned(), broken(nothing)), "{tail:?}");
    }
}

#[tokio::test]
async fn invalid_http_response_fails_the_attempt() {
    let (mut world, listener) = World::raw().await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    for (message, bytes, expected) in [
        ("ssh", "SSH-2.0-OpenSSH_9.6\r\n\r\n".to_owned(), broken("not HTTP")),
        ("nothing", String::new(), unavailable("the connection to the agent was lost")),
        ("half a head", "HTTP/1.1 200 OK\r\ncont".to_owned(), unavailable("the connection to the agent was lost")),
        (
            "gzip",
            format!("{head}content-encoding: gzip\r\n\r\n"),
            broken("the response is compressed, which was not requested"),
        ),
        ("length", format!("{head}content-length: 99999999999999999999\r\n\r\n"), broken("not HTTP")),
    ] {
        let ask = order("a", message, "hi");
        world.invoke(ask.clone());
        let mut socket = accept(&listener).await;
        socket.write_all(bytes.as_bytes()).await.expect("a connection");
        drop(socket);
        assert_eq!(world.event(&ask).await, expected, "{message}");
    }
    // The connection is cut in the middle of a body chunk.
    let ask = order("a", "cut", "hi");
    world.invoke(ask.clone());
    let mut socket = accept(&listener).await;
    let bytes = format!("{head}transfer-encoding: chunked\r\n\r\nff\r\nevent: delta\n");
    socket.write_all(bytes.as_bytes()).await.expect("a connection");
    world.expect(&ask, AgentEvent::Acked).await;
    drop(socket);
    world.expect(&ask, broken("the connection to the agent was lost")).await;
    world.until_idle().await;
}
