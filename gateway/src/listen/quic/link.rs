//! Implements the link transport over a QUIC transport: the control stream carries messages, text streams carry text.
use super::attempt_streams::{AttemptStreams, TextBacklogExceeded};
use super::frames::{self, QuicFrame, QuicFrameReader};
use super::quic_transport::{ControlStream, QuicTransport};
use crate::links::CloseReason;
use crate::listen::close_reason::LinkCloseReason;
use crate::listen::link_transport::{HeartbeatOutcome, LinkTransport, TransportEvent};
use crate::metrics::Transport;
use bytes::{Buf, BytesMut};
use quinn::{ReadError, WriteError};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use turnway_core::id::{RunId, SessionId};
use turnway_node::link::{SideStreamProgress, SideStreamText};
use turnway_wire::channel::close_code;

/// Longest wait for the client to acknowledge the close: a client that has left must not be waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Messages up to this size are written together.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

/// A link transport over QUIC streams.
pub(super) struct QuicLinkTransport<R> {
    /// `None` until the client has opened it.
    control: Option<ControlStream>,
    reader: QuicFrameReader,
    write_buffer: BytesMut,
    /// Messages written to the control stream so far.
    messages: u64,
    /// Bytes received on the control stream so far.
    received: u64,
    attempt_streams: AttemptStreams,
    /// Last field, so that it is dropped after its streams.
    transport: R,
}

// === impl QuicLinkTransport ===

impl<R: QuicTransport> QuicLinkTransport<R> {
    pub(super) fn new(transport: R) -> Self {
        let reader = QuicFrameReader::default();
        let write_buffer = BytesMut::new();
        let attempt_streams = AttemptStreams::default();
        Self { control: None, reader, write_buffer, messages: 0, received: 0, attempt_streams, transport }
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<TransportEvent, LinkCloseReason>> {
        if self.attempt_streams.poll(self.transport.connection(), cx).is_ready() {
            return Poll::Ready(Ok(TransportEvent::SideStreams));
        }
        match self.poll_message(cx) {
            Poll::Ready(received) => Poll::Ready(received),
            // Messages received before the end are delivered before it.
            Poll::Pending => self.transport.poll_end(cx).map(Err),
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<TransportEvent, LinkCloseReason>> {
        let Some((_, from)) = &mut self.control else { return Poll::Pending };
        loop {
            let count = match ready!(from.poll_read(cx, self.reader.buffer())) {
                Ok(count) => count,
                Err(error) => return Poll::Ready(Err(read_error_reason::<R>(error))),
            };
            if count == 0 {
                let end = if self.reader.is_at_boundary() {
                    LinkCloseReason::ByClient(close_code::NORMAL)
                } else {
                    truncated_message()
                };
                return Poll::Ready(Err(end));
            }
            self.received += count as u64;
            match self.reader.advance(count) {
                None => {}
                Some(QuicFrame::Text(text)) => {
                    return Poll::Ready(self.transport.check().map(|()| TransportEvent::Text(text)));
                }
                Some(QuicFrame::TooLarge) => return Poll::Ready(Ok(TransportEvent::TooLarge)),
                Some(QuicFrame::NotText) => {
                    return Poll::Ready(Err(LinkCloseReason::ByServer(close_code::MALFORMED, "not UTF-8".into())));
                }
            }
        }
    }

    fn poll_flush_control(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>> {
        let Some((to, _)) = &mut self.control else { return Poll::Ready(Ok(())) };
        while !self.write_buffer.is_empty() {
            match ready!(Pin::new(&mut **to).poll_write(cx, &self.write_buffer)) {
                Ok(written) => self.write_buffer.advance(written),
                Err(WriteError::Stopped(_)) => {
                    let why = "the client stopped the control stream";
                    return Poll::Ready(Err(LinkCloseReason::ByServer(close_code::MALFORMED, why.into())));
                }
                Err(WriteError::ConnectionLost(error)) => {
                    return Poll::Ready(Err(LinkCloseReason::from_quic_error(&error, R::code)));
                }
                Err(WriteError::ClosedStream | WriteError::ZeroRttRejected) => {
                    return Poll::Ready(Err(LinkCloseReason::Lost));
                }
            }
        }
        // A grown buffer is not kept for the next message.
        self.write_buffer = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// Writes all queued messages and waits until the client has acknowledged them.
    async fn finish_control(&mut self) {
        if poll_fn(|cx| self.poll_flush_control(cx)).await.is_err() {
            return;
        }
        if let Some((to, _)) = &mut self.control
            && to.finish().is_ok()
        {
            _ = to.stopped().await;
        }
    }
}

impl<R: QuicTransport> LinkTransport for QuicLinkTransport<R> {
    const TRANSPORT: Transport = R::TRANSPORT;
    const HAS_SIDE_STREAMS: bool = true;

    async fn recv(&mut self) -> Result<TransportEvent, LinkCloseReason> {
        if self.control.is_none() {
            self.control = Some(self.transport.accept().await?);
        }
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>> {
        if self.write_buffer.len() < WRITE_BUFFER_BYTES { Poll::Ready(Ok(())) } else { self.poll_flush_control(cx) }
    }

    fn write(&mut self, text: String) -> Result<(), LinkCloseReason> {
        self.messages += 1;
        frames::encode(&text, &mut self.write_buffer);
        Ok(())
    }

    /// Returns at once: QUIC keeps the connection alive, and ends it if the client is gone.
    fn heartbeat(&mut self) -> Result<HeartbeatOutcome, LinkCloseReason> {
        match self.transport.connection().close_reason() {
            None => Ok(HeartbeatOutcome::Alive),
            Some(error) => Err(LinkCloseReason::from_quic_error(&error, R::code)),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkCloseReason>> {
        // Text continues while the control stream is blocked; its progress is reported later.
        let _ = self.attempt_streams.poll(self.transport.connection(), cx);
        self.poll_flush_control(cx)
    }

    fn write_side_stream(&mut self, text: SideStreamText) -> Result<(), LinkCloseReason> {
        self.attempt_streams
            .write(text, self.messages, self.transport.prelude())
            .map_err(|TextBacklogExceeded| CloseReason::SlowConsumer.into())
    }

    fn end_side_streams(&mut self, session: &SessionId, run_id: Option<&RunId>) {
        self.attempt_streams.end(session, run_id);
    }

    fn next_hold_change(&mut self) -> Option<(SessionId, bool)> {
        self.attempt_streams.next_hold_change()
    }

    fn take_side_report(&mut self) -> Option<SideStreamProgress> {
        self.attempt_streams.take_report()
    }

    async fn close(mut self: Box<Self>, end: LinkCloseReason) {
        if let LinkCloseReason::ByServer(..) = end {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.finish_control()).await;
        }
        self.transport.hang_up(&end).await;
    }
}

fn truncated_message() -> LinkCloseReason {
    LinkCloseReason::ByServer(close_code::MALFORMED, "the control stream ends within a message".into())
}

/// Returns the close reason that follows from a failed read of the control stream.
fn read_error_reason<R: QuicTransport>(error: ReadError) -> LinkCloseReason {
    match error {
        ReadError::ConnectionLost(error) => LinkCloseReason::from_quic_error(&error, R::code),
        ReadError::Reset(_) => truncated_message(),
        ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => LinkCloseReason::Lost,
    }
}
