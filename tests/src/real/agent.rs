//! Agents behind HTTP, scripted by the test, with a journal of every invocation.
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// One `POST …/invoke`, as the agent saw it.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Which agent: the path before `/invoke`.
    pub agent: String,
    /// `run_id`.
    pub run_id: String,
    /// `session_id`.
    pub session_id: String,
    /// `x-run-attempt`.
    pub attempt: u64,
    /// `x-owner-epoch`.
    pub epoch: u64,
    /// The input's text.
    pub text: String,
    /// `messages`: what was said before, or null.
    pub messages: Value,
}

/// What an agent does with an invocation.
pub enum Reply {
    /// A status and nothing else.
    Status(u16),
    /// Event-stream headers, then whatever the script says until it returns.
    Speak(Box<dyn FnOnce(Voice) -> BoxFuture<'static, ()> + Send>),
    /// No answer at all; the connection stays open.
    Silence,
}

impl Reply {
    /// See [`Reply::Speak`].
    pub fn speak<F>(script: impl FnOnce(Voice) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<(), HungUp>> + Send + 'static,
    {
        Self::Speak(Box::new(|voice| {
            Box::pin(async {
                // A gateway that hangs up has its reasons.
                let _hung_up = script(voice).await.is_err();
            })
        }))
    }
}

/// The open answer of one invocation.
#[derive(Debug)]
pub struct Voice(mpsc::Sender<Bytes>);

/// The gateway has closed the request.
#[derive(Clone, Copy, Debug)]
pub struct HungUp;

impl Voice {
    /// Any bytes.
    pub async fn raw(&self, bytes: impl Into<Bytes>) -> Result<(), HungUp> {
        self.0.send(bytes.into()).await.map_err(|_| HungUp)
    }
    /// One event of the agent protocol.
    pub async fn event(&self, name: &str, data: &Value) -> Result<(), HungUp> {
        self.raw(format!("event: {name}\ndata: {data}\n\n")).await
    }
    /// A piece of text.
    pub async fn delta(&self, text: &str) -> Result<(), HungUp> {
        self.event("delta", &json!({"text": text})).await
    }
    /// The end.
    pub async fn done(&self) -> Result<(), HungUp> {
        self.event("done", &json!({"usage": {"tokens": 1}})).await
    }
    /// Until the gateway closes the request.
    pub async fn hung_up(&self) -> Result<(), HungUp> {
        self.0.closed().await;
        Err(HungUp)
    }
}

/// A server of agents, one per path. Stops when dropped.
#[derive(Debug)]
pub struct Agents {
    addr: SocketAddr,
    journal: Arc<Mutex<Vec<Invocation>>>,
    server: JoinHandle<()>,
}

type Script = Arc<dyn Fn(Invocation) -> Reply + Send + Sync>;

impl Agents {
    /// Starts serving on a free port.
    pub async fn start(script: impl Fn(Invocation) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let journal = Arc::new(Mutex::new(Vec::new()));
        let server = tokio::spawn(serve(listener, Arc::new(script), Arc::clone(&journal)));
        Self { addr, journal, server }
    }
    /// `ID=URL` for `--agent`.
    pub fn flag(&self, agent: &str) -> String {
        format!("{agent}=http://{}/{agent}", self.addr)
    }
    /// Every invocation so far.
    pub fn journal(&self) -> Vec<Invocation> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, script: Script, journal: Arc<Mutex<Vec<Invocation>>>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (script, journal) = (Arc::clone(&script), Arc::clone(&journal));
        let service = service_fn(move |request| answer(request, Arc::clone(&script), Arc::clone(&journal)));
        // A gateway that hangs up in mid-answer is an error of the connection, and meant.
        tokio::spawn(async move {
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await)
        });
    }
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

async fn answer(
    request: Request<Incoming>,
    script: Script,
    journal: Arc<Mutex<Vec<Invocation>>>,
) -> Result<Response<Body>, Infallible> {
    let status = |code: u16| {
        let body = http_body_util::Empty::new().boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(code).expect("a status");
        response
    };
    let Some(agent) =
        request.uri().path().strip_suffix("/invoke").map(|path| path.trim_matches('/').to_owned())
    else {
        return Ok(status(if request.uri().path().ends_with("/health") { 200 } else { 404 }));
    };
    let header = |name: &str| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let (attempt, epoch) = (header("x-run-attempt"), header("x-owner-epoch"));
    let Ok(body) = request.into_body().collect().await else { return Ok(status(400)) };
    let body: Value = serde_json::from_slice(&body.to_bytes()).expect("the gateway speaks JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let invocation = Invocation {
        agent,
        run_id: text(&body["run_id"]),
        session_id: text(&body["session_id"]),
        attempt: attempt.parse().expect("x-run-attempt"),
        epoch: epoch.parse().expect("x-owner-epoch"),
        text: text(&body["input_message"]["content"]),
        messages: body["messages"].clone(),
    };
    journal.lock().unwrap_or_else(PoisonError::into_inner).push(invocation.clone());
    match script(invocation) {
        Reply::Status(code) => Ok(status(code)),
        Reply::Silence => std::future::pending().await,
        Reply::Speak(speak) => {
            let (voice, heard) = mpsc::channel(16);
            tokio::spawn(speak(Voice(voice)));
            let frames = futures_util::stream::unfold(heard, |mut heard| async move {
                heard.recv().await.map(|bytes| (Ok(Frame::data(bytes)), heard))
            });
            let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
            let kind = hyper::header::HeaderValue::from_static("text/event-stream");
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
            Ok(response)
        }
    }
}
