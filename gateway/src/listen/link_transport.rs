//! The transport of a link, as [`super::connection_task`] needs it. Implemented by WebSocket and by QUIC.
use super::close_reason::LinkCloseReason;
use crate::metrics::Transport;
use std::future::Future;
use std::task::{Context, Poll};
use turnway_core::id::{RunId, SessionId};
use turnway_node::link::{SideStreamProgress, SideStreamText};

/// A connection of one client. A `poll_…` method is called again until it is ready.
pub(super) trait LinkTransport: Send {
    /// The transport's label in metrics.
    const TRANSPORT: Transport;
    /// True if text can be sent beside the other messages, on streams of its own.
    const HAS_SIDE_STREAMS: bool;

    /// Waits for a message of the client or an event of the transport. Cancel-safe.
    fn recv(&mut self) -> impl Future<Output = Result<TransportEvent, LinkCloseReason>> + Send;

    /// Returns the number of message bytes received, incomplete messages included.
    fn received(&self) -> u64;

    /// Waits for capacity for one message.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>>;

    /// Queues a message. Requires that [`Self::poll_ready`] was ready.
    fn write(&mut self, text: String) -> Result<(), LinkCloseReason>;

    /// Sends a heartbeat that the client has to answer. Requires capacity for a message.
    fn heartbeat(&mut self) -> Result<HeartbeatOutcome, LinkCloseReason>;

    /// Waits until the connection has accepted everything written.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>>;

    /// Queues text for a side stream, without waiting.
    fn write_side_stream(&mut self, _: SideStreamText) -> Result<(), LinkCloseReason> {
        Ok(())
    }

    /// Ends the side streams of a run, or of all runs of a session.
    fn end_side_streams(&mut self, _: &SessionId, _: Option<&RunId>) {}

    /// Returns the next session whose text has to pause (`true`) or may resume (`false`).
    fn next_hold_change(&mut self) -> Option<(SessionId, bool)> {
        None
    }

    /// Returns the progress of the side streams, if there is progress to report.
    fn take_side_report(&mut self) -> Option<SideStreamProgress> {
        None
    }

    /// Returns true if the transport's buffers should be replaced now.
    fn needs_new_buffers(&self, _is_idle: bool) -> bool {
        false
    }

    /// Replaces the buffers. Requires that they are empty.
    fn replace_buffers(&mut self, _is_idle: bool) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Sends the close reason, waits briefly for the client to receive it, and closes the connection.
    fn close(self: Box<Self>, end: LinkCloseReason) -> impl Future<Output = ()> + Send;
}

/// An event of a link's transport.
#[derive(Debug)]
pub(super) enum TransportEvent {
    Text(String),
    /// A binary message of this many bytes.
    Binary(usize),
    /// A message over the size limit.
    TooLarge,
    /// Another sign of life, such as a ping, of this many bytes.
    SignOfLife(usize),
    /// [`LinkTransport::next_hold_change`] or [`LinkTransport::take_side_report`] has something to return.
    SideStreams,
}

/// The outcome of a heartbeat.
#[derive(Debug)]
pub(super) enum HeartbeatOutcome {
    /// A ping was queued and has to be flushed.
    Written,
    /// The connection has its own keep-alive, and the client is alive.
    Alive,
}

// === impl TransportEvent ===

impl TransportEvent {
    /// Returns the size of a complete message or frame of the client.
    pub(super) fn bytes(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.len()),
            Self::Binary(bytes) | Self::SignOfLife(bytes) => Some(*bytes),
            Self::TooLarge | Self::SideStreams => None,
        }
    }
}
