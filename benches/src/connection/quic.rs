//! A QUIC connection whose streams are read in one order: a control stream, and a stream for the text of each
//! attempt. [`order`] decides which message is next; `frames` reads length and JSON from one stream.
mod frames;
mod order;

use crate::trouble::Lost;
use frames::{Frames, Stop};
use order::Order;
use quinn::{Connecting, Connection, ConnectionError, SendStream, VarInt};
use std::future::poll_fn;
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// A QUIC connection of a load.
#[derive(Debug)]
pub(super) struct Quic {
    connection: Connection,
    to: SendStream,
    /// Queued bytes that have not been sent.
    waiting: Vec<u8>,
    order: Order,
}

// === impl Quic ===

impl Quic {
    /// Performs the handshake and opens the client's only stream, which the server sees with the first message.
    pub(super) async fn open(connecting: Connecting, url: &str) -> Result<Self, Lost> {
        let unreachable = |error: ConnectionError| Lost::Unreachable(format!("{url}: {error}"));
        let connection = connecting.await.map_err(|error| match lost(&error) {
            // The server was reached, and has given its reason in the close code.
            closed @ Lost::Closed(_) => closed,
            Lost::Unreachable(_) | Lost::Broken(_) | Lost::Silent | Lost::Denied(_) => unreachable(error),
        })?;
        let (to, from) = connection.open_bi().await.map_err(unreachable)?;
        let order = Order::new(Frames::new(from));
        Ok(Self { connection, to, waiting: Vec::new(), order })
    }

    /// Returns the next message. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Utf8Bytes, Lost> {
        let Self { connection, order, .. } = self;
        let heard = loop {
            tokio::select! {
                biased;
                stream = connection.accept_uni() => match stream {
                    Ok(from) => order.add(Frames::new(from)),
                    // Messages that arrived before the end of the connection are still delivered.
                    Err(_) => break poll_fn(|cx| order.poll(cx)).await,
                },
                heard = poll_fn(|cx| order.poll(cx)) => break heard,
            }
        };
        match heard {
            Ok(text) => Ok(text),
            Err(Stop::Broken) => Err(Lost::Broken("what the server says is no message".to_owned())),
            // The reason follows when the server closes the connection.
            Err(Stop::End | Stop::Lost) => Err(lost(&connection.closed().await)),
        }
    }

    /// Queues a message until the next flush.
    pub(super) fn feed(&mut self, text: &str) -> Result<(), Lost> {
        let length = u32::try_from(text.len()).map_err(|_| Lost::Broken("too long a message".to_owned()))?;
        self.waiting.extend_from_slice(&length.to_be_bytes());
        self.waiting.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Sends all queued messages.
    pub(super) async fn flush(&mut self) -> Result<(), Lost> {
        let waiting = std::mem::take(&mut self.waiting);
        let sent = self.to.write_all(&waiting).await;
        sent.map_err(|error| {
            self.connection.close_reason().map_or(Lost::Broken(error.to_string()), |why| lost(&why))
        })
    }

    /// Finishes the stream and waits until the server has acknowledged everything.
    pub(super) async fn take_leave(&mut self) {
        if self.to.finish().is_ok() {
            let _ = self.to.stopped().await;
        }
    }

    /// Closes the connection.
    pub(super) async fn close(self) {
        self.connection.close(VarInt::from_u32(1000), b"");
        // Yields to the task that sends the close frame.
        tokio::task::yield_now().await;
    }
}

/// Converts an error of the connection.
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
