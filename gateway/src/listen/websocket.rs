//! Implements the link transport over a WebSocket.
use super::end::End;
use super::seam::Seam;
use super::upgrade::refit;
use super::wear::Wear;
use super::wire::{Beat, Heard, Wire};
use crate::metrics::Transport;
use futures_util::{Sink, SinkExt, StreamExt};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Bytes, Message};

/// A WebSocket codec (RFC 6455) over a frame-tracking stream.
pub(super) type Codec = WebSocketStream<Seam>;

/// Longest wait between our close frame and the TCP close: a client that has left must not be waited for.
const FAREWELL: Duration = Duration::from_secs(2);

/// A link transport over a WebSocket.
pub(super) struct WebSocket {
    codec: Codec,
    /// Bytes that passed since the codec was created; tells when its buffers are worth replacing.
    wear: Wear,
}

// === impl WebSocket ===

impl WebSocket {
    pub(super) fn new(codec: Codec) -> Self {
        Self { codec, wear: Wear::default() }
    }

    fn put(&mut self, message: Message) -> Result<(), End> {
        self.wear.add(message.len());
        self.codec.start_send_unpin(message).map_err(|_| End::Lost)
    }
}

impl Wire for WebSocket {
    const TRANSPORT: Transport = Transport::WebSocket;
    const TAKES_ASIDES: bool = false;

    async fn hear(&mut self) -> Result<Heard, End> {
        let message = match self.codec.next().await {
            None => return Err(End::Lost),
            Some(Err(error)) => return End::of(&error).map_or(Ok(Heard::TooLarge), Err),
            Some(Ok(message)) => message,
        };
        self.codec.get_mut().taken();
        self.wear.add(message.len());
        match message {
            Message::Text(text) => Ok(Heard::Text(text.as_str().to_owned())),
            Message::Binary(bytes) => Ok(Heard::Binary(bytes.len())),
            Message::Ping(bytes) | Message::Pong(bytes) => Ok(Heard::Alive(bytes.len())),
            Message::Frame(_) => Ok(Heard::Alive(0)),
            Message::Close(frame) => Err(End::Closed(frame.map_or(1005, |frame| frame.code.into()))),
        }
    }

    fn received(&self) -> u64 {
        self.codec.get_ref().received()
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        Pin::new(&mut self.codec).poll_ready(cx).map_err(|_| End::Lost)
    }

    fn write(&mut self, text: String) -> Result<(), End> {
        self.put(Message::text(text))
    }

    fn beat(&mut self) -> Result<Beat, End> {
        self.put(Message::Ping(Bytes::new())).map(|()| Beat::Written)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        Pin::new(&mut self.codec).poll_flush(cx).map_err(|_| End::Lost)
    }

    fn is_worn(&self, is_idle: bool) -> bool {
        self.wear.is_due(is_idle) && self.codec.get_ref().is_between()
    }

    /// Replaces the codec: the old one would keep its grown buffers for as long as the link lives.
    async fn refit(&mut self, is_idle: bool) {
        let seam = std::mem::take(self.codec.get_mut());
        self.codec = refit(seam, is_idle).await;
        self.wear = Wear::fresh(is_idle);
    }

    async fn close(mut self: Box<Self>, end: End) {
        let goodbye = async {
            match end {
                End::Close(code, reason) => {
                    let reason = reason.into_owned().into();
                    self.codec.close(Some(CloseFrame { code: code.into(), reason })).await.ok();
                }
                // The codec has already queued the answer to the client's close frame and would refuse a second one.
                End::Closed(_) => _ = self.codec.flush().await,
                End::Lost => return,
            }
            hang_up(&mut self.codec).await;
        };
        let _ = tokio::time::timeout(FAREWELL, goodbye).await;
    }
}

/// Reads until the client closes its side. A socket closed while unread bytes wait in it is reset, and the client loses
/// the close reason (RFC 6455 §7.1.1).
async fn hang_up(codec: &mut Codec) {
    let Some(mut stream) = codec.get_mut().take() else { return };
    stream.shutdown().await.ok();
    let mut unread = [0; 512];
    while stream.read(&mut unread).await.is_ok_and(|count| count > 0) {}
}
