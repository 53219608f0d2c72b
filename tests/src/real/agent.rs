//! HTTP agents that a test scripts, with a journal of every invocation.
use super::recording::Recording;
use super::steers::SteeringLog;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Key under which a received event's JSON holds its `Idempotency-Key` header.
pub const KEY: &str = "idempotency-key";

/// Connections that may wait to be accepted. A node that takes over thousands of turns calls all agents within two
/// seconds, and the kernel retries a connection that finds the queue full only after one second.
const BACKLOG: u32 = 4096;

/// Listens on a free loopback port.
fn listen() -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.listen(BACKLOG)
}

/// One `POST …/invoke`, as the agent received it.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Agent name: the path before `/invoke`.
    pub agent: String,
    pub run_id: String,
    pub session_id: String,
    /// Value of the header `x-run-attempt`.
    pub attempt: u64,
    /// Value of the header `x-owner-epoch`.
    pub epoch: u64,
    /// Text of the input message.
    pub text: String,
    /// Content of the input message: a text, or parts.
    pub content: Value,
    /// Field `messages`: the conversation so far, or null.
    pub messages: Value,
    /// Field `messages_url`: the URL of a file with the conversation so far, or null.
    pub messages_url: Value,
    pub context: Value,
    /// The token of the run, from the header `authorization`.
    pub token: String,
}

/// One `GET …/runs/{run_id}/events`, by which a gateway resumes a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeRequest {
    pub run_id: String,
    /// Value of the header `x-run-attempt`.
    pub attempt: u64,
    /// Value of the header `x-owner-epoch`.
    pub epoch: u64,
    /// Header `last-event-id`: number of events that the gateway has; 0 without the header.
    pub known: usize,
    /// Status of the answer.
    pub status: u16,
}

/// An agent's reaction to an invocation.
pub enum Reply {
    /// A status without a body.
    Status(u16),
    /// A status with `Retry-After` and a body of plain text.
    Error { status: u16, retry_after: &'static str, body: &'static str },
    /// Event-stream headers, then the script's events until it returns.
    Speak(Box<dyn FnOnce(AgentStream) -> BoxFuture<'static, ()> + Send>),
    /// The same, but the script continues without its request until a cancel; a gateway can resume the run.
    Outlive(Box<dyn FnOnce(AgentStream) -> BoxFuture<'static, ()> + Send>),
    /// No answer at all; the connection stays open.
    Silence,
}

impl Reply {
    /// Creates a [`Reply::Speak`].
    pub fn speak<F>(script: impl FnOnce(AgentStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<(), HungUp>> + Send + 'static,
    {
        Self::Speak(scripted(script))
    }

    /// Creates a [`Reply::Outlive`].
    pub fn outlive<F>(script: impl FnOnce(AgentStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<(), HungUp>> + Send + 'static,
    {
        Self::Outlive(scripted(script))
    }
}

fn scripted<F>(
    script: impl FnOnce(AgentStream) -> F + Send + 'static,
) -> Box<dyn FnOnce(AgentStream) -> BoxFuture<'static, ()> + Send>
where
    F: Future<Output = Result<(), HungUp>> + Send + 'static,
{
    Box::new(|stream| {
        Box::pin(async {
            // A gateway that closes the request is no error here.
            let _hung_up = script(stream).await.is_err();
        })
    })
}

/// Event stream of one invocation.
#[derive(Debug)]
pub struct AgentStream(StreamTarget);

/// Destination of the events.
#[derive(Debug)]
enum StreamTarget {
    /// The open request.
    Line(mpsc::Sender<Bytes>),
    /// A recording, from which resumed requests read.
    Tape(Arc<Recording>),
}

impl Drop for AgentStream {
    fn drop(&mut self) {
        if let StreamTarget::Tape(tape) = &self.0 {
            tape.end();
        }
    }
}

/// Error: the gateway has closed the request.
#[derive(Clone, Copy, Debug)]
pub struct HungUp;

impl AgentStream {
    /// Sends any bytes.
    pub async fn raw(&self, bytes: impl Into<Bytes>) -> Result<(), HungUp> {
        match &self.0 {
            StreamTarget::Line(line) => line.send(bytes.into()).await.map_err(|_| HungUp),
            StreamTarget::Tape(tape) => tape.say(&String::from_utf8_lossy(&bytes.into())),
        }
    }
    /// Sends one event of the agent protocol.
    pub async fn event(&self, name: &str, data: &Value) -> Result<(), HungUp> {
        self.raw(format!("event: {name}\ndata: {data}\n\n")).await
    }
    /// Sends a piece of text.
    pub async fn delta(&self, text: &str) -> Result<(), HungUp> {
        self.event("delta", &json!({"text": text})).await
    }
    /// Sends the end of the answer.
    pub async fn done(&self) -> Result<(), HungUp> {
        self.event("done", &json!({"usage": {"tokens": 1}})).await
    }
    /// Waits until the gateway closes the request.
    pub async fn hung_up(&self) -> Result<(), HungUp> {
        match &self.0 {
            StreamTarget::Line(line) => line.closed().await,
            StreamTarget::Tape(tape) => tape.stopped().await,
        }
        Err(HungUp)
    }
}

/// A server of agents, one per path. Stops when dropped.
#[derive(Debug)]
pub struct Agents {
    addr: SocketAddr,
    memory: Arc<Memory>,
    server: JoinHandle<()>,
}

type Script = Arc<dyn Fn(Invocation) -> Reply + Send + Sync>;

/// Received requests, and kept runs.
#[derive(Debug, Default)]
struct Memory {
    journal: Mutex<Vec<Invocation>>,
    again: Mutex<Vec<ResumeRequest>>,
    /// Latest attempt of each run that outlives its request.
    tapes: Mutex<BTreeMap<String, Arc<Recording>>>,
    /// Steering messages received.
    steers: Arc<SteeringLog>,
    /// Receiver of the events sent to `POST …/event`.
    news: Option<mpsc::UnboundedSender<Value>>,
}

impl Agents {
    /// Starts serving on a free port.
    pub async fn start(script: impl Fn(Invocation) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_steered(script, Arc::default()).await
    }
    /// The same, with steering messages recorded in `steers`.
    pub async fn start_steered(
        script: impl Fn(Invocation) -> Reply + Send + Sync + 'static,
        steers: Arc<SteeringLog>,
    ) -> Self {
        Self::start_with(script, Memory { steers, ..Memory::default() }).await
    }
    /// The same, with events about actions sent to `news`.
    pub async fn start_with_events(
        script: impl Fn(Invocation) -> Reply + Send + Sync + 'static,
        news: mpsc::UnboundedSender<Value>,
    ) -> Self {
        Self::start_with(script, Memory { news: Some(news), ..Memory::default() }).await
    }
    async fn start_with(script: impl Fn(Invocation) -> Reply + Send + Sync + 'static, memory: Memory) -> Self {
        let listener = listen().expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let memory = Arc::new(memory);
        let server = tokio::spawn(serve(listener, Arc::new(script), Arc::clone(&memory)));
        Self { addr, memory, server }
    }
    /// Returns `ID=URL` for `--agent`.
    pub fn flag(&self, agent: &str) -> String {
        format!("{agent}=http://{}/{agent}", self.addr)
    }
    /// Returns every invocation so far.
    pub fn journal(&self) -> Vec<Invocation> {
        self.memory.journal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// Returns the number of invocations with this attempt number, without copying the journal.
    pub fn invocations_of_attempt(&self, attempt: u64) -> usize {
        let journal = self.memory.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.iter().filter(|asked| asked.attempt == attempt).count()
    }
    /// Returns every request to resume a run.
    pub fn resume_requests(&self) -> Vec<ResumeRequest> {
        self.memory.again.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// Forgets every run, as a restarted agent does.
    pub fn forget(&self) {
        self.memory.tapes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, script: Script, memory: Arc<Memory>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let script = Arc::clone(&script);
        let memory = Arc::clone(&memory);
        let service = service_fn(move |request| answer(request, Arc::clone(&script), Arc::clone(&memory)));
        // A gateway that closes the connection in the middle of an answer is no error here.
        tokio::spawn(async move { drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await) });
    }
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

fn status(code: u16) -> Response<Body> {
    let mut response = Response::new(http_body_util::Empty::new().boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    response
}

/// Builds a response with a body.
fn error(code: u16, retry_after: &'static str, body: &'static str) -> Response<Body> {
    let body = http_body_util::Full::from(body).map_err(|never| match never {}).boxed_unsync();
    let response = Response::builder().status(code).header(hyper::header::RETRY_AFTER, retry_after);
    response.header(hyper::header::CONTENT_TYPE, "text/plain").body(body).expect("a response")
}

/// Builds an event stream of these pieces.
fn events(pieces: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let frames = pieces.map(|bytes| Ok(Frame::data(bytes)));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let kind = hyper::header::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}

fn header(request: &Request<Incoming>, name: &str) -> String {
    let value = request.headers().get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

async fn answer(request: Request<Incoming>, script: Script, memory: Arc<Memory>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let attempt = header(&request, "x-run-attempt");
    let epoch = header(&request, "x-owner-epoch");
    let path: Vec<&str> = path.trim_matches('/').split('/').collect();
    if let [_, "runs", run_id, "events"] = *path {
        let known = header(&request, "last-event-id").parse().unwrap_or(0);
        let attempt = attempt.parse().expect("x-run-attempt");
        let epoch = epoch.parse().expect("x-owner-epoch");
        return Ok(memory.rest(ResumeRequest { run_id: run_id.to_owned(), attempt, epoch, known, status: 200 }));
    }
    let key = header(&request, KEY);
    let token = header(&request, "authorization").trim_start_matches("Bearer ").to_owned();
    let Ok(body) = request.into_body().collect().await else { return Ok(status(400)) };
    let mut body: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match *path {
        [_, "steer"] => match memory.steers.take(&body) {
            Some(outcome) => {
                Ok(Response::new(http_body_util::Full::from(json!({ "outcome": outcome }).to_string()).boxed_unsync()))
            }
            None => std::future::pending().await,
        },
        [agent, "invoke"] => {
            let invocation = Invocation {
                agent: agent.to_owned(),
                run_id: text(&body["run_id"]),
                session_id: text(&body["session_id"]),
                attempt: attempt.parse().expect("x-run-attempt"),
                epoch: epoch.parse().expect("x-owner-epoch"),
                content: body["input_message"]["content"].clone(),
                text: text(&body["input_message"]["content"]),
                messages: body["messages"].clone(),
                messages_url: body["messages_url"].clone(),
                context: body["context"].clone(),
                token,
            };
            Ok(memory.invoked(invocation, &script).await)
        }
        [_, "event"] => {
            body[KEY] = key.into();
            let heard = memory.news.as_ref().is_some_and(|news| news.send(body).is_ok());
            Ok(status(if heard { 204 } else { 404 }))
        }
        [_, "cancel"] => {
            let tape = memory.tape(&text(&body["run_id"]));
            tape.iter().for_each(|tape| tape.stop());
            Ok(status(if tape.is_some() { 202 } else { 404 }))
        }
        [.., "health"] => Ok(status(200)),
        _ => Ok(status(404)),
    }
}

impl Memory {
    fn tape(&self, run_id: &str) -> Option<Arc<Recording>> {
        self.tapes.lock().unwrap_or_else(PoisonError::into_inner).get(run_id).cloned()
    }

    /// Answers a request to resume a run; a request with an older epoch than an earlier request is refused.
    fn rest(&self, again: ResumeRequest) -> Response<Body> {
        let tape = self.tape(&again.run_id).filter(|tape| tape.attempt == again.attempt);
        let mut asked = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = asked.iter().filter(|other| other.run_id == again.run_id).map(|other| other.epoch).max();
        let code = match &tape {
            Some(_) if newest.is_some_and(|newest| newest > again.epoch) => 409,
            Some(_) => 200,
            None => 404,
        };
        asked.push(ResumeRequest { status: code, ..again });
        match tape.filter(|_| code == 200) {
            Some(tape) => events(tape.after(again.known)),
            None => status(code),
        }
    }

    async fn invoked(&self, invocation: Invocation, script: &Script) -> Response<Body> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).push(invocation.clone());
        let run_id = invocation.run_id.clone();
        let attempt = invocation.attempt;
        match script(invocation) {
            Reply::Status(code) => status(code),
            Reply::Error { status, retry_after, body } => error(status, retry_after, body),
            Reply::Silence => std::future::pending().await,
            Reply::Speak(speak) => {
                let (stream, heard) = mpsc::channel(16);
                tokio::spawn(speak(AgentStream(StreamTarget::Line(stream))));
                events(futures_util::stream::unfold(heard, |mut heard| async move {
                    heard.recv().await.map(|bytes| (bytes, heard))
                }))
            }
            Reply::Outlive(speak) => {
                let tape = Arc::new(Recording::new(attempt));
                self.tapes.lock().unwrap_or_else(PoisonError::into_inner).insert(run_id, Arc::clone(&tape));
                tokio::spawn(speak(AgentStream(StreamTarget::Tape(Arc::clone(&tape)))));
                events(tape.after(0))
            }
        }
    }
}
