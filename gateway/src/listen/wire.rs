//! Defines what [`super::visit`] needs of the transport that carries a link. Implemented by WebSocket and by QUIC.
use super::end::End;
use crate::metrics::Transport;
use std::future::Future;
use std::task::{Context, Poll};
use turnway_bindings::link::{Aside, Beside};
use turnway_core::id::{RunId, SessionId};

/// A connection of one client. A `poll_…` method is called again until it is ready.
pub(super) trait Wire: Send {
    /// The transport's label in metrics.
    const TRANSPORT: Transport;
    /// True if text can be sent beside the other messages, on streams of its own.
    const TAKES_ASIDES: bool;

    /// Waits for a message of the client or an event of the transport. Cancel-safe.
    fn hear(&mut self) -> impl Future<Output = Result<Heard, End>> + Send;

    /// Returns the number of message bytes received, incomplete messages included.
    fn received(&self) -> u64;

    /// Waits for capacity for one message.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>>;

    /// Queues a message. Requires that [`Self::poll_ready`] was ready.
    fn write(&mut self, text: String) -> Result<(), End>;

    /// Sends a heartbeat that the client has to answer. Requires capacity for a message.
    fn beat(&mut self) -> Result<Beat, End>;

    /// Waits until the connection has accepted everything written.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>>;

    /// Queues text for a side stream, without waiting.
    fn aside(&mut self, _: Aside) -> Result<(), End> {
        Ok(())
    }

    /// Ends the side streams of a run, or of all runs of a session.
    fn no_more_aside(&mut self, _: &SessionId, _: Option<&RunId>) {}

    /// Returns the next session whose text has to pause (`true`) or may resume (`false`).
    fn held(&mut self) -> Option<(SessionId, bool)> {
        None
    }

    /// Returns the progress of the side streams, if there is progress to report.
    fn beside(&mut self) -> Option<Beside> {
        None
    }

    /// Returns true if the transport's buffers should be replaced now.
    fn is_worn(&self, _is_idle: bool) -> bool {
        false
    }

    /// Replaces the buffers. Requires that they are empty.
    fn refit(&mut self, _is_idle: bool) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Sends the close reason, waits briefly for the client to receive it, and closes the connection.
    fn close(self: Box<Self>, end: End) -> impl Future<Output = ()> + Send;
}

/// An event of a link's transport.
#[derive(Debug)]
pub(super) enum Heard {
    Text(String),
    /// A binary message of this many bytes.
    Binary(usize),
    /// A message over the size limit.
    TooLarge,
    /// Another sign of life, such as a ping, of this many bytes.
    Alive(usize),
    /// [`Wire::held`] or [`Wire::beside`] has something to return.
    Beside,
}

/// The outcome of a heartbeat.
#[derive(Debug)]
pub(super) enum Beat {
    /// A ping was queued and has to be flushed.
    Written,
    /// The connection has its own keep-alive, and the client is alive.
    Heard,
}

// === impl Heard ===

impl Heard {
    /// Returns the size of a complete message or frame of the client.
    pub(super) fn bytes(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.len()),
            Self::Binary(bytes) | Self::Alive(bytes) => Some(*bytes),
            Self::TooLarge | Self::Beside => None,
        }
    }
}
