//! An agent in this process that sends the messages of a load as pieces of the answers it was asked for.
use crate::error::{ANSWER_TIMEOUT, BenchError, ConnectionFailure};
use crate::mode::compare::system::OutgoingMessage;
use bytes::Bytes;
use futures_util::stream::unfold;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

/// Maximum size of a request, more than a gateway passes on.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;
/// Capacity of an answer's queue; a load that is ahead waits, as an agent would.
const UNWRITTEN_MAX: usize = 64;
const DONE: &str = "event: done\ndata: {}\n\n";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// One server for all nodes of a comparison.
#[derive(Default)]
pub struct Agent {
    address: Cell<Option<SocketAddr>>,
    /// Requested answers that were not taken yet, by input text.
    asked: RefCell<BTreeMap<String, mpsc::Sender<Bytes>>>,
    more: Notify,
}

/// An answer in progress.
pub struct Answer {
    pieces: mpsc::Sender<Bytes>,
    sent_bytes: usize,
}

#[derive(Deserialize)]
struct Invocation {
    input_message: Input,
}

#[derive(Deserialize)]
struct Input {
    content: String,
}

// === impl Agent ===

impl Agent {
    /// Returns the server's address, and starts the server on the first call.
    pub async fn address_or_start(self: &Rc<Self>) -> Result<SocketAddr, BenchError> {
        if let Some(address) = self.address.get() {
            return Ok(address);
        }
        let unavailable = |error: std::io::Error| BenchError::Unavailable(format!("no agent: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(unavailable)?;
        let address = listener.local_addr().map_err(unavailable)?;
        self.address.set(Some(address));
        let agent = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let agent = Rc::clone(&agent);
                let _ = stream.set_nodelay(true);
                let service = service_fn(move |request| Rc::clone(&agent).answer(request));
                // A node cancels by closing the connection, which needs no handling.
                let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::task::spawn_local(async move { connection.await.ok() });
            }
        });
        Ok(address)
    }

    async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        if request.method() == Method::GET {
            return Ok(empty_response(StatusCode::OK));
        }
        let Ok(body) = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect().await else {
            return Ok(empty_response(StatusCode::PAYLOAD_TOO_LARGE));
        };
        let Ok(invocation) = serde_json::from_slice::<Invocation>(&body.to_bytes()) else {
            return Ok(empty_response(StatusCode::BAD_REQUEST));
        };
        let (pieces, unwritten) = mpsc::channel(UNWRITTEN_MAX);
        self.asked.borrow_mut().insert(invocation.input_message.content, pieces);
        self.more.notify_waiters();
        let events = unfold(unwritten, |mut unwritten| async move {
            let events = unwritten.recv().await?;
            Some((Ok(Frame::data(events)), unwritten))
        });
        let mut response = Response::new(StreamBody::new(events).boxed_unsync());
        let kind = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }

    /// Waits for the request with this input, and returns its answer.
    pub async fn take_answer(&self, what: &str) -> Result<Answer, ConnectionFailure> {
        let waiting = async {
            loop {
                let more = self.more.notified();
                if let Some(pieces) = self.asked.borrow_mut().remove(what) {
                    return Answer { pieces, sent_bytes: 0 };
                }
                more.await;
            }
        };
        timeout(ANSWER_TIMEOUT, waiting).await.map_err(|_| ConnectionFailure::TimedOut)
    }
}

fn empty_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::new().boxed_unsync());
    *response.status_mut() = status;
    response
}

// === impl Answer ===

impl Answer {
    /// Returns the bytes of text so far.
    pub fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// Sends each message as an event of its own.
    pub async fn send_messages(&mut self, lines: &[OutgoingMessage]) -> Result<(), ConnectionFailure> {
        let mut events = String::with_capacity(lines.len() * 180);
        for line in lines {
            events.extend(["event: delta\ndata: {\"text\":\"", line.text.as_str(), "\"}\n\n"]);
            self.sent_bytes += line.text.len();
        }
        self.write(events.into()).await
    }

    /// Ends the answer.
    pub async fn end(&mut self) -> Result<(), ConnectionFailure> {
        self.write(Bytes::from_static(DONE.as_bytes())).await
    }

    async fn write(&mut self, events: Bytes) -> Result<(), ConnectionFailure> {
        let sent = self.pieces.send(events).await;
        sent.map_err(|_| ConnectionFailure::Broken("the node reads the agent's answer no more".to_owned()))
    }
}
