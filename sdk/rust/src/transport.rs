//! The transport of messages: a WebSocket or QUIC. Used by the driver and by raw connections.
use crate::limits;
use crate::output::Lost;
use crate::quic::QuicConnection;
use crate::trust::TrustedRoots;
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::{CONTENT_TYPE, SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::http::{HeaderValue, Response};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};

/// Maximum characters of an HTTP server's plain-text answer: one line on a terminal.
const PLAIN_TEXT_MAX: usize = 80;

/// Boxed, because TLS state is large and the socket is moved.
type WebSocketConnection = Box<WebSocketStream<MaybeTlsStream<TcpStream>>>;

/// The gateway to connect to, and the trusted certificates.
#[derive(Clone, Debug)]
pub(crate) struct GatewayAddress {
    pub(crate) endpoint: String,
    pub(crate) trust: TrustedRoots,
}

/// One connection to a gateway.
pub(crate) enum ClientTransport {
    /// All messages are in one order.
    WebSocket(WebSocketConnection),
    /// Text arrives on separate streams.
    Quic(Box<QuicConnection>),
}

/// The result of receiving.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message in the connection's order.
    Text(String),
    /// A message outside that order.
    UnorderedText(String),
    /// A sign of life without a message.
    Activity,
    /// The connection is lost.
    Lost(Lost),
}

impl ClientTransport {
    pub(crate) async fn dial(to: GatewayAddress) -> Result<Self, Lost> {
        let GatewayAddress { endpoint, trust } = to;
        let dialed = async {
            match endpoint.strip_prefix("quic://") {
                Some(to) => QuicConnection::dial(to, &trust).await.map(|quic| Self::Quic(Box::new(quic))),
                None => dial(&endpoint, &trust).await.map(Self::WebSocket),
            }
        };
        let late = || Lost { code: None, reason: "no connection within 10 s".to_owned(), refused: false };
        timeout(limits::CONNECT_TIMEOUT, dialed).await.unwrap_or_else(|_| Err(late()))
    }

    /// Connects, sends `hello`, and waits for the first message.
    pub(crate) async fn dial_and_greet(to: GatewayAddress, hello: String) -> Option<(Self, String)> {
        let mut transport = Self::dial(to).await.ok()?;
        transport.feed(hello).await.ok()?;
        transport.flush().await.ok()?;
        loop {
            match transport.recv(false).await {
                Received::Text(text) => return Some((transport, text)),
                Received::UnorderedText(_) | Received::Activity => {}
                Received::Lost(_) => return None,
            }
        }
    }

    /// Returns whether data has arrived since the last call, including data that `recv` does not report.
    pub(crate) fn has_new_activity(&mut self) -> bool {
        match self {
            // A WebSocket reports all data through `recv`.
            Self::WebSocket(_) => false,
            Self::Quic(quic) => quic.has_new_acks(),
        }
    }

    /// Returns whether messages arrive in more than one order.
    pub(crate) fn has_streams(&self) -> bool {
        matches!(self, Self::Quic(_))
    }

    /// Receives the next message; if `waits`, none of the ordered ones. Cancel-safe.
    pub(crate) async fn recv(&mut self, waits: bool) -> Received {
        match self {
            Self::WebSocket(socket) => classify(socket.next().await),
            Self::Quic(quic) => quic.recv(waits).await,
        }
    }

    /// Queues a message for writing.
    pub(crate) async fn feed(&mut self, text: String) -> Result<(), String> {
        match self {
            Self::WebSocket(socket) => socket.feed(Message::text(text)).await.map_err(|error| error.to_string()),
            Self::Quic(quic) => quic.send(&text).await,
        }
    }

    /// Flushes the queued messages.
    pub(crate) async fn flush(&mut self) -> Result<(), String> {
        match self {
            Self::WebSocket(socket) => socket.flush().await.map_err(|error| error.to_string()),
            // A QUIC stream has no write buffer to flush.
            Self::Quic(_) => Ok(()),
        }
    }

    /// Drops the connection without waiting.
    pub(crate) fn abort(self) {
        match self {
            Self::WebSocket(_) => {}
            Self::Quic(quic) => quic.abort(),
        }
    }

    /// Closes the connection.
    pub(crate) async fn close(self) {
        let closed = async {
            match self {
                Self::WebSocket(mut socket) => _ = socket.as_mut().close(None).await,
                Self::Quic(quic) => quic.close().await,
            }
        };
        // A clean close is optional: the gateway notices a lost connection too.
        let _ = timeout(limits::CLOSE_TIMEOUT, closed).await;
    }

    /// Queues a text. A gateway that accepts no data within [`limits::WRITE_TIMEOUT`] is lost.
    pub(crate) async fn feed_in_time(&mut self, text: String) -> Result<(), Lost> {
        check_written(timeout(limits::WRITE_TIMEOUT, self.feed(text)).await)
    }

    /// Flushes the queued messages, within the same time.
    pub(crate) async fn flush_in_time(&mut self) -> Result<(), Lost> {
        check_written(timeout(limits::WRITE_TIMEOUT, self.flush()).await)
    }
}

/// Tells whether a write took too long. After a failed one reading continues: the close frame with the reason may still
/// arrive.
fn check_written(written: Result<Result<(), String>, Elapsed>) -> Result<(), Lost> {
    let written = written.map_err(|_| Lost {
        code: None,
        reason: "the gateway does not accept data".to_owned(),
        refused: false,
    })?;
    if let Err(error) = written {
        tracing::debug!(%error, "a write failed");
    }
    Ok(())
}

fn classify(received: Option<Result<Message, Error>>) -> Received {
    let lost = match received {
        Some(Ok(Message::Text(text))) => return Received::Text(text.as_str().to_owned()),
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_))) => {
            return Received::Activity;
        }
        Some(Ok(Message::Close(close))) => {
            let code = close.as_ref().map(|close| u16::from(close.code));
            let reason = close.map(|close| close.reason.to_string()).filter(|reason| !reason.is_empty());
            let reason = reason.unwrap_or_else(|| "the gateway closed the connection".to_owned());
            Lost { code, reason, refused: false }
        }
        Some(Err(error)) => Lost { code: None, reason: error.to_string(), refused: false },
        None => Lost { code: None, reason: "the connection ended".to_owned(), refused: false },
    };
    Received::Lost(lost)
}

async fn dial(endpoint: &str, trust: &TrustedRoots) -> Result<WebSocketConnection, Lost> {
    let lost = |reason: String, refused| Lost { code: None, reason, refused };
    let mut request = endpoint.into_client_request().map_err(|error| lost(error.to_string(), true))?;
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("turnway.v1"));
    let config = WebSocketConfig::default()
        .max_message_size(Some(limits::INCOMING_BYTES_MAX))
        .max_frame_size(Some(limits::INCOMING_BYTES_MAX))
        .max_write_buffer_size(2 * limits::INCOMING_BYTES_MAX);
    let tls = endpoint.starts_with("wss:").then(|| Connector::Rustls(trust.tls_config()));
    match connect_async_tls_with_config(request, Some(config), true, tls).await {
        Ok((socket, _)) => Ok(Box::new(socket)),
        Err(Error::Http(answer)) => {
            let status = answer.status();
            // Any other status may be temporary: a proxy without nodes, a node that is starting.
            let refused = matches!(status.as_u16(), 401 | 403);
            let why = plain_text_error(&answer).map(|why| format!(": {why}")).unwrap_or_default();
            Err(lost(format!("the gateway answers HTTP {status}{why}"), refused))
        }
        Err(error) => Err(lost(error.to_string(), false)),
    }
}

/// Returns the first line of a plain-text HTTP answer, which may say that the port requires TLS.
fn plain_text_error(answer: &Response<Option<Vec<u8>>>) -> Option<String> {
    let kind = answer.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    let text = str::from_utf8(answer.body().as_deref()?).ok()?;
    let line: String = text.lines().next()?.chars().filter(|c| !c.is_control()).take(PLAIN_TEXT_MAX).collect();
    (kind.starts_with("text/plain") && !line.is_empty()).then_some(line)
}
