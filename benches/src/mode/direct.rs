//! Direct requests to an agent: the first text without a node in between.
use crate::due_queue::DueQueue;
use crate::error::{ANSWER_TIMEOUT, BenchError, ConnectionFailure};
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::target::Target;
use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Instant;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection to an agent, kept open as a gateway keeps it.
#[derive(Debug)]
pub struct DirectClient {
    run: Rc<Run>,
    target: Target,
    sender: SendRequest<Full<Bytes>>,
    body: Bytes,
    due_queue: Rc<DueQueue>,
}

// === impl DirectClient ===

impl DirectClient {
    /// Connects, and sends one request to warm up the connection.
    pub async fn open(run: &Rc<Run>, target: &Target, text: &str) -> Result<Self, BenchError> {
        let body = json!({
            "agent_id": "direct", "session_id": "direct", "run_id": "direct.1",
            "input_message": { "role": "user", "content": text }, "context": { "user_id": "bench" },
        });
        let sender = connect(target).await?;
        let body = Bytes::from(body.to_string());
        let mut direct = Self { run: Rc::clone(run), target: target.clone(), sender, body, due_queue: Rc::default() };
        direct.ask(Instant::now()).await?;
        Ok(direct)
    }

    /// Returns the queue of due times; adding to it makes the client send a request.
    pub fn due_queue(&self) -> Rc<DueQueue> {
        Rc::clone(&self.due_queue)
    }

    /// Sends requests when they are due, until the load is over.
    pub async fn run(mut self) {
        loop {
            if let Some(due) = self.due_queue.pop() {
                self.run.record_duration(Measure::Late, due.elapsed());
                match self.ask(due).await {
                    Ok(()) => self.run.count(Count::Completed, 1),
                    Err(lost) => return self.run.count_lost(&lost),
                }
            } else if self.run.is_over() {
                return;
            } else {
                self.due_queue.notified().await;
            }
        }
    }

    /// Sends one request, and measures its first text.
    async fn ask(&mut self, due: Instant) -> Result<(), ConnectionFailure> {
        timeout(ANSWER_TIMEOUT, self.request(due)).await.map_err(|_| ConnectionFailure::TimedOut)?
    }

    async fn request(&mut self, due: Instant) -> Result<(), ConnectionFailure> {
        let mut request = Request::post(format!("{}/invoke", path(&self.target)));
        if let Some(headers) = request.headers_mut() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let host = HeaderValue::from_str(&self.target.address.to_string());
            headers.insert(header::HOST, host.map_err(broken)?);
        }
        let request = request.body(Full::new(self.body.clone())).map_err(broken)?;
        self.sender.ready().await.map_err(broken)?;
        let mut response = self.sender.send_request(request).await.map_err(broken)?;
        if !response.status().is_success() {
            return Err(ConnectionFailure::Broken(format!("the agent answered {}", response.status())));
        }
        let mut is_first = true;
        while let Some(frame) = response.body_mut().frame().await {
            let frame = frame.map_err(broken)?;
            let is_text = frame.data_ref().is_some_and(|data| data.starts_with(b"event: delta"));
            if is_text && std::mem::take(&mut is_first) {
                self.run.record_duration(Measure::Direct, due.elapsed());
            }
        }
        if is_first { Err(ConnectionFailure::Broken("the agent said nothing".to_owned())) } else { Ok(()) }
    }
}

/// Opens a connection for HTTP/1.1.
pub(super) async fn connect(target: &Target) -> Result<SendRequest<Full<Bytes>>, ConnectionFailure> {
    let unreachable = |error: &dyn Display| ConnectionFailure::Unreachable(format!("{}: {error}", target.address));
    let stream = TcpStream::connect(target.address).await.map_err(|error| unreachable(&error))?;
    stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
    // The sender reports how the connection ended.
    tokio::task::spawn_local(async move { connection.await.ok() });
    Ok(sender)
}

/// Returns the path of a target's URL, without a slash at its end.
pub(super) fn path(target: &Target) -> &str {
    let rest = target.url.split_once("://").map_or("", |(_, rest)| rest);
    rest.find('/').map_or("", |at| rest[at..].trim_end_matches('/'))
}

/// Converts an error of a connection that was open.
pub(super) fn broken(error: impl Display) -> ConnectionFailure {
    ConnectionFailure::Broken(error.to_string())
}
