//! Implements the link transport over a QUIC transport: the control stream carries messages, text streams carry text.
use super::frames::{self, Frame, Frames};
use super::lanes::{Lanes, Overfull};
use super::road::{Control, Road};
use crate::links::Fate;
use crate::listen::end::End;
use crate::listen::wire::{Beat, Heard, Wire};
use crate::metrics::Transport;
use bytes::{Buf, BytesMut};
use quinn::{ReadError, WriteError};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use turnway_bindings::link::{Aside, Beside};
use turnway_core::id::{RunId, SessionId};

/// Longest wait for the client to acknowledge the close: a client that has left must not be waited for.
const FAREWELL: Duration = Duration::from_secs(2);
/// Messages up to this size are written together.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

/// A link transport over QUIC streams.
pub(super) struct Quic<R> {
    /// `None` until the client has opened it.
    control: Option<Control>,
    frames: Frames,
    waiting: BytesMut,
    /// Messages written to the control stream so far.
    messages: u64,
    /// Bytes received on the control stream so far.
    received: u64,
    lanes: Lanes,
    /// Last field, so that it is dropped after its streams.
    road: R,
}

// === impl Quic ===

impl<R: Road> Quic<R> {
    pub(super) fn new(road: R) -> Self {
        let (frames, waiting, lanes) = (Frames::default(), BytesMut::new(), Lanes::default());
        Self { control: None, frames, waiting, messages: 0, received: 0, lanes, road }
    }

    fn poll_hear(&mut self, cx: &mut Context<'_>) -> Poll<Result<Heard, End>> {
        if self.lanes.poll(self.road.connection(), cx).is_ready() {
            return Poll::Ready(Ok(Heard::Beside));
        }
        match self.poll_message(cx) {
            Poll::Ready(heard) => Poll::Ready(heard),
            // Messages received before the end are delivered before it.
            Poll::Pending => self.road.poll_end(cx).map(Err),
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Heard, End>> {
        let Some((_, from)) = &mut self.control else { return Poll::Pending };
        loop {
            let count = match ready!(from.poll_read(cx, self.frames.room())) {
                Ok(count) => count,
                Err(error) => return Poll::Ready(Err(broken::<R>(error))),
            };
            if count == 0 {
                let end = if self.frames.is_between() { End::Closed(1000) } else { undelimited() };
                return Poll::Ready(Err(end));
            }
            self.received += count as u64;
            match self.frames.filled(count) {
                None => {}
                Some(Frame::Text(text)) => return Poll::Ready(self.road.check().map(|()| Heard::Text(text))),
                Some(Frame::TooLarge) => return Poll::Ready(Ok(Heard::TooLarge)),
                Some(Frame::NotText) => return Poll::Ready(Err(End::Close(4400, "not UTF-8".into()))),
            }
        }
    }

    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let Some((to, _)) = &mut self.control else { return Poll::Ready(Ok(())) };
        while !self.waiting.is_empty() {
            match ready!(Pin::new(&mut **to).poll_write(cx, &self.waiting)) {
                Ok(written) => self.waiting.advance(written),
                Err(WriteError::Stopped(_)) => {
                    let why = "the client stopped the control stream";
                    return Poll::Ready(Err(End::Close(4400, why.into())));
                }
                Err(WriteError::ConnectionLost(error)) => {
                    return Poll::Ready(Err(End::of_quic(&error, R::code)));
                }
                Err(WriteError::ClosedStream | WriteError::ZeroRttRejected) => {
                    return Poll::Ready(Err(End::Lost));
                }
            }
        }
        // A grown buffer is not kept for the next message.
        self.waiting = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// Writes all queued messages and waits until the client has acknowledged them.
    async fn take_leave(&mut self) {
        if poll_fn(|cx| self.poll_written(cx)).await.is_err() {
            return;
        }
        if let Some((to, _)) = &mut self.control
            && to.finish().is_ok()
        {
            _ = to.stopped().await;
        }
    }
}

impl<R: Road> Wire for Quic<R> {
    const TRANSPORT: Transport = R::TRANSPORT;
    const TAKES_ASIDES: bool = true;

    async fn hear(&mut self) -> Result<Heard, End> {
        if self.control.is_none() {
            self.control = Some(self.road.accept().await?);
        }
        poll_fn(|cx| self.poll_hear(cx)).await
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        if self.waiting.len() < WRITE_BUFFER_BYTES { Poll::Ready(Ok(())) } else { self.poll_written(cx) }
    }

    fn write(&mut self, text: String) -> Result<(), End> {
        self.messages += 1;
        frames::put(&text, &mut self.waiting);
        Ok(())
    }

    /// Returns at once: QUIC keeps the connection alive, and ends it if the client is gone.
    fn beat(&mut self) -> Result<Beat, End> {
        match self.road.connection().close_reason() {
            None => Ok(Beat::Heard),
            Some(error) => Err(End::of_quic(&error, R::code)),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        // Text continues while the control stream is blocked; its progress is reported later.
        let _ = self.lanes.poll(self.road.connection(), cx);
        self.poll_written(cx)
    }

    fn aside(&mut self, aside: Aside) -> Result<(), End> {
        self.lanes.put(aside, self.messages, self.road.prelude()).map_err(|Overfull| Fate::Slow.into())
    }

    fn no_more_aside(&mut self, session: &SessionId, run_id: Option<&RunId>) {
        self.lanes.end(session, run_id);
    }

    fn held(&mut self) -> Option<(SessionId, bool)> {
        self.lanes.news()
    }

    fn beside(&mut self) -> Option<Beside> {
        self.lanes.beside()
    }

    async fn close(mut self: Box<Self>, end: End) {
        if let End::Close(..) = end {
            let _ = tokio::time::timeout(FAREWELL, self.take_leave()).await;
        }
        self.road.hang_up(&end).await;
    }
}

fn undelimited() -> End {
    End::Close(4400, "the control stream was closed within a message".into())
}

/// Returns the close reason that follows from a failed read of the control stream.
fn broken<R: Road>(error: ReadError) -> End {
    match error {
        ReadError::ConnectionLost(error) => End::of_quic(&error, R::code),
        ReadError::Reset(_) => undelimited(),
        ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => End::Lost,
    }
}
