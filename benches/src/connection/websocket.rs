//! A WebSocket connection, whose messages have one order.
use super::MESSAGE_BYTES_MAX;
use crate::error::ConnectionFailure;
use crate::target::Target;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config};

/// A WebSocket over TCP, with or without TLS.
type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A WebSocket connection of a load.
#[derive(Debug)]
pub(super) struct WebSocket(Socket);

// === impl WebSocket ===

impl WebSocket {
    /// Opens the n-th connection: TCP, TLS if the URL says so, and the WebSocket handshake with this
    /// subprotocol.
    pub(super) async fn open(
        target: &Target,
        n: usize,
        protocol: Option<&'static str>,
        read_bytes: usize,
    ) -> Result<Self, ConnectionFailure> {
        let unreachable =
            |error: std::io::Error| ConnectionFailure::Unreachable(format!("{}: {error}", target.address));
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
        Ok(Self(opened.map_err(|error| ConnectionFailure::Unreachable(format!("{}: {error}", target.url)))?.0))
    }

    /// Returns the next message. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Utf8Bytes, ConnectionFailure> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => return Ok(text),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(_))) => {
                    return Err(ConnectionFailure::Broken("a binary frame".to_owned()));
                }
                Some(Ok(Message::Close(frame))) => {
                    return Err(ConnectionFailure::Closed(frame.map_or(1005, |frame| frame.code.into())));
                }
                Some(Err(error)) => return Err(error.into()),
                None => return Err(ConnectionFailure::Broken("end of stream".to_owned())),
            }
        }
    }

    /// Queues a message until the next flush.
    pub(super) async fn queue(&mut self, text: String) -> Result<(), ConnectionFailure> {
        Ok(self.0.feed(Message::text(text)).await?)
    }

    /// Sends all queued messages.
    pub(super) async fn flush(&mut self) -> Result<(), ConnectionFailure> {
        Ok(self.0.flush().await?)
    }

    /// Sends a close frame and waits for the server's.
    pub(super) async fn close(&mut self) {
        self.0.close(None).await.ok();
        while self.0.next().await.is_some_and(|heard| heard.is_ok()) {}
    }
}
