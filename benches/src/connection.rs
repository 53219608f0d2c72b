//! One WebSocket connection to a server, as lean as fifteen thousand of them must be.
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::target::Target;
use crate::trouble::{Lost, PATIENCE};
use crate::wire::{self, Heard, Limits};
use futures_util::{FutureExt, SinkExt, StreamExt};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config};

/// Saying goodbye is a courtesy.
const FAREWELL: Duration = Duration::from_secs(1);
/// Past so many connections their buffers count.
const CROWD: usize = 1000;
/// What a connection reads at a time: long answers come in pieces of 4 KiB and more.
const READ_BYTES: usize = 8 * 1024;
/// The same where there are many connections.
const READ_BYTES_IN_A_CROWD: usize = 1024;
/// A server sends no more in one message: a whole answer that was missed is one.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What nodes speak; a bare server speaks nothing, and must not be offered it.
const PROTOCOL: &str = "turnway.v1";

/// A WebSocket over TCP, in TLS or not.
pub type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A connection that belongs to a run, which counts what passes.
#[derive(Debug)]
pub struct Line {
    socket: Socket,
    run: Rc<Run>,
}

// === impl Line ===

impl Line {
    /// The n-th connection to a bare server: TCP, and the WebSocket handshake.
    pub async fn open(run: &Rc<Run>, n: usize) -> Result<Self, Lost> {
        Self::open_for(run, run.target(), n, None).await
    }

    async fn open_for(
        run: &Rc<Run>,
        at: &Target,
        n: usize,
        protocol: Option<&'static str>,
    ) -> Result<Self, Lost> {
        let read = if run.load().connections > CROWD { READ_BYTES_IN_A_CROWD } else { READ_BYTES };
        let opened = timeout(PATIENCE, open(at, n, protocol, read)).await;
        Ok(Self { socket: opened.map_err(|_| Lost::Silent)??, run: Rc::clone(run) })
    }

    /// The n-th connection, of this user, with these `subscribe` bodies to resume, welcomed.
    pub async fn hello(run: &Rc<Run>, n: usize, user: &str, resume: &str) -> Result<(Self, Limits), Lost> {
        Self::hello_at(run, run.target(), n, user, resume).await
    }

    /// The same to another node.
    pub async fn hello_at(
        run: &Rc<Run>,
        at: &Target,
        n: usize,
        user: &str,
        resume: &str,
    ) -> Result<(Self, Limits), Lost> {
        let since = Instant::now();
        let mut line = Self::open_for(run, at, n, Some(PROTOCOL)).await?;
        line.feed(wire::hello(user, run.api_key(), resume)).await?;
        line.flush().await?;
        let text = line.answer().await?;
        let heard = Heard::parse(&text).unwrap_or_default();
        let limits = heard.limits.filter(|_| heard.kind == "welcome");
        let limits = limits.ok_or_else(|| Lost::Denied(heard.why()))?;
        run.took(Measure::Connect, since.elapsed());
        Ok((line, limits))
    }

    /// The next message. Safe to drop and to ask again.
    pub async fn next(&mut self) -> Result<Utf8Bytes, Lost> {
        loop {
            let text = match self.socket.next().await {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Ok(Message::Binary(_))) => return Err(Lost::Broken("a binary frame".to_owned())),
                Some(Ok(Message::Close(frame))) => {
                    return Err(Lost::Closed(frame.map_or(1005, |frame| frame.code.into())));
                }
                Some(Err(error)) => return Err(error.into()),
                None => return Err(Lost::Broken("end of stream".to_owned())),
            };
            self.run.count(Count::MessagesIn, 1);
            self.run.count(Count::BytesIn, text.len() as u64);
            return Ok(text);
        }
    }

    /// The next message, if it is there already.
    pub fn next_now(&mut self) -> Option<Result<Utf8Bytes, Lost>> {
        self.next().now_or_never()
    }

    /// The next message; it must come soon.
    pub async fn answer(&mut self) -> Result<Utf8Bytes, Lost> {
        timeout(PATIENCE, self.next()).await.map_err(|_| Lost::Silent)?
    }

    /// Says something, once it is flushed.
    pub async fn feed(&mut self, text: String) -> Result<(), Lost> {
        self.run.count(Count::MessagesOut, 1);
        self.run.count(Count::BytesOut, text.len() as u64);
        Ok(self.socket.feed(Message::text(text)).await?)
    }

    /// Sends what was said.
    pub async fn flush(&mut self) -> Result<(), Lost> {
        Ok(self.socket.flush().await?)
    }

    /// Says goodbye, and does not wait long for the answer.
    pub async fn close(mut self) {
        let goodbye = async {
            self.socket.close(None).await.ok();
            while self.socket.next().await.is_some_and(|heard| heard.is_ok()) {}
        };
        let _ = timeout(FAREWELL, goodbye).await;
    }
}

async fn open(
    target: &Target,
    n: usize,
    protocol: Option<&'static str>,
    read_bytes: usize,
) -> Result<Socket, Lost> {
    let unreachable = |error: std::io::Error| Lost::Unreachable(format!("{}: {error}", target.address));
    let stream = match target.source(n) {
        Some(source) => {
            let socket = TcpSocket::new_v4().map_err(unreachable)?;
            socket.bind(source).map_err(unreachable)?;
            socket.connect(target.address).await
        }
        None => TcpStream::connect(target.address).await,
    };
    let stream = stream.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let mut request = target.url.as_str().into_client_request()?;
    if let Some(protocol) = protocol {
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(protocol));
    }
    let config = WebSocketConfig::default()
        .read_buffer_size(read_bytes)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let tls = target.url.starts_with("wss:").then(|| Connector::Rustls(turnway_client::trust()));
    let opened = client_async_tls_with_config(request, stream, Some(config), tls).await;
    Ok(opened.map_err(|error| Lost::Unreachable(format!("{}: {error}", target.url)))?.0)
}
