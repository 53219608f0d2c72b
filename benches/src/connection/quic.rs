//! A QUIC connection whose streams are read in one order: a control stream, and a stream for the text of each
//! attempt. [`sequencer`] decides which message is next; `frames` reads length and JSON from one stream.
mod frames;
mod sequencer;

use crate::error::ConnectionFailure;
use frames::{FrameReader, ReadEnd};
use quinn::{Connecting, Connection, ConnectionError, SendStream, VarInt};
use sequencer::MessageSequencer;
use std::future::poll_fn;
use tokio_tungstenite::tungstenite::Utf8Bytes;

/// A QUIC connection of a load.
#[derive(Debug)]
pub(super) struct Quic {
    connection: Connection,
    send_stream: SendStream,
    /// Queued bytes that have not been sent.
    queued: Vec<u8>,
    order: MessageSequencer,
}

// === impl Quic ===

impl Quic {
    /// Performs the handshake and opens the client's only stream, which the server sees with the first message.
    pub(super) async fn open(connecting: Connecting, url: &str) -> Result<Self, ConnectionFailure> {
        let unreachable = |error: ConnectionError| ConnectionFailure::Unreachable(format!("{url}: {error}"));
        let connection = connecting.await.map_err(|error| match to_failure(&error) {
            // The server was reached, and has given its reason in the close code.
            closed @ ConnectionFailure::Closed(_) => closed,
            ConnectionFailure::Unreachable(_)
            | ConnectionFailure::Broken(_)
            | ConnectionFailure::TimedOut
            | ConnectionFailure::Denied(_) => unreachable(error),
        })?;
        let (to, from) = connection.open_bi().await.map_err(unreachable)?;
        let order = MessageSequencer::new(FrameReader::new(from));
        Ok(Self { connection, send_stream: to, queued: Vec::new(), order })
    }

    /// Returns the next message. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Utf8Bytes, ConnectionFailure> {
        let Self { connection, order, .. } = self;
        let heard = loop {
            tokio::select! {
                biased;
                stream = connection.accept_uni() => match stream {
                    Ok(from) => order.add(FrameReader::new(from)),
                    // Messages that arrived before the end of the connection are still delivered.
                    Err(_) => break poll_fn(|cx| order.poll(cx)).await,
                },
                heard = poll_fn(|cx| order.poll(cx)) => break heard,
            }
        };
        match heard {
            Ok(text) => Ok(text),
            Err(ReadEnd::Broken) => Err(ConnectionFailure::Broken("what the server says is no message".to_owned())),
            // The reason follows when the server closes the connection.
            Err(ReadEnd::End | ReadEnd::Lost) => Err(to_failure(&connection.closed().await)),
        }
    }

    /// Queues a message until the next flush.
    pub(super) fn queue(&mut self, text: &str) -> Result<(), ConnectionFailure> {
        let length =
            u32::try_from(text.len()).map_err(|_| ConnectionFailure::Broken("too long a message".to_owned()))?;
        self.queued.extend_from_slice(&length.to_be_bytes());
        self.queued.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Sends all queued messages.
    pub(super) async fn flush(&mut self) -> Result<(), ConnectionFailure> {
        let waiting = std::mem::take(&mut self.queued);
        let sent = self.send_stream.write_all(&waiting).await;
        sent.map_err(|error| {
            self.connection.close_reason().map_or(ConnectionFailure::Broken(error.to_string()), |why| to_failure(&why))
        })
    }

    /// Finishes the stream and waits until the server has acknowledged everything.
    pub(super) async fn finish(&mut self) {
        if self.send_stream.finish().is_ok() {
            let _ = self.send_stream.stopped().await;
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
fn to_failure(error: &ConnectionError) -> ConnectionFailure {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionFailure::Closed(u16::try_from(close.error_code.into_inner()).unwrap_or(u16::MAX))
        }
        ConnectionError::TimedOut => ConnectionFailure::TimedOut,
        ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::Reset
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => ConnectionFailure::Broken(error.to_string()),
    }
}
