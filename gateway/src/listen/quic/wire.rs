//! A QUIC connection as what carries a link.
use super::frames::{self, Frame, Frames};
use super::lanes::{Lanes, Overfull};
use crate::links::Fate;
use crate::listen::end::End;
use crate::listen::wire::{Beat, Heard, Wire};
use crate::metrics::Transport;
use bytes::{Buf, BytesMut};
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use turnway_bindings::link::Aside;
use turnway_core::id::{RunId, SessionId};

/// Until the client has said that it has our last words; one that has left need not be waited for.
const FAREWELL: Duration = Duration::from_secs(2);
/// Messages that come together leave together.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

/// A connection, and what is under way on it.
pub(super) struct Quic {
    connection: Connection,
    /// None: the client has not opened it yet.
    control: Option<(SendStream, RecvStream)>,
    frames: Frames,
    waiting: BytesMut,
    /// Messages of the control stream so far.
    messages: u64,
    lanes: Lanes,
}

// === impl Quic ===

impl Quic {
    pub(super) fn new(connection: Connection) -> Self {
        let (frames, waiting, lanes) = (Frames::default(), BytesMut::new(), Lanes::default());
        Self { connection, control: None, frames, waiting, messages: 0, lanes }
    }

    fn poll_hear(&mut self, cx: &mut Context<'_>) -> Poll<Result<Heard, End>> {
        if self.lanes.poll(&self.connection, cx).is_ready() {
            return Poll::Ready(Ok(Heard::Held));
        }
        let Some((_, from)) = &mut self.control else { return Poll::Pending };
        loop {
            let count = match ready!(from.poll_read(cx, self.frames.room())) {
                Ok(count) => count,
                Err(error) => return Poll::Ready(Err(broken(error))),
            };
            if count == 0 {
                let end = if self.frames.is_between() { End::Closed(1000) } else { undelimited() };
                return Poll::Ready(Err(end));
            }
            match self.frames.filled(count) {
                None => {}
                Some(Frame::Text(text)) => return Poll::Ready(Ok(Heard::Text(text))),
                Some(Frame::TooLarge) => return Poll::Ready(Ok(Heard::TooLarge)),
                Some(Frame::NotText) => return Poll::Ready(Err(End::Close(4400, "not UTF-8".into()))),
            }
        }
    }

    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let Some((to, _)) = &mut self.control else { return Poll::Ready(Ok(())) };
        while !self.waiting.is_empty() {
            match ready!(Pin::new(&mut *to).poll_write(cx, &self.waiting)) {
                Ok(written) => self.waiting.advance(written),
                Err(WriteError::Stopped(_)) => {
                    let why = "the control stream is not read";
                    return Poll::Ready(Err(End::Close(4400, why.into())));
                }
                Err(WriteError::ConnectionLost(error)) => return Poll::Ready(Err(lost(&error))),
                Err(WriteError::ClosedStream | WriteError::ZeroRttRejected) => {
                    return Poll::Ready(Err(End::Lost));
                }
            }
        }
        // A buffer that has grown is not kept for the next word.
        self.waiting = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// Until the client has said that it has everything.
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

impl Wire for Quic {
    const TRANSPORT: Transport = Transport::Quic;
    const TAKES_ASIDES: bool = true;

    async fn hear(&mut self) -> Result<Heard, End> {
        if self.control.is_none() {
            self.control = Some(self.connection.accept_bi().await.map_err(|error| lost(&error))?);
        }
        poll_fn(|cx| self.poll_hear(cx)).await
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        if self.waiting.len() < WRITE_BUFFER_BYTES { Poll::Ready(Ok(())) } else { self.poll_written(cx) }
    }

    fn write(&mut self, text: String) -> Result<(), End> {
        self.messages += 1;
        frames::put(&text, &mut self.waiting);
        Ok(())
    }

    /// The connection keeps itself alive, and ends by itself where it is not.
    fn beat(&mut self) -> Result<Beat, End> {
        match self.connection.close_reason() {
            None => Ok(Beat::Heard),
            Some(error) => Err(lost(&error)),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        // Text goes on also while the control stream waits; its news are told later.
        let _ = self.lanes.poll(&self.connection, cx);
        self.poll_written(cx)
    }

    fn aside(&mut self, aside: Aside) -> Result<(), End> {
        self.lanes.put(aside, self.messages).map_err(|Overfull| Fate::Slow.into())
    }

    fn no_more_aside(&mut self, session: &SessionId, run_id: Option<&RunId>) {
        self.lanes.end(session, run_id);
    }

    fn held(&mut self) -> Option<(SessionId, bool)> {
        self.lanes.news()
    }

    async fn close(mut self: Box<Self>, end: End) {
        let (code, reason) = match end {
            End::Close(code, reason) => {
                let _ = tokio::time::timeout(FAREWELL, self.take_leave()).await;
                (code, reason)
            }
            End::Closed(_) => (1000, "".into()),
            End::Lost => (1001, "".into()),
        };
        self.connection.close(VarInt::from_u32(code.into()), reason.as_bytes());
    }
}

fn undelimited() -> End {
    End::Close(4400, "the control stream ends within a message".into())
}

/// Why nothing more is read of the control stream.
fn broken(error: ReadError) -> End {
    match error {
        ReadError::ConnectionLost(error) => lost(&error),
        ReadError::Reset(_) => undelimited(),
        ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => End::Lost,
    }
}

/// How a connection has ended that is gone.
fn lost(error: &ConnectionError) -> End {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            End::Closed(u16::try_from(close.error_code.into_inner()).unwrap_or(u16::MAX))
        }
        ConnectionError::ConnectionClosed(_)
        | ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::Reset
        | ConnectionError::TimedOut
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => End::Lost,
    }
}
