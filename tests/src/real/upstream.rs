//! HTTP servers of models that a test scripts: the exact bytes of each answer, released piece by piece, and a record
//! of every request. They parse no more of HTTP/1.1 than a request needs, so that an answer can break anywhere.
use super::PATIENCE;
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

/// Largest head of a request. A longer one fails the connection.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// One request, as the server received it.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    pub method: String,
    pub path: String,
    /// Part of the target behind `?`; `None` without one.
    pub query: Option<String>,
    /// Header fields in order, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// Number of the connection, from 1.
    pub connection: usize,
}

impl UpstreamRequest {
    /// Returns the value of a header field, or `None` without one.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Parses the body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a body of JSON")
    }
}

/// One step of an answer.
#[derive(Clone, Debug)]
enum Step {
    Write(Bytes),
    /// Waits for one [`Exchange::release`].
    Gate,
    /// Closes the connection, wherever the answer is.
    Cut,
    /// Never continues; the connection stays open.
    Hang,
}

/// Script of one answer: steps in the order in which they are called. Without [`Self::cut`] or [`Self::hang`] at its
/// end, the connection stays open for a next request.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    steps: Vec<Step>,
}

impl Answer {
    /// Creates an empty script, for answers that wait or break before their head.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an answer with this status, further header fields and a body with `content-length`.
    pub fn whole(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Self {
        Self::new().then_whole(status, headers, body)
    }

    /// Creates an answer of JSON with this status.
    pub fn json(status: u16, body: impl Into<Bytes>) -> Self {
        Self::whole(status, &[("content-type", "application/json")], body)
    }

    /// Creates the head of a chunked event stream with status 200; pieces follow.
    pub fn stream() -> Self {
        Self::new().head(200, &[("content-type", "text/event-stream; charset=utf-8")])
    }

    /// Creates a complete event stream with each piece in a chunk of its own.
    pub fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        pieces.into_iter().fold(Self::stream(), Self::piece).end()
    }

    /// Adds a whole answer, for example after a gate.
    #[must_use]
    pub fn then_whole(self, status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let length = body.len().to_string();
        let headers = [headers, &[("content-length", length.as_str())]].concat();
        self.raw(head(status, &headers)).raw(body)
    }

    /// Adds the head of a chunked answer.
    #[must_use]
    pub fn head(self, status: u16, headers: &[(&str, &str)]) -> Self {
        self.raw(head(status, &[headers, &[("transfer-encoding", "chunked")]].concat()))
    }

    /// Adds one chunk of the body, written at once. An empty piece adds nothing, because it would end the body.
    #[must_use]
    pub fn piece(self, bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return self;
        }
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.raw(chunk)
    }

    /// Adds bytes as they are, without a frame.
    #[must_use]
    pub fn raw(mut self, bytes: impl Into<Bytes>) -> Self {
        self.steps.push(Step::Write(bytes.into()));
        self
    }

    /// Adds a wait for one [`Exchange::release`].
    #[must_use]
    pub fn gate(mut self) -> Self {
        self.steps.push(Step::Gate);
        self
    }

    /// Adds the proper end of a chunked body.
    #[must_use]
    pub fn end(self) -> Self {
        self.raw(&b"0\r\n\r\n"[..])
    }

    /// Ends the answer by closing the connection.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.steps.push(Step::Cut);
        self
    }

    /// Ends the answer by writing nothing more on an open connection.
    #[must_use]
    pub fn hang(mut self) -> Self {
        self.steps.push(Step::Hang);
        self
    }
}

fn head(status: u16, headers: &[(&str, &str)]) -> String {
    let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} Scripted\r\n{fields}\r\n")
}

/// A request and its answer, while it is written and after it.
#[derive(Debug)]
pub struct Exchange {
    pub request: UpstreamRequest,
    gate: Semaphore,
    closed: watch::Sender<Option<Instant>>,
}

impl Exchange {
    /// Lets the answer pass its next gate.
    pub fn release(&self) {
        self.gate.add_permits(1);
    }

    /// Waits until the peer has closed the request's connection; returns the time at which that was seen.
    pub async fn closed(&self) -> Instant {
        let mut closed = self.closed.subscribe();
        let seen = tokio::time::timeout(PATIENCE, closed.wait_for(Option::is_some)).await;
        let seen = seen.expect("the peer closes in time").expect("the exchange holds the sender");
        seen.expect("it was waited for")
    }

    /// Returns whether the peer has closed the request's connection.
    pub fn is_closed(&self) -> bool {
        self.closed.borrow().is_some()
    }

    fn close(&self) {
        self.closed.send_if_modified(|at| at.is_none().then(|| *at = Some(Instant::now())).is_some());
    }
}

type Script = Arc<dyn Fn(&UpstreamRequest) -> Answer + Send + Sync>;

/// A server of models on a free port. Stops, and closes its connections, when dropped.
#[derive(Debug)]
pub struct ScriptedUpstream {
    addr: SocketAddr,
    record: Arc<Record>,
    arrivals: tokio::sync::Mutex<mpsc::UnboundedReceiver<Arc<Exchange>>>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Record {
    exchanges: Mutex<Vec<Arc<Exchange>>>,
    connections: AtomicUsize,
    arrived: mpsc::UnboundedSender<Arc<Exchange>>,
}

impl ScriptedUpstream {
    /// Starts serving; `script` gives the answer to each request.
    pub async fn start(script: impl Fn(&UpstreamRequest) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let record = Arc::new(Record { exchanges: Mutex::default(), connections: AtomicUsize::new(0), arrived });
        let server = tokio::spawn(serve(listener, Arc::new(script), Arc::clone(&record)));
        Self { addr, record, arrivals: tokio::sync::Mutex::new(arrivals), server }
    }

    /// Starts serving one answer, the same for each request.
    pub async fn always(answer: Answer) -> Self {
        Self::start(move |_| answer.clone()).await
    }

    /// Starts serving these answers in order; the last one is repeated.
    pub async fn in_order(answers: Vec<Answer>) -> Self {
        let last = answers.last().cloned().expect("at least one answer");
        let left = Mutex::new(VecDeque::from(answers));
        Self::start(move |_| {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            next.unwrap_or_else(|| last.clone())
        })
        .await
    }

    /// Returns the base URL of its models.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Waits for the next request that no earlier call has returned.
    pub async fn next(&self) -> Arc<Exchange> {
        let mut arrivals = self.arrivals.lock().await;
        let next = tokio::time::timeout(PATIENCE, arrivals.recv()).await;
        next.expect("a request comes in time").expect("the record holds the sender")
    }

    /// Returns every request so far.
    pub fn requests(&self) -> Vec<UpstreamRequest> {
        let exchanges = self.record.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.iter().map(|exchange| exchange.request.clone()).collect()
    }

    /// Returns the only request. Panics if there was none, or another.
    pub fn only_request(&self) -> UpstreamRequest {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    /// Returns the number of requests so far.
    pub fn calls(&self) -> usize {
        self.record.exchanges.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.record.connections.load(Ordering::Relaxed)
    }
}

impl Drop for ScriptedUpstream {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Returns the base URL of a port on which nobody listens.
pub async fn unreachable_url() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    format!("http://{}/v1", listener.local_addr().expect("bound"))
}

async fn serve(listener: TcpListener, script: Script, record: Arc<Record>) {
    // Connections end with the server, because the set is dropped with this future.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let number = record.connections.fetch_add(1, Ordering::Relaxed) + 1;
        connections.spawn(converse(stream, number, Arc::clone(&script), Arc::clone(&record)));
        while connections.try_join_next().is_some() {}
    }
}

/// Answers the requests of one connection until either side closes it.
async fn converse(stream: TcpStream, number: usize, script: Script, record: Arc<Record>) {
    // Each write is a segment of its own: pieces are seen as they are released.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let (mut read, mut write) = stream.into_split();
    let mut buffer = BytesMut::new();
    while let Some(request) = receive(&mut read, &mut buffer, number).await {
        let answer = script(&request);
        let closed = watch::Sender::new(None);
        let exchange = Arc::new(Exchange { request, gate: Semaphore::new(0), closed });
        record.exchanges.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&exchange));
        // Nobody may wait for arrivals.
        let _ = record.arrived.send(Arc::clone(&exchange));
        let goes_on = tokio::select! {
            goes_on = play(answer, &exchange, &mut write) => goes_on,
            () = gone(&mut read) => false,
        };
        if !goes_on {
            // After a cut of the script's own, this means only that the exchange is over.
            exchange.close();
            return;
        }
        // Between requests the peer may close the connection: that closes the exchange before it.
        if buffer.is_empty() && is_gone(&mut read).await {
            exchange.close();
            return;
        }
    }
}

/// Writes an answer; returns whether the connection can be used for a next request.
async fn play(answer: Answer, exchange: &Exchange, write: &mut OwnedWriteHalf) -> bool {
    for step in answer.steps {
        match step {
            Step::Write(bytes) => {
                if write.write_all(&bytes).await.is_err() {
                    return false;
                }
            }
            Step::Gate => match exchange.gate.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return false,
            },
            Step::Cut => return false,
            Step::Hang => std::future::pending().await,
        }
    }
    true
}

/// Waits until the peer has closed the connection.
async fn gone(read: &mut OwnedReadHalf) {
    if !is_gone(read).await {
        // Bytes of a next request before the end of this answer: the answer comes first.
        std::future::pending::<()>().await;
    }
}

/// Waits for bytes or the end; returns whether it was the end.
async fn is_gone(read: &mut OwnedReadHalf) -> bool {
    let mut byte = [0; 1];
    !matches!(read.peek(&mut byte).await, Ok(1..))
}

/// Reads one request; `None` at the end of the connection, and for bytes that are no request.
async fn receive(read: &mut OwnedReadHalf, buffer: &mut BytesMut, connection: usize) -> Option<UpstreamRequest> {
    let end = loop {
        if let Some(at) = find(buffer, b"\r\n\r\n") {
            break at;
        }
        if buffer.len() > HEAD_BYTES_MAX || read.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer.split_to(end + 4).to_vec()).ok()?;
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let method = first.next()?.to_owned();
    let target = first.next()?;
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path.to_owned(), Some(query.to_owned())),
        None => (target.to_owned(), None),
    };
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers: Vec<(String, String)> = lines.filter_map(field).collect();
    let by_name: BTreeMap<&str, &str> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let body = if by_name.get("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
        chunks(read, buffer).await?
    } else {
        let length = by_name.get("content-length").map_or(Ok(0), |value| value.parse()).ok()?;
        take(read, buffer, length).await?
    };
    Some(UpstreamRequest { method, path, query, headers, body, connection })
}

/// Reads a chunked body.
async fn chunks(read: &mut OwnedReadHalf, buffer: &mut BytesMut) -> Option<Bytes> {
    let mut body = BytesMut::new();
    loop {
        let end = loop {
            if let Some(at) = find(buffer, b"\r\n") {
                break at;
            }
            if read.read_buf(buffer).await.ok()? == 0 {
                return None;
            }
        };
        let line = String::from_utf8(buffer.split_to(end + 2).to_vec()).ok()?;
        let length = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        let chunk = take(read, buffer, length + 2).await?;
        if length == 0 {
            return Some(body.freeze());
        }
        body.extend_from_slice(&chunk[..length]);
    }
}

/// Reads this number of bytes.
async fn take(read: &mut OwnedReadHalf, buffer: &mut BytesMut, length: usize) -> Option<Bytes> {
    while buffer.len() < length {
        if read.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(buffer.split_to(length).freeze())
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"POST /v1/x?beta=true HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";

    async fn send(upstream: &ScriptedUpstream) -> TcpStream {
        let mut stream = TcpStream::connect(upstream.addr).await.expect("a listener");
        stream.write_all(REQUEST).await.expect("sent");
        stream
    }

    async fn read_to_end(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("text");
        text
    }

    #[tokio::test]
    async fn answer_waits_at_its_gate_and_is_cut() {
        let upstream = ScriptedUpstream::always(Answer::new().gate().raw("abc").cut()).await;
        let stream = send(&upstream).await;
        let exchange = upstream.next().await;
        assert_eq!((exchange.request.path.as_str(), exchange.request.query.as_deref()), ("/v1/x", Some("beta=true")));
        assert_eq!((&exchange.request.body[..], exchange.request.header("host")), (&b"{}"[..], Some("a")));
        assert!(!exchange.is_closed());
        exchange.release();
        assert_eq!(read_to_end(stream).await, "abc");
    }

    #[tokio::test]
    async fn close_by_the_peer_is_seen_while_an_answer_hangs() {
        let upstream = ScriptedUpstream::always(Answer::stream().hang()).await;
        let stream = send(&upstream).await;
        let exchange = upstream.next().await;
        drop(stream);
        exchange.closed().await;
        assert_eq!((upstream.calls(), upstream.connections()), (1, 1));
    }

    #[tokio::test]
    async fn kept_connection_gets_the_answers_in_order() {
        let answers = vec![Answer::stream().piece(b"one").end(), Answer::json(503, "two").cut()];
        let upstream = ScriptedUpstream::in_order(answers).await;
        let mut stream = send(&upstream).await;
        upstream.next().await;
        stream.write_all(REQUEST).await.expect("sent");
        let text = read_to_end(stream).await;
        assert!(text.contains("\r\n\r\n3\r\none\r\n0\r\n\r\nHTTP/1.1 503 ") && text.ends_with("\r\n\r\ntwo"), "{text}");
        assert_eq!(upstream.connections(), 1);
    }
}
