//! The model of `--demo`: a small server in this process that answers by fixed rules in the format of chat completions, so
//! that a conversation can be tried offline. No language model, and says so. Started by `app`.
use crate::config::ModelSpec;
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use reply::{DemoReply, DemoRequest};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

mod reply;

/// Name of the demo model.
pub const MODEL: &str = "demo";
/// Pause between two words of a stream, so that a person sees it grow.
const WORD_PAUSE: Duration = Duration::from_millis(5);
/// Connections at a time; further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// Pause after a connection could not be accepted, for want of a file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of one request: the conversation of an agent has at most a quarter of it.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;

type DemoBody = BoxBody<Bytes, Infallible>;

/// Starts the server on a port of the loopback interface, and returns the upstream that calls it. The server ends with the
/// runtime.
pub fn start(runtime: &Handle) -> io::Result<ModelSpec> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let listener = {
        let _entered = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    runtime.spawn(serve(listener));
    ModelSpec::with_url(MODEL, &format!("http://{address}/v1")).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

async fn serve(listener: tokio::net::TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((connection, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        tokio::spawn(async move {
            let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
            // A client that breaks off needs no answer.
            _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
            drop(place);
        });
    }
}

async fn answer(request: Request<Incoming>) -> Response<DemoBody> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/v1/models") => {
            let model = json!({ "id": MODEL, "object": "model", "created": 0, "owned_by": "turnway" });
            document(StatusCode::OK, &json!({ "object": "list", "data": [model] }))
        }
        (&Method::POST, "/v1/chat/completions") => complete(request.into_body()).await,
        _ => error(StatusCode::NOT_FOUND, "the demo model has /v1/chat/completions and /v1/models only"),
    }
}

async fn complete(body: Incoming) -> Response<DemoBody> {
    let body = match Limited::new(body, REQUEST_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(cause) if cause.is::<LengthLimitError>() => {
            return error(StatusCode::PAYLOAD_TOO_LARGE, "the request is too long for the demo model");
        }
        Err(_) => return error(StatusCode::BAD_REQUEST, "the request was cut off"),
    };
    let request: DemoRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(cause) => return error(StatusCode::BAD_REQUEST, &format!("not a call of chat completions: {cause}")),
    };
    let reply = request.reply();
    if request.is_stream() { event_stream(&reply, request.includes_usage()) } else { whole(&reply) }
}

fn whole(reply: &DemoReply) -> Response<DemoBody> {
    let mut message = json!({ "role": "assistant", "content": reply.text() });
    if let Some(reasoning) = reply.reasoning() {
        message["reasoning_content"] = reasoning.into();
    }
    let choice = json!({ "index": 0, "message": message, "finish_reason": reply.finish_reason() });
    let mut page = head("chat.completion");
    page["choices"] = json!([choice]);
    page["usage"] = reply.usage();
    document(StatusCode::OK, &page)
}

fn event_stream(reply: &DemoReply, includes_usage: bool) -> Response<DemoBody> {
    let mut events: VecDeque<Bytes> = reply.deltas().map(|delta| chunk(&json!([choice(&delta, None)]))).collect();
    events.push_back(chunk(&json!([choice(&json!({}), Some(reply.finish_reason()))])));
    if includes_usage {
        let mut last = head("chat.completion.chunk");
        last["choices"] = json!([]);
        last["usage"] = reply.usage();
        events.push_back(event(&last));
    }
    events.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    let paced = stream::unfold(events, |mut events| async move {
        let event = events.pop_front()?;
        tokio::time::sleep(WORD_PAUSE).await;
        Some((Ok::<_, Infallible>(Frame::data(event)), events))
    });
    let mut response = Response::new(StreamBody::new(paced).boxed());
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    response
}

/// Returns the members that every answer has. The time is always the same, so that equal calls get equal answers.
fn head(object: &str) -> Value {
    json!({ "id": "chatcmpl-demo", "object": object, "created": 0, "model": MODEL })
}

fn choice(delta: &Value, finish_reason: Option<&str>) -> Value {
    json!({ "index": 0, "delta": delta, "finish_reason": finish_reason })
}

fn chunk(choices: &Value) -> Bytes {
    let mut chunk = head("chat.completion.chunk");
    chunk["choices"] = choices.clone();
    event(&chunk)
}

fn event(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}

fn error(status: StatusCode, message: &str) -> Response<DemoBody> {
    document(status, &json!({ "error": { "message": message, "type": "invalid_request_error" } }))
}

fn document(status: StatusCode, page: &Value) -> Response<DemoBody> {
    let mut response = Response::new(Full::new(Bytes::from(page.to_string())).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
