//! A WebSocket connection that receives messages, with the protocol of the compared system.
use super::system::{FrameEffect, SubscriberProtocol};
use super::test_message::TestMessage;
use crate::error::{ANSWER_TIMEOUT, ConnectionFailure};
use futures_util::{FutureExt, SinkExt, StreamExt};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Number of source addresses for fifteen thousand connections: each address has some 28,000 ports, which are
/// freed late.
const SOURCES: usize = 8;
/// Receive buffer of a connection that is going to stop reading.
const STALLED_BYTES: u32 = 8 * 1024;
/// Maximum frames read before other tasks run.
const FRAMES_AT_ONCE_MAX: usize = 64;

/// A WebSocket over plain TCP.
pub type Socket = WebSocketStream<TcpStream>;

/// Options of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Index that selects the source address.
    pub n: usize,
    /// Size of the read buffer.
    pub read_bytes: usize,
    /// Gives the socket a small receive buffer, because the connection is going to stop reading.
    pub will_stall: bool,
}

/// A receiving connection.
pub struct Listener {
    socket: Socket,
    protocol: Box<dyn SubscriberProtocol>,
}

// === impl ConnectOptions ===

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { n: 0, read_bytes: 64 * 1024, will_stall: false }
    }
}

/// Opens a WebSocket.
pub async fn open(
    at: SocketAddr,
    path: &str,
    protocol: Option<&str>,
    way: ConnectOptions,
) -> Result<Socket, ConnectionFailure> {
    let unreachable = |error: std::io::Error| ConnectionFailure::Unreachable(format!("{at}: {error}"));
    let socket = TcpSocket::new_v4().map_err(unreachable)?;
    if way.will_stall {
        socket.set_recv_buffer_size(STALLED_BYTES).map_err(unreachable)?;
    }
    let source = u8::try_from(way.n % SOURCES).unwrap_or(0) + 1;
    socket.bind((Ipv4Addr::new(127, 0, 0, source), 0).into()).map_err(unreachable)?;
    let stream = socket.connect(at).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let mut request = format!("ws://{at}{path}").into_client_request()?;
    if let Some(protocol) = protocol.and_then(|protocol| HeaderValue::from_str(protocol).ok()) {
        request.headers_mut().insert("sec-websocket-protocol", protocol);
    }
    let config = WebSocketConfig::default().read_buffer_size(way.read_bytes);
    let opened = client_async_with_config(request, stream, Some(config)).await;
    Ok(opened.map_err(|error| ConnectionFailure::Unreachable(format!("{at}{path}: {error}")))?.0)
}

// === impl Listener ===

impl Listener {
    /// Connects, and returns once the subscription is active. Messages that arrive meanwhile are counted.
    pub async fn open(
        at: SocketAddr,
        mut subscriber: Box<dyn SubscriberProtocol>,
        way: ConnectOptions,
        into: &mut dyn FnMut(TestMessage),
    ) -> Result<Self, ConnectionFailure> {
        let door = subscriber.endpoint();
        let opening = async {
            let socket = open(at, &door.path, door.protocol, way).await?;
            let first = subscriber.first_message();
            let mut listener = Self { socket, protocol: subscriber };
            let Some(first) = first else { return Ok(listener) };
            listener.socket.send(first).await?;
            while !listener.next(into).await? {}
            Ok(listener)
        };
        timeout(ANSWER_TIMEOUT, opening).await.map_err(|_| ConnectionFailure::TimedOut)?
    }

    /// Reads one frame, and frames that have already arrived.
    pub async fn receive(&mut self, into: &mut dyn FnMut(TestMessage)) -> Result<(), ConnectionFailure> {
        self.next(into).await?;
        for _ in 1..FRAMES_AT_ONCE_MAX {
            match self.next(into).now_or_never() {
                Some(heard) => heard?,
                None => break,
            };
        }
        Ok(())
    }

    /// Reads one frame, and returns whether it confirmed the subscription.
    async fn next(&mut self, into: &mut dyn FnMut(TestMessage)) -> Result<bool, ConnectionFailure> {
        let reply = match self.socket.next().await {
            Some(Ok(Message::Text(text))) => self.protocol.handle_frame(text.as_bytes(), into),
            Some(Ok(Message::Binary(bytes))) => self.protocol.handle_frame(&bytes, into),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => FrameEffect::Nothing,
            Some(Ok(Message::Close(frame))) => {
                return Err(ConnectionFailure::Closed(frame.map_or(1005, |frame| frame.code.into())));
            }
            Some(Err(Error::ConnectionClosed | Error::AlreadyClosed)) | None => {
                return Err(ConnectionFailure::Broken("end of stream".to_owned()));
            }
            Some(Err(error)) => return Err(error.into()),
        };
        match reply {
            FrameEffect::Nothing => Ok(false),
            FrameEffect::Ready => Ok(true),
            FrameEffect::Send(message) => {
                self.socket.send(message).await?;
                Ok(false)
            }
        }
    }

    /// Drops the connection without closing it, and returns the protocol state for a reconnect.
    pub fn disconnect(self) -> Box<dyn SubscriberProtocol> {
        self.protocol
    }
}
