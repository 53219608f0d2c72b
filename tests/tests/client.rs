//! The client crate over real sockets against a scripted gateway, which drops connections in mid-character,
//! repeats messages, restarts answers, goes away and closes with codes.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at some events only")]
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::header::SEC_WEBSOCKET_PROTOCOL;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use turnway_client::{Backoff, Bookmark, Client, ClientError, Event, Options, Start, Subscribe, UserInput};

/// Deadline of every wait, so that a test that hangs names the place.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway that is scripted by the test.
struct Gateway {
    listener: TcpListener,
    url: String,
}

/// A connection that the gateway has accepted.
struct Link {
    socket: WebSocketStream<TcpStream>,
    hello: Value,
}

impl Gateway {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("ws://{}", listener.local_addr().expect("an address"));
        Self { listener, url }
    }
    fn options(&self) -> Options {
        let mut options = Options::new(&self.url).user("ann");
        options.backoff = Backoff { base: Duration::from_millis(2), max: Duration::from_millis(20) };
        options
    }
    /// Accepts the next connection and reads its `hello`.
    async fn accept(&self) -> Link {
        let (stream, _) = timely(self.listener.accept()).await.expect("a connection");
        let socket = timely(tokio_tungstenite::accept_hdr_async(stream, agree)).await.expect("a handshake");
        let mut link = Link { socket, hello: Value::Null };
        link.hello = link.next_message().await;
        assert_eq!(link.hello["type"], "hello");
        link
    }
    /// Accepts the next connection and sends `welcome`.
    async fn welcome(&self) -> Link {
        let mut link = self.accept().await;
        link.send(json!({"type": "welcome", "connection_id": "c", "node_id": "n",
            "limits": {"max_message_bytes": 65536}}))
            .await;
        link
    }
    /// Connects a client and accepts its first connection.
    async fn client(&self) -> (Client, Link) {
        let (client, link) = tokio::join!(Client::connect(self.options()), self.welcome());
        let mut client = client.expect("connected");
        assert!(matches!(client.next_event().await, Some(Event::Connected { .. })));
        (client, link)
    }
}

impl Link {
    async fn send(&mut self, message: Value) {
        timely(self.socket.send(Message::text(message.to_string()))).await.expect("the client listens");
    }
    async fn send_all(&mut self, messages: &[Value]) {
        for message in messages {
            self.send(message.clone()).await;
        }
    }
    /// Returns the next text message.
    async fn next_message(&mut self) -> Value {
        loop {
            match timely(self.socket.next()).await.expect("the client is there").expect("no error") {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("not a text: {other:?}"),
            }
        }
    }
    async fn expect(&mut self, kind: &str) -> Value {
        let message = self.next_message().await;
        assert_eq!(message["type"], kind, "{message}");
        message
    }
    /// Reads an input and accepts it as run `s.r`.
    async fn accept_input(&mut self, duplicate: bool) -> String {
        let input = self.expect("agent_invoke").await;
        let id = input["message"]["message_id"].as_str().expect("an id").to_owned();
        self.send(json!({"type": "turn_accepted", "session_id": "s", "run_id": "s.r", "turn_id": "s.r",
            "message_id": id, "duplicate": duplicate, "durability": "mem"}))
            .await;
        id
    }
    /// Answers the subscription of the client's `hello`.
    async fn resumed(&mut self, seq: u64, more: Value) -> Value {
        let body = self.hello["resume"][0].clone();
        let mut answer = json!({"type": "subscribed", "request_id": body["request_id"], "session_id": "s",
            "seq": seq, "epoch": 1, "snapshot": {"session_id": "s", "seq": seq, "epoch": 1}});
        if let (Some(answer), Value::Object(more)) = (answer.as_object_mut(), more) {
            answer.extend(more);
        }
        self.send(answer).await;
        body
    }
    async fn close(mut self, code: u16) {
        let frame = CloseFrame { code: CloseCode::from(code), reason: "by script".into() };
        timely(self.socket.close(Some(frame))).await.expect("closed");
        // Waits until the client has read the frame, so that no reset overtakes the close code.
        while let Ok(Some(Ok(_))) = tokio::time::timeout(PATIENCE, self.socket.next()).await {}
    }
}

/// Accepts the subprotocol that the client offers.
#[allow(clippy::result_large_err, reason = "the library's shape")]
fn agree(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    assert_eq!(request.uri().path(), "/v1/connect");
    let dialect = request.headers().get(SEC_WEBSOCKET_PROTOCOL).expect("a dialect").clone();
    assert_eq!(dialect, "turnway.v1");
    response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, dialect);
    Ok(response)
}

async fn timely<F: Future>(work: F) -> F::Output {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

fn started(seq: u64, attempt: u32) -> Value {
    json!({"type": "run_started", "session_id": "s", "run_id": "s.r", "agent_id": "echo",
        "attempt": attempt, "seq": seq, "epoch": 1})
}

fn delta(attempt: u32, offset: usize, text: &str) -> Value {
    json!({"type": "delta", "run_id": "s.r", "attempt": attempt, "offset": offset, "text": text})
}

fn done(seq: u64, attempt: u32, bytes: usize) -> Value {
    json!({"type": "done", "session_id": "s", "run_id": "s.r", "status": "completed",
        "attempt": attempt, "text_bytes": bytes, "seq": seq, "epoch": 1})
}

/// Returns what an application would show, up to the first end of a turn.
async fn shown_lines(client: &mut Client) -> Vec<String> {
    let mut lines = Vec::new();
    let mut text = String::new();
    loop {
        match timely(client.next_event()).await.expect("the client lives") {
            Event::Text { text: new, .. } => text.push_str(&new),
            Event::Restarted { attempt, .. } => {
                lines.push(format!("{text}; restarted @{attempt}"));
                text.clear();
            }
            Event::Accepted(accepted) => lines.push(format!("accepted {}", accepted.message_id)),
            Event::Disconnected { code, .. } => lines.push(format!("lost {}", code.unwrap_or(0))),
            Event::Reset { reason, .. } => {
                lines.push(format!("reset {reason}"));
                text.clear();
            }
            Event::Error(failure) => lines.push(format!("error {}", failure.code)),
            Event::Done(done) => {
                lines.push(format!("{text} = {}", done.text));
                return lines;
            }
            _ => {}
        }
    }
}

/// Drops the connection without a close frame after each character; the text stays complete.
#[tokio::test]
async fn text_is_complete_across_dropped_connections() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    let whole = "Grüße 日本 🙂!";
    client.session("s").invoke(UserInput::text("hi").message_id("m")).await.expect("taken");
    link.accept_input(false).await;
    link.send(started(3, 1)).await;
    let mut have = 0;
    for (at, letter) in whole.char_indices() {
        // One character, preceded by one that was sent before.
        let from = whole[..at].char_indices().last().map_or(0, |(last, _)| last);
        link.send(delta(1, from, &whole[from..at + letter.len_utf8()])).await;
        // The connection is dropped only after the client has reported this character.
        loop {
            match timely(client.next_event()).await.expect("lives") {
                Event::Text { text, .. } => {
                    assert_eq!(text, letter.to_string());
                    break;
                }
                Event::Done(_) | Event::Reset { .. } | Event::Error(_) => panic!("not yet"),
                _ => {}
            }
        }
        have += letter.len_utf8();
        drop(link);
        link = gateway.welcome().await;
        let body = link.resumed(3, json!({})).await;
        assert_eq!((&body["after_seq"], &body["after_epoch"]), (&json!(3), &json!(1)));
        assert_eq!(body["runs"]["s.r"], json!({"attempt": 1, "offset": have}));
        assert_eq!(link.accept_input(true).await, "m", "said again, under its name");
    }
    link.send_all(&[started(3, 1), done(4, 1, whole.len())]).await;
    let told = shown_lines(&mut client).await;
    assert_eq!(told.last(), Some(&format!(" = {whole}")));
    assert!(!told.iter().any(|line| line.starts_with("accepted")), "told before");
}

/// Restarts an answer at another node while late text of the first attempt still arrives.
#[tokio::test]
async fn restarted_answer_discards_text_of_the_first_attempt() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    client.session("s").invoke(UserInput::text("hi").message_id("m")).await.expect("taken");
    link.accept_input(false).await;
    link.send_all(&[started(3, 1), delta(1, 0, "the fir")]).await;
    link.close(4503).await;
    let mut link = gateway.welcome().await;
    link.resumed(4, json!({})).await;
    let again = json!({"type": "event", "name": "RUN_RESTARTED", "session_id": "s", "run_id": "s.r",
        "attempt": 2, "seq": 4, "epoch": 2});
    link.send_all(&[again, delta(1, 7, "st"), delta(2, 0, "second"), delta(2, 0, "second"), done(5, 2, 6)]).await;
    let told = shown_lines(&mut client).await;
    assert_eq!(told, ["accepted m", "lost 4503", "the fir; restarted @2", "second = second"]);
}

/// Reconnects after 4508 (slow consumer) without loss, and stops after the final code 4409.
#[tokio::test]
async fn retryable_close_codes_reconnect_and_others_are_final() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    client.session("s").invoke(UserInput::text("hi").message_id("m")).await.expect("taken");
    link.accept_input(false).await;
    link.send_all(&[started(3, 1), delta(1, 0, "ab")]).await;
    link.close(4508).await;
    let mut link = gateway.welcome().await;
    link.resumed(3, json!({})).await;
    link.send_all(&[delta(1, 2, "cd"), done(4, 1, 4)]).await;
    assert_eq!(shown_lines(&mut client).await, ["accepted m", "lost 4508", "abcd = abcd"]);
    link.close(4409).await;
    loop {
        match timely(client.next_event()).await {
            Some(Event::Disconnected { code, retry_in, .. }) => {
                assert_eq!((code, retry_in), (Some(4409), None))
            }
            Some(_) => {}
            None => break,
        }
    }
    let late = client.session("s").invoke(UserInput::text("anyone?")).await;
    assert_eq!(late, Err(ClientError::Closed));
}

/// Leaves a draining node within the time that `go_away` gives, without an error.
#[tokio::test]
async fn go_away_reconnects_the_client() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    client.session("s").invoke(UserInput::text("hi").message_id("m")).await.expect("taken");
    link.accept_input(false).await;
    let leave = json!({"type": "go_away", "reason": "drain", "reconnect_within_ms": 100, "jitter_ms": 50});
    link.send_all(&[started(3, 1), delta(1, 0, "ab"), leave]).await;
    let mut next = gateway.welcome().await;
    next.resumed(3, json!({})).await;
    next.send_all(&[delta(1, 0, "abcd"), done(4, 1, 4)]).await;
    assert_eq!(shown_lines(&mut client).await, ["accepted m", "lost 0", "abcd = abcd"]);
}

/// Requests missing text when the end arrives first, and reports the end after the text.
#[tokio::test]
async fn end_is_reported_after_the_missing_text() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    client.session("s").invoke(UserInput::text("hi").message_id("m")).await.expect("taken");
    link.accept_input(false).await;
    link.send_all(&[started(3, 1), delta(1, 0, "ab"), done(4, 1, 4)]).await;
    let again = link.expect("subscribe").await;
    assert_eq!((&again["after_seq"], &again["runs"]["s.r"]["offset"]), (&json!(3), &json!(2)));
    link.hello = json!({"resume": [again]});
    link.resumed(4, json!({})).await;
    link.send_all(&[delta(1, 2, "cd"), done(4, 1, 4)]).await;
    assert_eq!(shown_lines(&mut client).await, ["accepted m", "abcd = abcd"]);
}

/// Resends the unfinished input after the store lost facts that it had acknowledged.
#[tokio::test]
async fn input_is_resent_after_the_store_regressed() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    client.session("s").invoke(UserInput::text("hi").message_id("m")).await.expect("taken");
    link.accept_input(false).await;
    link.send_all(&[started(7, 1), delta(1, 0, "gone")]).await;
    drop(link);
    let mut link = gateway.welcome().await;
    link.resumed(2, json!({"reset": true, "reason": "regressed"})).await;
    link.expect("unsubscribe").await;
    assert_eq!(link.accept_input(false).await, "m");
    link.send_all(&[started(3, 1), delta(1, 0, "new"), done(4, 1, 3)]).await;
    assert_eq!(shown_lines(&mut client).await, ["accepted m", "lost 0", "reset regressed", "new = new"]);
}

#[tokio::test]
async fn retryable_refusal_is_retried_without_an_error() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    client.session("s").invoke(UserInput::text("hi").message_id("m")).await.expect("taken");
    link.expect("agent_invoke").await;
    link.send(json!({"type": "error", "request_id": "m", "session_id": "s", "code": "too_many_pending",
        "retryable": true, "retry_after_ms": 5}))
        .await;
    link.accept_input(false).await;
    link.send_all(&[started(3, 1), done(4, 1, 0)]).await;
    assert_eq!(shown_lines(&mut client).await, ["accepted m", " = "]);
}

#[tokio::test]
async fn refused_connect_reports_the_reason() {
    let gateway = Gateway::start().await;
    let refuse = async {
        let mut link = gateway.accept().await;
        link.send(json!({"type": "error", "code": "unauthorized", "message": "no such key"})).await;
        link.close(4401).await;
    };
    let (client, ()) = tokio::join!(Client::connect(gateway.options()), refuse);
    let refused = client.err().map(|error| error.to_string());
    assert_eq!(refused.as_deref(), Some("cannot connect: unauthorized: no such key"));
    let Gateway { listener, url } = gateway;
    drop(listener);
    let nobody = timely(Client::connect(Options::new(url))).await;
    assert!(matches!(nobody, Err(ClientError::Connect(_))));
}

/// Resumes in a second client from the bookmark of the first.
#[tokio::test]
async fn bookmark_resumes_in_another_client() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    let session = client.session("s");
    session.invoke(UserInput::text("hi").message_id("m")).await.expect("taken");
    link.accept_input(false).await;
    link.send_all(&[started(3, 1), delta(1, 0, "ab")]).await;
    while !matches!(timely(client.next_event()).await, Some(Event::Text { .. })) {}
    session.bookmark().await.expect("taken");
    let Some(Event::Bookmark(mark)) = timely(client.next_event()).await else { panic!("a bookmark") };
    client.close().await;
    let json = serde_json::to_string(&mark).expect("JSON");
    let mark: Bookmark = serde_json::from_str(&json).expect("a bookmark");
    let (mut later, mut link) = gateway.client().await;
    later.resume(mark).await.expect("taken");
    let request = link.expect("subscribe").await;
    link.hello = json!({"resume": [request]});
    let body = link.resumed(3, json!({})).await;
    assert_eq!(body["runs"]["s.r"]["offset"], 2);
    assert_eq!(link.accept_input(true).await, "m");
    link.send_all(&[delta(1, 2, "cd"), done(4, 1, 4)]).await;
    assert_eq!(shown_lines(&mut later).await, ["accepted m", "cd = abcd"]);
}

/// Stops reading the socket while the application takes no events, and loses or reorders none.
#[tokio::test]
async fn unread_events_backpressure_the_socket() {
    let gateway = Gateway::start().await;
    let (mut client, mut link) = gateway.client().await;
    let session = client.session("s");
    session.subscribe(Subscribe::from(Start::Beginning)).await.expect("taken");
    let request = link.expect("subscribe").await;
    link.hello = json!({"resume": [request]});
    link.resumed(1, json!({})).await;
    let count = 5000;
    let flood = async {
        link.send(started(1, 1)).await;
        for n in 0..count {
            link.send(delta(1, 4 * n, &format!("{n:04}"))).await;
        }
        link.send(done(2, 1, 4 * count)).await;
    };
    let read = async {
        // Commands are still accepted meanwhile.
        session.cancel(Some("s.other")).await.expect("taken");
        shown_lines(&mut client).await
    };
    let ((), told) = tokio::join!(flood, read);
    let whole: String = (0..count).map(|n| format!("{n:04}")).collect();
    assert_eq!(told, [format!("{whole} = {whole}")]);
}
