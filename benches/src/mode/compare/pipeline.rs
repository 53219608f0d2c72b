//! Publishing by HTTP: requests one behind the other on a few connections, or abreast on one of HTTP/2 where a server
//! would hang up after each; and each answer looked at.
use crate::trouble::Lost;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Connections that requests go by. A channel keeps to one, so that its messages stay in order.
const CONNECTIONS: usize = 8;
/// Requests under way at a time on a connection of HTTP/2.
const ABREAST: usize = 64;
/// How every answer begins, and no answer's body of the two servers holds it.
const STATUS: &[u8] = b"HTTP/1.1 ";

/// The connections to one server.
pub struct Pipeline {
    halves: Vec<(OwnedWriteHalf, AbortOnDropHandle<()>)>,
    refused: Rc<RefCell<Option<String>>>,
}

// === impl Pipeline ===

impl Pipeline {
    /// Connects.
    pub async fn open(at: SocketAddr) -> Result<Self, Lost> {
        let unreachable = |error: std::io::Error| Lost::Unreachable(format!("{at}: {error}"));
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
    pub async fn send(&mut self, channel: usize, requests: &[u8]) -> Result<(), Lost> {
        if let Some(why) = self.refused.borrow_mut().take() {
            return Err(Lost::Denied(why));
        }
        let (writer, reader) = &mut self.halves[channel % CONNECTIONS];
        let Err(error) = writer.write_all(requests).await else { return Ok(()) };
        // Whoever hangs up may have said why: it is read to its end.
        let _ = reader.await;
        let why = self.refused.borrow_mut().take();
        Err(why.map_or_else(|| Lost::Broken(error.to_string()), Lost::Denied))
    }
}

/// Requests abreast on one connection of HTTP/2: in no order among each other.
pub struct Streams {
    to: SendRequest<Full<Bytes>>,
    /// Ends with it.
    _connection: AbortOnDropHandle<()>,
    abreast: Arc<Semaphore>,
    under_way: JoinSet<Result<(), Lost>>,
}

// === impl Streams ===

impl Streams {
    /// Connects.
    pub async fn open(at: SocketAddr) -> Result<Self, Lost> {
        let unreachable = |error: std::io::Error| Lost::Unreachable(format!("{at}: {error}"));
        let stream = TcpStream::connect(at).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let (to, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(broken)?;
        // How it ended its requests say.
        let connection = tokio::spawn(async move { drop(connection.await) });
        let abreast = Arc::new(Semaphore::new(ABREAST));
        Ok(Self { to, _connection: AbortOnDropHandle::new(connection), abreast, under_way: JoinSet::new() })
    }

    /// Sends one request, as soon as fewer than so many are under way.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<(), Lost> {
        while let Some(ended) = self.under_way.try_join_next() {
            ended.map_err(|error| Lost::Broken(error.to_string()))??;
        }
        let place = Arc::clone(&self.abreast).acquire_owned().await;
        let answer = self.to.send_request(request);
        self.under_way.spawn_local(async move {
            let answer = answer.await.map_err(broken)?;
            let status = answer.status();
            let said = answer.into_body().collect().await.map_err(broken)?.to_bytes();
            drop(place);
            let why = || Lost::Denied(format!("{status} {}", String::from_utf8_lossy(&said)));
            if status.is_success() { Ok(()) } else { Err(why()) }
        });
        Ok(())
    }
}

fn broken(error: hyper::Error) -> Lost {
    Lost::Broken(error.to_string())
}

/// Looks at each status; the first that is none of 2xx stays.
async fn read(mut reader: OwnedReadHalf, refused: Rc<RefCell<Option<String>>>) {
    let (mut bytes, seen) = (Vec::new(), Cell::new(0));
    while reader.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        let mut at = seen.get();
        while let Some(found) = find(&bytes[at..], STATUS) {
            let code = at + found + STATUS.len();
            if bytes.len() <= code {
                break;
            }
            if bytes[code] != b'2' {
                let answer = String::from_utf8_lossy(&bytes[at + found..]).into_owned();
                refused.borrow_mut().get_or_insert(answer);
            }
            at = code + 1;
        }
        // A status that is cut stays until the rest of it is there.
        let rest = bytes.len().saturating_sub(STATUS.len()).max(at);
        bytes.drain(..rest.min(bytes.len()));
        seen.set(0);
    }
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|found| found == word)
}
