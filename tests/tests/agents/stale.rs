//! Requests that meet the close of a kept connection: every outgoing request is sent once more, but only in
//! this case.
use crate::steer::{steer, steered_event};
use crate::world::{World, done, order, within_patience};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use turnway_core::protocol::action::FactDelivery;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure, Invoke, Order, Resume};
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::steer::SteerOutcome;

/// Server behaviour at the second request of each connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CloseMode {
    /// Reads the request and closes.
    Fin,
    /// Reads the request and resets.
    Reset,
    /// Resets after the first bytes of the request.
    Early,
    /// Writes a part of a response head, then closes.
    HalfAnswer,
}

/// A request as the server received it.
#[derive(Clone, Debug)]
struct SeenRequest {
    connection: usize,
    /// Request line, headers and body, as far as they were read.
    text: String,
    is_answered: bool,
}

/// A server that answers the first request of each connection and closes the connection at the second.
struct Server {
    address: std::net::SocketAddr,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
    /// Ends the answers of runs whose input contains `hold`.
    release: Arc<Notify>,
}

impl Server {
    async fn start(close: CloseMode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::default();
        let release = Arc::default();
        let server = Self { address, seen: Arc::clone(&seen), release: Arc::clone(&release) };
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((socket, _)) = listener.accept().await else { return };
                tokio::spawn(serve(socket, connection, close, Arc::clone(&seen), Arc::clone(&release)));
            }
        });
        server
    }

    fn world(&self, keys: &str) -> World {
        let (_, calls) = mpsc::unbounded_channel();
        World::with(&format!("a=http://{}{keys}", self.address), calls, 64)
    }

    fn seen(&self) -> Vec<SeenRequest> {
        self.seen.lock().expect("a list").clone()
    }

    /// Returns the requests of a path, in order.
    fn of(&self, path: &str) -> Vec<SeenRequest> {
        self.seen().into_iter().filter(|seen| seen.text.split(' ').nth(1) == Some(path)).collect()
    }
}

async fn serve(
    mut socket: TcpStream,
    connection: usize,
    close: CloseMode,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
    release: Arc<Notify>,
) {
    for is_answered in [true, false] {
        let whole = is_answered || close != CloseMode::Early;
        let Some(text) = request(&mut socket, whole).await else { return };
        let hold = text.contains("hold");
        let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
        seen.lock().expect("a list").push(SeenRequest { connection, text, is_answered });
        match (is_answered, close) {
            (true, _) => answer(&mut socket, &path, hold, &release).await,
            (false, CloseMode::Fin) => return,
            (false, CloseMode::Reset | CloseMode::Early) => {
                return socket.set_zero_linger().expect("a socket");
            }
            (false, CloseMode::HalfAnswer) => {
                return socket.write_all(b"HTTP/1.1 200 O").await.expect("an open connection");
            }
        }
    }
}

/// Reads a request, or only its first bytes unless `whole`. Returns none if the connection was closed.
async fn request(socket: &mut TcpStream, whole: bool) -> Option<String> {
    let mut read = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    let mut length = usize::MAX;
    while read.len() < length {
        let bytes = socket.read(&mut piece).await.ok().filter(|bytes| *bytes > 0)?;
        read.extend_from_slice(&piece[..bytes]);
        if !whole {
            break;
        }
        if let (usize::MAX, Some(end)) = (length, read.windows(4).position(|end| end == b"\r\n\r\n")) {
            let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
            let body = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            length = end + 4 + body.unwrap_or(0usize);
        }
    }
    Some(String::from_utf8_lossy(&read).into_owned())
}

async fn answer(socket: &mut TcpStream, path: &str, hold: bool, release: &Notify) {
    let is_stream = path == "/invoke" || path.starts_with("/runs/");
    let kind = if is_stream { "text/event-stream" } else { "application/json" };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    let body = match path {
        _ if is_stream => "event: done\ndata: {}\n\n",
        "/steer" => "{\"outcome\":\"accepted\"}",
        _ => "{}",
    };
    socket.write_all(head.as_bytes()).await.expect("an open connection");
    if hold {
        release.notified().await;
    }
    let body = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    socket.write_all(body.as_bytes()).await.expect("an open connection");
}

/// Sends orders until a request has met the close of a kept connection, and returns that order with its first
/// event or end.
async fn invoke_until_stale(server: &Server, world: &mut World, text: &str) -> (Invoke, AgentEvent) {
    within_patience("a request meets the close of its connection", async {
        for number in 0.. {
            let ask = order("a", &format!("m{number}"), text);
            world.invoke(ask.clone());
            let (_, end) = ended(world, &ask).await;
            world.until_idle().await;
            if server.seen().iter().any(|seen| !seen.is_answered) {
                return (ask, end);
            }
            assert_eq!(end, done());
        }
        unreachable!("it goes on");
    })
    .await
}

async fn ended(world: &mut World, ask: &Invoke) -> (bool, AgentEvent) {
    let first = world.event(ask).await;
    if first == AgentEvent::Acked { (true, world.event(ask).await) } else { (false, first) }
}

/// Covers: G2.
#[tokio::test]
async fn invoke_on_a_closed_kept_connection_is_sent_again() {
    for close in [CloseMode::Fin, CloseMode::Reset, CloseMode::Early] {
        let server = Server::start(close).await;
        let mut world = server.world("");
        // Larger than the buffers of both sides where the request must not be written whole.
        let text = if close == CloseMode::Early { "x".repeat(8 * 1024 * 1024) } else { "hi".to_owned() };
        let (ask, end) = invoke_until_stale(&server, &mut world, &text).await;
        assert_eq!(end, done(), "{close:?}");
        let asked: Vec<_> = server.seen().into_iter().filter(|seen| seen.text.contains(ask.run_id.as_str())).collect();
        assert_eq!(world.agents.metrics().resends(), 1, "{close:?}");
        let [first, again] = &asked[..] else { panic!("{close:?}: asked {} times", asked.len()) };
        assert!(first.connection < again.connection && again.is_answered, "{close:?}");
        if close != CloseMode::Early {
            assert_eq!(first.text, again.text, "{close:?}: key, attempt, token and body are the same");
        }
    }
}

/// Covers: G4 (an agent that was heard, or that is not to be asked twice, is asked once).
#[tokio::test]
async fn request_after_a_partial_answer_or_by_config_is_not_resent() {
    for (close, keys) in [(CloseMode::HalfAnswer, ""), (CloseMode::Fin, ",resend_on_stale=false")] {
        let server = Server::start(close).await;
        let mut world = server.world(keys);
        let (ask, end) = invoke_until_stale(&server, &mut world, "hi").await;
        let lost = AgentFailure::Unavailable("the connection to the agent was lost".to_owned());
        assert_eq!(end, AgentEvent::Failed(lost), "{close:?}");
        let asked = server.seen().iter().filter(|seen| seen.text.contains(ask.run_id.as_str())).count();
        assert_eq!((asked, world.agents.metrics().resends()), (1, 0), "{close:?}");
    }
}

/// Sends the first request of a connection only once: the connection is not a kept one, and the agent may
/// have failed while it worked.
#[tokio::test]
async fn first_request_of_a_connection_is_sent_once() {
    let (mut world, listener) = World::raw().await;
    let ask = order("a", "m1", "hi");
    world.invoke(ask.clone());
    drop(crate::world::accept(&listener).await);
    let lost = AgentFailure::Unavailable("the connection to the agent was lost".to_owned());
    world.expect(&ask, AgentEvent::Failed(lost)).await;
    world.until_idle().await;
    let more = tokio::time::timeout(std::time::Duration::ZERO, listener.accept()).await;
    assert!(more.is_err(), "it was asked again");
}

/// Completes each kind of request beside `invoke` though the first try met a closed connection.
#[tokio::test]
async fn requests_about_a_run_survive_a_closed_connection() {
    for path in ["/steer", "/cancel", "/event"] {
        let server = Server::start(CloseMode::Fin).await;
        let mut world = server.world(",steer=true,cancel=true,events=>");
        within_patience("a request meets the close of its connection", async {
            for number in 0.. {
                let held = order("a", &format!("h{number}"), "hold");
                world.invoke(held.clone());
                world.expect(&held, AgentEvent::Acked).await;
                let warm = order("a", &format!("m{number}"), "hi");
                world.invoke(warm.clone());
                assert_eq!(ended(&mut world, &warm).await, (true, done()));
                let before = server.of(path).len();
                let end = send_request(&mut world, path, &held, number).await;
                let answered = || server.of(path)[before..].iter().any(|seen| seen.is_answered);
                while !answered() {
                    tokio::task::yield_now().await;
                }
                server.release.notify_waiters();
                world.expect(&held, end).await;
                world.until_idle().await;
                if server.of(path).iter().any(|seen| !seen.is_answered) {
                    return;
                }
            }
        })
        .await;
        let seen = server.of(path);
        let [.., first, again] = &seen[..] else { panic!("{path}: {seen:?}") };
        assert_eq!((first.is_answered, again.is_answered), (false, true), "{path}");
        assert_eq!(first.text, again.text, "{path}");
    }
}

/// Sends the request of a path and returns the end that the run will have.
async fn send_request(world: &mut World, path: &str, held: &Invoke, number: u64) -> AgentEvent {
    match path {
        "/steer" => {
            let name = format!("s{number}");
            steer(world, held, &name);
            world.expect(held, steered_event(&name, SteerOutcome::Accepted)).await;
        }
        "/cancel" => {
            world.cancel(held);
            return AgentEvent::CancelAcked;
        }
        _ => world.agents.perform(Order::News(Box::new(news(held, number)))),
    }
    done()
}

pub(crate) fn news(to: &Invoke, number: u64) -> FactDelivery {
    let Invoke { key, run_id, attempt, agent_id, epoch, .. } = to.clone();
    let json = serde_json::json!({
        "specversion": "1.0", "session_id": "s1", "seq": number, "epoch": 7, "time": "2026-01-01T00:00:00.000Z",
        "id": format!("00000000-0000-7000-8000-{number:012}"), "source": "turnway", "correlation_id": "c",
        "type": "session.closing", "data": {},
    });
    let entry = Entry::from_json(&json.to_string()).expect("an envelope").entry;
    let seq = turnway_core::id::Seq(number);
    FactDelivery { key, run_id, attempt, agent_id, seq, epoch, entry: Arc::new(entry) }
}

/// Repeats the request for the rest of a run.
#[tokio::test]
async fn resume_on_a_closed_kept_connection_is_sent_again() {
    let server = Server::start(CloseMode::Fin).await;
    let mut world = server.world(",on_owner_loss=resume");
    within_patience("a request meets the close of its connection", async {
        for number in 0.. {
            let mut ask = order("a", &format!("m{number}"), "hi");
            ask.resume = Some(Resume { after: None, saved: 0 });
            world.invoke(ask.clone());
            assert_eq!(ended(&mut world, &ask).await, (true, done()));
            world.until_idle().await;
            if server.seen().iter().any(|seen| !seen.is_answered) {
                return;
            }
        }
    })
    .await;
    let seen = server.seen();
    let [.., first, again] = &seen[..] else { panic!("{seen:?}") };
    assert!(first.text.starts_with("GET /runs/"), "{first:?}");
    assert_eq!((first.is_answered, again.is_answered), (false, true));
    assert_eq!(first.text, again.text);
}

/// Discards a connection whose server announces its close or closes it at once.
#[tokio::test]
async fn connection_announced_to_close_is_not_kept() {
    for head in [
        "HTTP/1.1 200 OK\r\nkeep-alive: timeout=2\r\ntransfer-encoding: chunked\r\n",
        "HTTP/1.1 200 OK\r\nconnection: close\r\n",
        "HTTP/1.0 200 OK\r\n",
    ] {
        // The agent's configured idle timeout is longer than this test, so that only the server's
        // announcement can close the connection.
        let (mut world, listener) = World::raw_with(",keep_alive=60s").await;
        let is_chunked = head.contains("chunked");
        for number in 0..3 {
            let ask = order("a", &format!("m{number}"), "hi");
            world.invoke(ask.clone());
            let mut socket = crate::world::accept(&listener).await;
            let done_event = "event: done\ndata: {}\n\n";
            let body = match is_chunked {
                true => format!("{:x}\r\n{done_event}\r\n0\r\n\r\n", done_event.len()),
                false => done_event.to_owned(),
            };
            let text = format!("{head}content-type: text/event-stream\r\n\r\n{body}");
            socket.write_all(text.as_bytes()).await.expect("an open connection");
            if !is_chunked {
                socket.shutdown().await.expect("an open connection");
            }
            assert_eq!(ended(&mut world, &ask).await, (true, done()), "{head}");
            world.until_idle().await;
            // The gateway closes the connection, and the next request opens a new one.
            let mut rest = Vec::new();
            within_patience("it is closed", socket.read_to_end(&mut rest)).await.expect("an orderly end");
        }
    }
}
