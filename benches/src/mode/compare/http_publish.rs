//! Publishes by HTTP: pipelined requests on a few HTTP/1.1 connections, or concurrent requests on one HTTP/2
//! connection for a server that closes after each request. Every answer's status is checked.
use crate::error::ConnectionFailure;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Number of connections. A channel always uses the same one, so that its messages stay in order.
const CONNECTIONS: usize = 8;
/// Maximum concurrent requests on an HTTP/2 connection.
const CONCURRENT_REQUESTS_MAX: usize = 64;
/// Beginning of every answer; no answer body of the two servers contains it.
const STATUS_PREFIX: &[u8] = b"HTTP/1.1 ";

/// The pipelined connections to one server.
pub struct PipelinedPublisher {
    halves: Vec<(OwnedWriteHalf, AbortOnDropHandle<()>)>,
    refused: Rc<RefCell<Option<String>>>,
}

// === impl PipelinedPublisher ===

impl PipelinedPublisher {
    /// Connects by HTTP/1.1.
    pub async fn open(at: SocketAddr) -> Result<Self, ConnectionFailure> {
        let unreachable = |error: std::io::Error| ConnectionFailure::Unreachable(format!("{at}: {error}"));
        let refused = Rc::new(RefCell::new(None));
        let mut halves = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = TcpStream::connect(at).await.map_err(unreachable)?;
            stream.set_nodelay(true).map_err(unreachable)?;
            let (reader, writer) = stream.into_split();
            let reader = tokio::task::spawn_local(read(reader, Rc::clone(&refused)));
            halves.push((writer, AbortOnDropHandle::new(reader)));
        }
        Ok(Self { halves, refused })
    }

    /// Sends requests that belong to this channel.
    pub async fn send(&mut self, channel: usize, requests: &[u8]) -> Result<(), ConnectionFailure> {
        if let Some(why) = self.refused.borrow_mut().take() {
            return Err(ConnectionFailure::Denied(why));
        }
        let (writer, reader) = &mut self.halves[channel % CONNECTIONS];
        let Err(error) = writer.write_all(requests).await else { return Ok(()) };
        // A server that closes the connection may have sent the reason, so the answers are read to their end.
        let _ = reader.await;
        let why = self.refused.borrow_mut().take();
        Err(why.map_or_else(|| ConnectionFailure::Broken(error.to_string()), ConnectionFailure::Denied))
    }
}

/// An HTTP/2 connection with concurrent requests, which have no order among each other.
pub struct Http2Publisher {
    sender: SendRequest<Full<Bytes>>,
    /// Aborts the connection's task on drop.
    _connection: AbortOnDropHandle<()>,
    permits: Arc<Semaphore>,
    under_way: JoinSet<Result<(), ConnectionFailure>>,
}

// === impl Http2Publisher ===

impl Http2Publisher {
    /// Connects by HTTP/2 without TLS, as both sides know it (RFC 9113 §3.3).
    pub async fn open(at: SocketAddr) -> Result<Self, ConnectionFailure> {
        let unreachable = |error: std::io::Error| ConnectionFailure::Unreachable(format!("{at}: {error}"));
        let stream = TcpStream::connect(at).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let (to, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(broken)?;
        // The requests report how the connection ended.
        let connection = tokio::spawn(async move { drop(connection.await) });
        let abreast = Arc::new(Semaphore::new(CONCURRENT_REQUESTS_MAX));
        Ok(Self {
            sender: to,
            _connection: AbortOnDropHandle::new(connection),
            permits: abreast,
            under_way: JoinSet::new(),
        })
    }

    /// Sends one request, as soon as fewer than the maximum are open.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<(), ConnectionFailure> {
        while let Some(ended) = self.under_way.try_join_next() {
            ended.map_err(|error| ConnectionFailure::Broken(error.to_string()))??;
        }
        let place = Arc::clone(&self.permits).acquire_owned().await;
        let answer = self.sender.send_request(request);
        self.under_way.spawn_local(async move {
            let answer = answer.await.map_err(broken)?;
            let status = answer.status();
            let said = answer.into_body().collect().await.map_err(broken)?.to_bytes();
            drop(place);
            let why = || ConnectionFailure::Denied(format!("{status} {}", String::from_utf8_lossy(&said)));
            if status.is_success() { Ok(()) } else { Err(why()) }
        });
        Ok(())
    }
}

fn broken(error: hyper::Error) -> ConnectionFailure {
    ConnectionFailure::Broken(error.to_string())
}

/// Checks every status; keeps the first one that is not 2xx.
async fn read(mut reader: OwnedReadHalf, refused: Rc<RefCell<Option<String>>>) {
    let mut bytes = Vec::new();
    while reader.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        if let Some(answer) = take_refusal(&mut bytes) {
            refused.borrow_mut().get_or_insert(answer);
        }
    }
}

/// Checks the statuses in the received bytes, and leaves the end of the bytes, where a status may be cut off. Returns
/// the first answer whose status is not 2xx, as far as it has arrived.
fn take_refusal(bytes: &mut Vec<u8>) -> Option<String> {
    let mut refusal = None;
    let mut checked = 0;
    while let Some(found) = find(&bytes[checked..], STATUS_PREFIX) {
        let begin = checked + found;
        let code = begin + STATUS_PREFIX.len();
        if bytes.len() <= code {
            break;
        }
        if bytes[code] != b'2' {
            refusal.get_or_insert_with(|| String::from_utf8_lossy(&bytes[begin..]).into_owned());
        }
        checked = code + 1;
    }
    let rest = bytes.len().saturating_sub(STATUS_PREFIX.len()).max(checked);
    bytes.drain(..rest);
    refusal
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|found| found == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: &str = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok";
    const REFUSED: &str = "HTTP/1.1 507 Insufficient Storage\r\ncontent-length: 0\r\n\r\n";

    /// Returns the refusals found in the text if it arrives in parts of this many bytes.
    fn refusals(text: &str, part: usize) -> Vec<String> {
        let mut bytes = Vec::new();
        let parts = text.as_bytes().chunks(part);
        parts
            .filter_map(|part| {
                bytes.extend_from_slice(part);
                take_refusal(&mut bytes)
            })
            .collect()
    }

    #[test]
    fn each_status_is_checked_once_however_the_answers_are_cut() {
        let text = [ACCEPTED, ACCEPTED, REFUSED, ACCEPTED].concat();
        for part in 1..=text.len() {
            let refused = refusals(&text, part);
            assert_eq!(refused.len(), 1, "in parts of {part}: {refused:?}");
            assert!(refused[0].starts_with("HTTP/1.1 5"), "in parts of {part}: {refused:?}");
            assert!(refusals(&ACCEPTED.repeat(3), part).is_empty(), "in parts of {part}");
        }
    }

    #[test]
    fn unchecked_bytes_are_never_more_than_a_cut_status() {
        let mut bytes = ACCEPTED.repeat(100).into_bytes();
        assert_eq!(take_refusal(&mut bytes), None);
        assert!(bytes.len() <= STATUS_PREFIX.len(), "{} bytes are left", bytes.len());
    }
}
