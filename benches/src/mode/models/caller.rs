//! A client of a models route: one connection, and one call at a time on it.
use super::answer;
use crate::due_queue::DueQueue;
use crate::error::{ANSWER_TIMEOUT, BenchError, ConnectionFailure};
use crate::mode::direct::{broken, connect, path};
use crate::mode::model_upstream::answer_text;
use crate::record::{Count, Measure};
use crate::run::Run;
use bytes::Bytes;
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use serde_json::json;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::Notify;
use tokio::time::timeout;

/// The request that every caller sends, and the answer that it must get.
#[derive(Debug)]
pub(super) struct CallPlan {
    run: Rc<Run>,
    head: Parts,
    body: Bytes,
    is_streamed: bool,
    chunks: u32,
    text: String,
    /// Calls after which the load ends.
    calls: Option<u64>,
    ended_calls: Cell<u64>,
    all_ended: Notify,
    reconnects: Cell<u64>,
}

/// A connection with one call at a time, which is opened again after a failure.
#[derive(Debug)]
pub(super) struct ModelCaller {
    plan: Rc<CallPlan>,
    sender: Option<SendRequest<Full<Bytes>>>,
    due_queue: Rc<DueQueue>,
    answer: Vec<u8>,
}

/// A stream that has begun and stays open.
#[derive(Debug)]
pub(super) struct HeldStream {
    body: Incoming,
    /// Kept because the connection closes without it.
    _sender: SendRequest<Full<Bytes>>,
}

/// The reason why a call has no complete answer.
#[derive(Debug)]
pub(super) enum CallFailure {
    Connection(ConnectionFailure),
    Status(StatusCode),
    Incomplete(&'static str),
}

// === impl CallPlan ===

impl CallPlan {
    /// Prepares the request; the headers are written as `name: value`.
    pub(super) fn new(run: &Rc<Run>, args: &crate::cli::Models) -> Result<Rc<Self>, BenchError> {
        let usage = BenchError::Usage;
        if args.calls.is_some_and(|calls| calls < run.load().connections as u64) {
            return Err(usage("--calls: at least one for each of the --connections".to_owned()));
        }
        let mut request = Request::post(format!("{}/chat/completions", path(run.target())));
        let headers = request.headers_mut().ok_or_else(|| usage(format!("{}: not a path", run.target().url)))?;
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let key = run.api_key().unwrap_or("none");
        let fixed = [format!("host: {}", run.target().address), format!("authorization: Bearer {key}")];
        for line in fixed.iter().chain(&args.header) {
            let (name, value) = line.split_once(':').ok_or_else(|| usage("--header: one has no colon".to_owned()))?;
            // Values may be keys, and are not shown.
            let name: HeaderName =
                name.trim().parse().map_err(|_| usage(format!("--header {name}: no header name")))?;
            let value = HeaderValue::from_str(value.trim());
            headers.insert(name.clone(), value.map_err(|_| usage(format!("--header {name}: no header value")))?);
        }
        let (head, ()) = request.body(()).map_err(|error| usage(error.to_string()))?.into_parts();
        let mut body = json!({ "model": args.model, "messages": [{ "role": "user", "content": "Count the tokens." }] });
        if args.stream {
            body["stream"] = true.into();
        }
        Ok(Rc::new(Self {
            run: Rc::clone(run),
            head,
            body: body.to_string().into(),
            is_streamed: args.stream,
            chunks: args.chunks,
            text: answer_text(args.chunks),
            calls: args.calls,
            ended_calls: Cell::new(0),
            all_ended: Notify::new(),
            reconnects: Cell::new(0),
        }))
    }

    /// Waits until the last of the requested calls has ended; forever if only the time ends the load.
    pub(super) async fn wait_for_last_call(&self) {
        self.all_ended.notified().await;
    }

    /// Returns how often a connection was opened again.
    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects.get()
    }

    fn request(&self) -> Request<Full<Bytes>> {
        Request::from_parts(self.head.clone(), Full::new(self.body.clone()))
    }

    /// Checks that an answer is complete.
    fn check(&self, bytes: &[u8]) -> Result<(), CallFailure> {
        let checked = if self.is_streamed {
            answer::check_stream(bytes, self.chunks)
        } else {
            answer::check_whole(bytes, &self.text)
        };
        checked.map_err(CallFailure::Incomplete)
    }

    /// Checks that a stream has the expected text.
    fn check_text(&self, bytes: &[u8]) -> Result<(), CallFailure> {
        let is_right = !self.is_streamed || answer::streamed_text(bytes).map_err(CallFailure::Incomplete)? == self.text;
        if is_right { Ok(()) } else { Err(CallFailure::Incomplete("a stream has another text")) }
    }
}

// === impl ModelCaller ===

impl ModelCaller {
    /// Connects, and makes one call, of which every byte of text is checked.
    pub(super) async fn open(plan: &Rc<CallPlan>) -> Result<Self, BenchError> {
        let sender = Some(connect(plan.run.target()).await?);
        let mut caller = Self { plan: Rc::clone(plan), sender, due_queue: Rc::default(), answer: Vec::new() };
        let ended = caller.call_in_time(Instant::now()).await;
        ended.and_then(|()| plan.check_text(&caller.answer)).map_err(|why| BenchError::Failed(why.to_string()))?;
        Ok(caller)
    }

    /// Returns the queue of due times; adding to it makes the client call.
    pub(super) fn due_queue(&self) -> Rc<DueQueue> {
        Rc::clone(&self.due_queue)
    }

    /// Calls when a call is due, until the load is over.
    pub(super) async fn run(mut self) {
        let run = Rc::clone(&self.plan.run);
        let mut was_idle = true;
        loop {
            if let Some(due) = self.due_queue.pop() {
                // A call that waited for the one before it is late because of the server.
                if was_idle && run.is_open_loop() {
                    run.record_duration(Measure::Late, due.elapsed());
                }
                let ended = self.call_in_time(due).await;
                self.count(&ended);
                was_idle = false;
            } else if run.is_over() {
                return;
            } else {
                self.due_queue.notified().await;
                was_idle = true;
            }
        }
    }

    fn count(&self, ended: &Result<(), CallFailure>) {
        let run = &self.plan.run;
        match ended {
            Ok(()) => {
                run.count(Count::Completed, 1);
                run.count(Count::InTime, u64::from(run.is_running()));
            }
            Err(failure) => {
                // Fails the whole load, because only complete answers are worth measuring.
                run.count(Count::Mismatches, 1);
                run.count(failure.count(), 1);
                run.count_error(&failure.code());
            }
        }
        self.plan.ended_calls.set(self.plan.ended_calls.get() + 1);
        let asked = run.record().borrow().counted(Count::Asked);
        match self.plan.calls {
            Some(calls) if self.plan.ended_calls.get() >= calls => self.plan.all_ended.notify_one(),
            Some(calls) if asked >= calls => {}
            Some(_) | None => run.make_due_again(&self.due_queue, ended.is_err()),
        }
    }

    async fn call_in_time(&mut self, due: Instant) -> Result<(), CallFailure> {
        let ended = timeout(ANSWER_TIMEOUT, self.call(due)).await;
        ended.unwrap_or(Err(CallFailure::Connection(ConnectionFailure::TimedOut)))
    }

    /// Makes one call, and measures its first byte and its end from when it was due.
    async fn call(&mut self, due: Instant) -> Result<(), CallFailure> {
        // After a failure the connection is not put back, and so closes.
        let kept = self.sender.take().filter(|sender| !sender.is_closed());
        let mut sender = match kept {
            Some(sender) => sender,
            None => {
                self.plan.reconnects.set(self.plan.reconnects.get() + 1);
                connect(self.plan.run.target()).await?
            }
        };
        let mut body = begin(&self.plan, &mut sender).await?;
        self.answer.clear();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(broken)?;
            let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) else { continue };
            if self.answer.is_empty() {
                self.plan.run.record_duration(Measure::FirstByte, due.elapsed());
            }
            self.answer.extend_from_slice(data);
        }
        let took = due.elapsed();
        self.plan.check(&self.answer)?;
        self.plan.run.record_duration(Measure::WholeCall, took);
        self.plan.run.count(Count::BytesIn, self.answer.len() as u64);
        self.sender = Some(sender);
        Ok(())
    }
}

/// Sends the request and returns the body of a successful answer.
async fn begin(plan: &CallPlan, sender: &mut SendRequest<Full<Bytes>>) -> Result<Incoming, CallFailure> {
    sender.ready().await.map_err(broken)?;
    let response = sender.send_request(plan.request()).await.map_err(broken)?;
    if response.status() != StatusCode::OK {
        return Err(CallFailure::Status(response.status()));
    }
    Ok(response.into_body())
}

// === impl HeldStream ===

impl HeldStream {
    /// Opens a stream and waits for its first bytes.
    pub(super) async fn open(plan: &CallPlan) -> Result<Self, BenchError> {
        let opening = async {
            let mut sender = connect(plan.run.target()).await?;
            let mut body = begin(plan, &mut sender).await?;
            match body.frame().await {
                Some(frame) => frame.map_err(broken)?,
                None => return Err(CallFailure::Incomplete("a stream is empty")),
            };
            Ok(Self { body, _sender: sender })
        };
        let opened = timeout(ANSWER_TIMEOUT, opening).await;
        let opened = opened.unwrap_or(Err(CallFailure::Connection(ConnectionFailure::TimedOut)));
        opened.map_err(|why| BenchError::Failed(why.to_string()))
    }

    /// Reads the pieces that have arrived; returns whether the stream is still open.
    pub(super) fn is_open(&mut self) -> bool {
        loop {
            match self.body.frame().now_or_never() {
                None => return true,
                Some(Some(Ok(_))) => {}
                Some(Some(Err(_)) | None) => return false,
            }
        }
    }
}

// === impl CallFailure ===

impl CallFailure {
    fn code(&self) -> String {
        match self {
            Self::Connection(failure) => failure.code(),
            Self::Status(status) => format!("http_{}", status.as_u16()),
            Self::Incomplete(_) => "incomplete".to_owned(),
        }
    }

    fn count(&self) -> Count {
        match self {
            Self::Status(_) => Count::Refused,
            Self::Connection(_) | Self::Incomplete(_) => Count::Failed,
        }
    }
}

impl From<ConnectionFailure> for CallFailure {
    fn from(failure: ConnectionFailure) -> Self {
        Self::Connection(failure)
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(failure) => failure.fmt(f),
            Self::Status(status) => write!(f, "a call was answered with {status}"),
            Self::Incomplete(why) => f.write_str(why),
        }
    }
}
