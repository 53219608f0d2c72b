//! A connection of QUIC, heard in one order: a control stream, and a stream for the text of each attempt.
//!
//! - `frames`: length and JSON, read from a stream.
//! - [`order`]: which message comes next.
mod frames;
mod order;

use crate::trouble::Lost;
use frames::{Frames, Stop};
use order::Order;
use quinn::{Connecting, Connection, ConnectionError, SendStream, VarInt};
use std::future::poll_fn;
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// One of them.
#[derive(Debug)]
pub(super) struct Quic {
    connection: Connection,
    to: SendStream,
    /// Said and not sent.
    waiting: Vec<u8>,
    order: Order,
}

// === impl Quic ===

impl Quic {
    /// The handshake, and the one stream that a client opens; the server sees it with the first message.
    pub(super) async fn open(connecting: Connecting, url: &str) -> Result<Self, Lost> {
        let unreachable = |error: ConnectionError| Lost::Unreachable(format!("{url}: {error}"));
        let connection = connecting.await.map_err(|error| match lost(&error) {
            // It was there, and said why not.
            closed @ Lost::Closed(_) => closed,
            Lost::Unreachable(_) | Lost::Broken(_) | Lost::Silent | Lost::Denied(_) => unreachable(error),
        })?;
        let (to, from) = connection.open_bi().await.map_err(unreachable)?;
        let order = Order::new(Frames::new(from));
        Ok(Self { connection, to, waiting: Vec::new(), order })
    }

    /// The next message. Safe to drop and to ask again.
    pub(super) async fn next(&mut self) -> Result<Utf8Bytes, Lost> {
        let Self { connection, order, .. } = self;
        let heard = loop {
            tokio::select! {
                biased;
                stream = connection.accept_uni() => match stream {
                    Ok(from) => order.add(Frames::new(from)),
                    // What has come before the end is still to be heard.
                    Err(_) => break poll_fn(|cx| order.poll(cx)).await,
                },
                heard = poll_fn(|cx| order.poll(cx)) => break heard,
            }
        };
        match heard {
            Ok(text) => Ok(text),
            Err(Stop::Broken) => Err(Lost::Broken("what the server says is no message".to_owned())),
            // It says why when it closes the connection.
            Err(Stop::End | Stop::Lost) => Err(lost(&connection.closed().await)),
        }
    }

    /// Says something, once it is flushed.
    pub(super) fn feed(&mut self, text: &str) -> Result<(), Lost> {
        let length = u32::try_from(text.len()).map_err(|_| Lost::Broken("too long a message".to_owned()))?;
        self.waiting.extend_from_slice(&length.to_be_bytes());
        self.waiting.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Sends what was said.
    pub(super) async fn flush(&mut self) -> Result<(), Lost> {
        let waiting = std::mem::take(&mut self.waiting);
        let sent = self.to.write_all(&waiting).await;
        sent.map_err(|error| {
            self.connection.close_reason().map_or(Lost::Broken(error.to_string()), |why| lost(&why))
        })
    }

    /// Until the server has heard everything.
    pub(super) async fn take_leave(&mut self) {
        if self.to.finish().is_ok() {
            let _ = self.to.stopped().await;
        }
    }

    /// The last word, and it is on its way.
    pub(super) async fn close(self) {
        self.connection.close(VarInt::from_u32(1000), b"");
        // Another task sends it.
        tokio::task::yield_now().await;
    }
}

/// How a connection has ended.
fn lost(error: &ConnectionError) -> Lost {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            Lost::Closed(u16::try_from(close.error_code.into_inner()).unwrap_or(u16::MAX))
        }
        ConnectionError::TimedOut => Lost::Silent,
        ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::Reset
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => Lost::Broken(error.to_string()),
    }
}
