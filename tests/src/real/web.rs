//! A raw HTTP client: each request on a connection of its own, each response streamed.
use super::PATIENCE;
use super::documented;
use super::identity::Key;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// An HTTP client of one node.
#[derive(Clone, Debug)]
pub struct Web {
    pub(super) to: SocketAddr,
    pub(super) user: Option<String>,
    pub(super) key: Option<String>,
}

/// A whole response.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    /// Body as text.
    pub text: String,
}

/// A response that is still being received. Dropping it closes the connection.
#[derive(Debug)]
pub struct Stream {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    read: String,
    /// Bytes of an incomplete UTF-8 character.
    half: Vec<u8>,
    connection: JoinHandle<()>,
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Value of the field `id:`.
    pub id: Option<String>,
    /// Value of the field `event:`.
    pub name: Option<String>,
    /// Value of the field `data:`.
    pub data: Value,
}

impl Web {
    /// Creates a client of this user; `None` stands for the operator.
    pub fn new(to: SocketAddr, user: Option<&str>) -> Self {
        Self { to, user: user.map(str::to_owned), key: None }
    }

    /// Adds this API key.
    #[must_use]
    pub fn key(self, key: &Key) -> Self {
        Self { key: Some(key.text.clone()), ..self }
    }

    /// Adds this token.
    #[must_use]
    pub fn bearer(self, token: &str) -> Self {
        Self { key: Some(token.to_owned()), ..self }
    }

    /// Sends a request and reads the head of its response.
    pub async fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Stream {
        let stream = TcpStream::connect(self.to).await.expect("a listener");
        let (mut sender, connection) =
            http1::Builder::new().handshake(TokioIo::new(stream)).await.expect("a connection");
        let connection = tokio::spawn(async move { drop(connection.await) });
        let mut request = Request::builder().uri(path).header("host", self.to.to_string());
        request = request.method(Method::from_bytes(method.as_bytes()).expect("a method"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(user) = &self.user {
            request = request.header("x-user-id", user);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).expect("a request");
        let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await;
        let answer: Response<Incoming> = answer.expect("an answer in time").expect("an answer");
        let (head, body) = answer.into_parts();
        let status = head.status.as_u16();
        let headers = head.headers;
        Stream { status, headers, body, read: String::new(), half: Vec::new(), connection }
    }

    /// Sends a request and reads the whole response.
    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = self.open(method, path, headers, body).await;
        while stream.more().await {}
        Reply { status: stream.status, headers: stream.headers.clone(), text: std::mem::take(&mut stream.read) }
    }

    /// Sends a `GET` and reads the whole response.
    pub async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "").await
    }

    /// Sends a `GET`, which must be answered with JSON and 200.
    pub async fn json(&self, path: &str) -> Value {
        let reply = self.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        reply.json()
    }

    /// Reads all facts of a session, page by page.
    pub async fn facts(&self, session: &str) -> Vec<Value> {
        let mut facts = Vec::new();
        let mut after = Value::from(0);
        while !after.is_null() {
            let mut page = self.json(&format!("/v1/sessions/{session}/events?after_seq={after}")).await;
            facts.extend(page["events"].as_array().expect("events").iter().cloned());
            after = page["next"].take();
        }
        facts
    }

    /// Sends `POST …/turns` with this idempotency key, and resumes after an event if one is named.
    pub async fn turn(&self, session: &str, agent: &str, key: &str, text: &str, last: Option<&str>) -> Stream {
        let body = json!({"agent_id": agent, "message": {"content": text}}).to_string();
        let mut headers = vec![("content-type", "application/json"), ("idempotency-key", key)];
        headers.extend(last.map(|last| ("last-event-id", last)));
        self.open("POST", &format!("/v1/sessions/{session}/turns"), &headers, &body).await
    }
}

impl Reply {
    /// Parses the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|why| panic!("{why}: {}", self.text))
    }

    /// Asserts that the response is a problem document with this status and code.
    pub fn must_be(&self, status: u16, code: &str) {
        let problem = self.json();
        assert_eq!((self.status, &problem["code"]), (status, &json!(code)), "{}", self.text);
        assert_eq!(problem["status"], status, "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{}", self.text);
        assert!(problem["retryable"].is_boolean(), "{}", self.text);
    }
}

impl Stream {
    /// Reads a little more; returns false at the end.
    pub async fn more(&mut self) -> bool {
        self.try_more().await.unwrap_or_else(|why| panic!("the answer broke: {why}"))
    }

    async fn try_more(&mut self) -> Result<bool, hyper::Error> {
        let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
        let Some(frame) = frame.expect("the node said nothing for too long") else {
            assert!(self.half.is_empty(), "it ends within a letter");
            return Ok(false);
        };
        self.half.extend(frame?.into_data().unwrap_or_default());
        // A read may end within a character.
        let whole = match std::str::from_utf8(&self.half) {
            Ok(text) => text.len(),
            Err(why) => {
                assert!(why.error_len().is_none(), "the answer is no UTF-8: {why}");
                why.valid_up_to()
            }
        };
        let whole = self.half.drain(..whole).collect();
        self.read.push_str(&String::from_utf8(whole).expect("it was looked at"));
        Ok(true)
    }

    /// Reads until the response breaks off or ends; returns the complete events.
    pub async fn until_broken(&mut self) -> Vec<Event> {
        while matches!(self.try_more().await, Ok(true)) {}
        std::iter::from_fn(|| self.block()).flatten().collect()
    }

    /// Returns the next event; `None` at the end. Comments are skipped, and do not extend the time limit.
    pub async fn next(&mut self) -> Option<Event> {
        tokio::time::timeout(PATIENCE, self.event()).await.expect("the node had nothing to say for too long")
    }

    async fn event(&mut self) -> Option<Event> {
        loop {
            match self.block() {
                Some(Some(event)) => return Some(event),
                Some(None) => {}
                None if self.more().await => {}
                None => {
                    assert!(self.read.is_empty(), "half an event: {}", self.read);
                    return None;
                }
            }
        }
    }

    /// Returns the next block up to an empty line: an event, or `Some(None)` for a comment.
    fn block(&mut self) -> Option<Option<Event>> {
        let (block, rest) = self.read.split_once("\n\n")?;
        let block = block.to_owned();
        let rest = rest.to_owned();
        self.read = rest;
        let field = |name| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let event = field("data: ").map(|data| {
            let data = serde_json::from_str(&data).expect("the node speaks JSON");
            documented::assert_event_data(&data);
            Event { id: field("id: "), name: field("event: "), data }
        });
        Some(event)
    }

    /// Waits for the next comment. No event may come before it.
    pub async fn comment(&mut self) {
        while !self.read.contains("\n\n") {
            assert!(self.more().await, "the stream ended");
        }
        let (comment, rest) = self.read.split_once("\n\n").expect("a whole one");
        assert!(comment.starts_with(':'), "{comment}");
        self.read = rest.to_owned();
    }

    /// Reads to the first event that fits.
    pub async fn until(&mut self, fits: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.next().await.expect("the stream ended");
            if fits(&event) {
                return event;
            }
        }
    }

    /// Reads all events to the end.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Reads the whole response, if it is no event stream.
    pub async fn reply(mut self) -> Reply {
        while self.more().await {}
        Reply { status: self.status, headers: self.headers.clone(), text: std::mem::take(&mut self.read) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Returns the text of a turn's events, appended to the earlier text without gaps or repeats.
pub fn text_of<'a>(events: impl IntoIterator<Item = &'a Event>, had: &str) -> String {
    let mut text = had.to_owned();
    let mut attempt = Value::Null;
    for Event { data, .. } in events {
        if data["type"] != "delta" || data["kind"] == "reasoning" {
            continue;
        }
        if data["attempt"] != attempt {
            if !attempt.is_null() || data["offset"] == 0 {
                text.clear();
            }
            attempt = data["attempt"].clone();
        }
        assert_eq!(data["offset"], text.len(), "a gap or a repeat in the text: {data}");
        text.push_str(data["text"].as_str().expect("text"));
    }
    text
}
