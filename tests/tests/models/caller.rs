//! A raw caller of models: exact bytes of both bodies, and a connection of its own for each call.
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;

/// A caller with fixed header fields.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    to: SocketAddr,
    headers: Vec<(String, String)>,
}

/// The connection of one call, closed when dropped, also while the call waits for its head.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer that is still being received. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Bytes of the body so far.
    pub(crate) read: Vec<u8>,
    body: Incoming,
    _connection: Connection,
}

/// An answer, as far as it came.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// False if the connection closed before the proper end of the body.
    pub(crate) intact: bool,
}

impl Caller {
    pub(crate) fn new(node: &Node) -> Self {
        Self { to: node.http, headers: vec![("content-type".into(), "application/json".into())] }
    }

    /// Adds a header field, or replaces it.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn bearer(self, credential: &str) -> Self {
        self.with("authorization", &format!("Bearer {credential}"))
    }

    /// Sends a request and reads the head of its answer. Dropping the future closes the connection.
    pub(crate) async fn open(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Open {
        let stream = TcpStream::connect(self.to).await.expect("a listener");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a connection");
        let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
        let mut request = Request::builder().method(method).uri(path).header("host", self.to.to_string());
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        let answer = timeout(PATIENCE, sender.send_request(request)).await;
        let (head, body) = answer.expect("an answer in time").expect("an answer").into_parts();
        let status = head.status.as_u16();
        Open { status, headers: head.headers, read: Vec::new(), body, _connection: connection }
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Received {
        self.open("POST", path, body).await.rest().await
    }

    pub(crate) async fn get(&self, path: &str) -> Received {
        self.open("GET", path, Bytes::new()).await.rest().await
    }
}

impl Open {
    /// Reads one more piece; `None` at the proper end.
    async fn more(&mut self) -> Option<Result<(), hyper::Error>> {
        let frame = timeout(PATIENCE, self.body.frame()).await.expect("bytes or an end in time")?;
        Some(frame.map(|frame| self.read.extend(frame.into_data().unwrap_or_default())))
    }

    /// Reads until the body so far fits. Panics if it ends before.
    pub(crate) async fn until(&mut self, fits: impl Fn(&[u8]) -> bool) {
        while !fits(&self.read) {
            let piece = self.more().await;
            assert!(matches!(piece, Some(Ok(()))), "it ended: {piece:?}\n{}", String::from_utf8_lossy(&self.read));
        }
    }

    /// Reads until these bytes, and no others, have come.
    pub(crate) async fn until_exactly(&mut self, bytes: &[u8]) {
        self.until(|read| read.len() >= bytes.len()).await;
        assert_eq!(String::from_utf8_lossy(&self.read), String::from_utf8_lossy(bytes));
    }

    /// Reads to the end, or to where the connection broke.
    pub(crate) async fn rest(mut self) -> Received {
        let intact = loop {
            match self.more().await {
                None => break true,
                Some(Ok(())) => {}
                Some(Err(_)) => break false,
            }
        };
        Received { status: self.status, headers: self.headers, body: self.read, intact }
    }
}

impl Received {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    /// Returns a header field as text, or an empty text without it.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

/// Returns the hash by which bytes on both sides are compared.
pub(crate) fn sha256(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}
