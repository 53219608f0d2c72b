//! Implements the link transport over a WebSocket.
use super::buffer_pressure::BufferPressure;
use super::close_reason::LinkCloseReason;
use super::frame_guard::FrameGuard;
use super::link_transport::{HeartbeatOutcome, LinkTransport, TransportEvent};
use super::upgrade::new_codec;
use crate::metrics::Transport;
use futures_util::{Sink, SinkExt, StreamExt};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Bytes, Message};

/// A WebSocket codec (RFC 6455) over a frame-tracking stream.
pub(super) type WebSocketCodec = WebSocketStream<FrameGuard>;

/// Longest wait between our close frame and the TCP close: a client that has left must not be waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A link transport over a WebSocket.
pub(super) struct WebSocket {
    codec: WebSocketCodec,
    /// Bytes that passed since the codec was created; tells when its buffers are worth replacing.
    pressure: BufferPressure,
    /// A ping was read whose pong may not have been written yet.
    owes_pong: bool,
}

// === impl WebSocket ===

impl WebSocket {
    pub(super) fn new(codec: WebSocketCodec) -> Self {
        Self { codec, pressure: BufferPressure::default(), owes_pong: false }
    }

    fn queue_message(&mut self, message: Message) -> Result<(), LinkCloseReason> {
        self.pressure.record(message.len());
        self.codec.start_send_unpin(message).map_err(|_| LinkCloseReason::Lost)
    }
}

impl LinkTransport for WebSocket {
    const TRANSPORT: Transport = Transport::WebSocket;
    const HAS_SIDE_STREAMS: bool = false;

    /// Reads nothing after a ping until its pong is written: the codec would keep megabytes of pongs for a client that
    /// does not read them.
    async fn recv(&mut self) -> Result<TransportEvent, LinkCloseReason> {
        if self.owes_pong {
            poll_fn(|cx| self.poll_flush(cx)).await?;
            self.owes_pong = false;
        }
        let message = match self.codec.next().await {
            None => return Err(LinkCloseReason::Lost),
            Some(Err(error)) => {
                return LinkCloseReason::from_websocket_error(&error).map_or(Ok(TransportEvent::TooLarge), Err);
            }
            Some(Ok(message)) => message,
        };
        self.codec.get_mut().message_delivered();
        self.pressure.record(message.len());
        match message {
            Message::Text(text) => Ok(TransportEvent::Text(text.as_str().to_owned())),
            Message::Binary(bytes) => Ok(TransportEvent::Binary(bytes.len())),
            Message::Ping(bytes) => {
                self.owes_pong = true;
                Ok(TransportEvent::SignOfLife(bytes.len()))
            }
            Message::Pong(bytes) => Ok(TransportEvent::SignOfLife(bytes.len())),
            Message::Frame(_) => Ok(TransportEvent::SignOfLife(0)),
            Message::Close(frame) => Err(LinkCloseReason::ByClient(frame.map_or(1005, |frame| frame.code.into()))),
        }
    }

    fn received(&self) -> u64 {
        self.codec.get_ref().received()
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>> {
        Pin::new(&mut self.codec).poll_ready(cx).map_err(|_| LinkCloseReason::Lost)
    }

    fn write(&mut self, text: String) -> Result<(), LinkCloseReason> {
        self.queue_message(Message::text(text))
    }

    fn heartbeat(&mut self) -> Result<HeartbeatOutcome, LinkCloseReason> {
        self.queue_message(Message::Ping(Bytes::new())).map(|()| HeartbeatOutcome::Written)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>> {
        Pin::new(&mut self.codec).poll_flush(cx).map_err(|_| LinkCloseReason::Lost)
    }

    fn needs_new_buffers(&self, is_idle: bool) -> bool {
        self.pressure.needs_replacement(is_idle) && self.codec.get_ref().is_drained()
    }

    /// Replaces the codec: the old one would keep its grown buffers for as long as the link lives.
    async fn replace_buffers(&mut self, is_idle: bool) {
        let seam = std::mem::take(self.codec.get_mut());
        self.codec = new_codec(seam, is_idle).await;
        self.pressure = BufferPressure::for_new_codec(is_idle);
    }

    async fn close(mut self: Box<Self>, end: LinkCloseReason) {
        let goodbye = async {
            match end {
                LinkCloseReason::ByServer(code, reason) => {
                    let reason = reason.into_owned().into();
                    self.codec.close(Some(CloseFrame { code: code.into(), reason })).await.ok();
                }
                // The codec has already queued the answer to the client's close frame and would refuse a second one.
                LinkCloseReason::ByClient(_) => _ = self.codec.flush().await,
                LinkCloseReason::Lost => return,
            }
            drain_until_closed(&mut self.codec).await;
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, goodbye).await;
    }
}

/// Reads until the client closes its side. A socket closed while unread bytes wait in it is reset, and the client loses
/// the close reason (RFC 6455 §7.1.1).
async fn drain_until_closed(codec: &mut WebSocketCodec) {
    let Some(mut stream) = codec.get_mut().take_stream() else { return };
    stream.shutdown().await.ok();
    let mut unread = [0; 512];
    while stream.read(&mut unread).await.is_ok_and(|count| count > 0) {}
}
