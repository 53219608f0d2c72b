//! The listening side of the kit's gateway: one port for the WebSocket of adapters and for the HTTP of files. It parses no
//! message; `GatewayState` answers.
use super::{Outgoing, PROTOCOL, SharedGateway};
use crate::check_files::{FileAnswer, FileRequest};
use crate::limits::{CONNECTIONS_MAX, FILE_BYTES_MAX, OUTGOING_MAX};
use bytes::Bytes;
use futures_util::stream::SplitSink;
use futures_util::{SinkExt, StreamExt};
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::future::pending;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::Role;

/// Begins the paths of files.
const FILES_PATH: &str = "/v1/sessions/";

type AdapterSocket = WebSocketStream<TokioIo<Upgraded>>;

/// A connection that ends without an answer, as a check has planned.
#[derive(Debug, thiserror::Error)]
#[error("a planned fault")]
struct PlannedEnd;

/// Accepts connections, apart from those that a check has refused.
pub(super) async fn accept(listener: TcpListener, shared: Arc<SharedGateway>) {
    while let Ok((stream, _)) = listener.accept().await {
        let mut is_refused = false;
        shared.change(|state| {
            is_refused = state.refusals_left > 0 || state.connections.len() >= CONNECTIONS_MAX;
            if is_refused {
                state.refusals_left = state.refusals_left.saturating_sub(1);
                state.refused.push(Instant::now());
            }
        });
        if !is_refused {
            tokio::spawn(serve_connection(stream, Arc::clone(&shared)));
        }
    }
}

async fn serve_connection(stream: TcpStream, shared: Arc<SharedGateway>) {
    let service = service_fn(|request| answer(request, Arc::clone(&shared)));
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
    if served.is_err_and(|error| error.is_parse()) {
        shared.change(|state| state.violations.push("a connection that is no WebSocket".to_owned()));
    }
}

async fn answer(request: Request<Incoming>, shared: Arc<SharedGateway>) -> Result<Response<Full<Bytes>>, PlannedEnd> {
    if request.uri().path().starts_with(FILES_PATH) {
        return answer_file(request, &shared).await;
    }
    Ok(upgrade(request, shared))
}

/// Answers a request about files as the checks have planned.
async fn answer_file(request: Request<Incoming>, shared: &SharedGateway) -> Result<Response<Full<Bytes>>, PlannedEnd> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, FILE_BYTES_MAX).collect().await else {
        return Ok(problem(413, "too_large", None));
    };
    let header = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let request = FileRequest {
        is_upload: head.method == http::Method::POST,
        target: head.uri.to_string(),
        token: header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ").map(str::to_owned)),
        media_type: header(CONTENT_TYPE),
        body: body.to_bytes(),
    };
    let mut answer = FileAnswer::Silence;
    shared.change(|state| {
        if request.shows_a_token() {
            state.violations.push("the token of a file is in the URL of a request, where it gets into logs".to_owned());
        }
        answer = state.files.answer(&request);
    });
    match answer {
        FileAnswer::Stored(stored) => Ok(response(StatusCode::CREATED, "application/json", stored.to_string())),
        FileAnswer::Read(blob) => Ok(response(StatusCode::OK, &blob.media_type, blob.bytes)),
        FileAnswer::Problem(planned) => Ok(problem(planned.status, planned.code, planned.retry_after)),
        FileAnswer::Cut => Err(PlannedEnd),
        FileAnswer::Silence => pending().await,
    }
}

fn problem(status: u16, code: &str, retry_after: Option<u64>) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut body = json!({ "title": status.canonical_reason(), "status": status.as_u16(), "code": code,
        "detail": "a planned fault", "retryable": retry_after.is_some() });
    if let Some(seconds) = retry_after {
        body["retry_after_ms"] = json!(seconds * 1000);
    }
    let mut response = response(status, "application/problem+json", body.to_string());
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn response(status: StatusCode, media_type: &str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    if let Ok(media_type) = HeaderValue::from_str(media_type) {
        response.headers_mut().insert(CONTENT_TYPE, media_type);
    }
    response
}

/// Answers the handshake of a WebSocket, and serves the connection from then on.
fn upgrade(mut request: Request<Incoming>, shared: Arc<SharedGateway>) -> Response<Full<Bytes>> {
    let Ok(mut response) = create_response_with_body(&request, Full::default) else {
        shared.change(|state| state.violations.push("a connection that is no WebSocket".to_owned()));
        return problem(400, "invalid_message", None);
    };
    let header = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let protocols = header(SEC_WEBSOCKET_PROTOCOL).map(str::to_owned);
    let bearer = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
    if protocols.is_some() {
        response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    }
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(serve_adapter(upgraded, protocols, bearer, shared));
    response
}

async fn serve_adapter(
    upgraded: OnUpgrade,
    protocols: Option<String>,
    bearer: Option<String>,
    shared: Arc<SharedGateway>,
) {
    let Ok(upgraded) = upgraded.await else { return };
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let (sender, outgoing) = mpsc::channel(OUTGOING_MAX);
    let mut connection = 0;
    shared.change(|state| connection = state.open(protocols, bearer, sender));
    exchange(socket, outgoing, connection, &shared).await;
    shared.change(|state| state.connections[connection].closed = Some(Instant::now()));
}

/// Carries messages between a connection and the state until either side ends it.
async fn exchange(
    socket: AdapterSocket,
    mut outgoing: mpsc::Receiver<Outgoing>,
    connection: usize,
    shared: &SharedGateway,
) {
    let (mut sink, mut frames) = socket.split();
    loop {
        let frame = tokio::select! {
            frame = frames.next() => frame,
            order = outgoing.recv() => match order {
                Some(Outgoing::Text(message)) if write(&mut sink, &message).await => continue,
                Some(Outgoing::Text(_) | Outgoing::Cut) | None => return,
            },
        };
        match frame {
            Some(Ok(Message::Text(text))) => {
                let mut goes_on = true;
                shared.change(|state| goes_on = state.receive(connection, &text));
                if !goes_on {
                    return;
                }
            }
            Some(Ok(Message::Binary(_))) => {
                shared.change(|state| state.violations.push("a binary frame".to_owned()));
                return;
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_)) | Err(_)) | None => return,
        }
    }
}

async fn write(sink: &mut SplitSink<AdapterSocket, Message>, message: &Value) -> bool {
    sink.send(Message::text(message.to_string())).await.is_ok()
}
