//! Traffic counters of one connection to a server: they tell a request that met the close of a pooled connection from
//! one that the server received. Only [`client`](super::client) uses them.
use crate::clock::Clock;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_service::Service;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;

/// A connector that opens connections with [`Traffic`] counters.
#[derive(Clone)]
pub(super) struct CountingConnector<C> {
    connector: C,
    clock: Clock,
}

/// A connection that counts its traffic. Under TLS it counts the plain text: a closing TLS alert is no response.
pub(super) struct CountedStream<T> {
    stream: TokioIo<T>,
    clock: Clock,
    traffic: Traffic,
}

/// The traffic counters of one connection. They assume HTTP/1.1 without pipelining: a request is written, then its
/// response is read.
#[derive(Clone, Debug)]
pub(super) struct Traffic(Arc<TrafficCounts>);

#[derive(Debug)]
struct TrafficCounts {
    opened: Mono,
    /// Requests of which at least one byte was written, or tried to be.
    requests: AtomicU32,
    /// True if a byte of the response to the latest request has arrived.
    is_answered: AtomicBool,
    /// True if the latest request was written completely.
    is_written: AtomicBool,
    /// Time of the last byte written, in nanoseconds of the node's clock.
    written_at: AtomicU64,
}

// === impl CountingConnector ===

impl<C> CountingConnector<C> {
    pub(super) fn new(connector: C, clock: Clock) -> Self {
        Self { connector, clock }
    }
}

impl<C, T> Service<Uri> for CountingConnector<C>
where
    C: Service<Uri, Response = T>,
    C::Future: Send + 'static,
{
    type Response = TokioIo<CountedStream<T>>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let opening = self.connector.call(to);
        let clock = self.clock.clone();
        Box::pin(async move {
            let stream = TokioIo::new(opening.await?);
            let traffic = Traffic::new(clock.mono());
            Ok(TokioIo::new(CountedStream { stream, clock, traffic }))
        })
    }
}

// === impl Traffic ===

impl Traffic {
    fn new(opened: Mono) -> Self {
        Self(Arc::new(TrafficCounts {
            opened,
            requests: AtomicU32::new(0),
            is_answered: AtomicBool::new(true),
            is_written: AtomicBool::new(true),
            written_at: AtomicU64::new(0),
        }))
    }

    /// Returns whether the latest request, sent at `sent_at` and failed at `now`, met the close of a pooled connection:
    /// the request was not written completely, or the connection ended within [`limits::AGENT_STALE`] after it without
    /// a byte of a response.
    pub(super) fn is_stale(&self, sent_at: Mono, now: Mono) -> bool {
        let requests = self.0.requests.load(Ordering::Relaxed);
        let is_kept = requests > 1 || self.0.opened < sent_at;
        let is_answered = self.0.is_answered.load(Ordering::Relaxed) && !planted(Planted::AnsweredAskedAgain);
        let is_silent = requests == 0 || !is_answered;
        let written_at = Mono(Duration::from_nanos(self.0.written_at.load(Ordering::Relaxed)));
        let is_part = !self.0.is_written.load(Ordering::Relaxed);
        is_kept && is_silent && (requests == 0 || is_part || now - written_at <= limits::AGENT_STALE)
    }

    fn record_write(&self) {
        if self.0.is_written.swap(false, Ordering::Relaxed) && self.0.is_answered.load(Ordering::Relaxed) {
            self.0.requests.fetch_add(1, Ordering::Relaxed);
            self.0.is_answered.store(false, Ordering::Relaxed);
        }
    }

    /// Records the end of a request; hyper flushes once a request is completely written.
    fn record_flush(&self, clock: &Clock) {
        if !self.0.is_written.load(Ordering::Relaxed) {
            let at = u64::try_from(clock.mono().0.as_nanos()).unwrap_or(u64::MAX);
            self.0.written_at.store(at, Ordering::Relaxed);
            self.0.is_written.store(true, Ordering::Relaxed);
        }
    }

    fn record_read(&self, bytes: usize) {
        if bytes > 0 {
            self.0.is_answered.store(true, Ordering::Relaxed);
        }
    }
}

// === impl CountedStream ===

impl<T: Connection> Connection for CountedStream<T> {
    fn connected(&self) -> Connected {
        self.stream.inner().connected().extra(self.traffic.clone())
    }
}

impl<T: hyper::rt::Read + Unpin> AsyncRead for CountedStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        self.traffic.record_read(into.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<T: hyper::rt::Write + Unpin> AsyncWrite for CountedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.traffic.record_write();
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.traffic.record_write();
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        let this = &*self;
        this.traffic.record_flush(&this.clock);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_stale_only_on_a_kept_connection_without_answer() {
        let clock = Clock::start();
        let traffic = Traffic::new(Mono::default());
        let later = Mono(Duration::from_nanos(1));
        assert!(traffic.is_stale(later, later), "kept, and nothing was written");
        assert!(!traffic.is_stale(Mono::default(), later), "opened for this request");
        let soon = || clock.mono() + limits::AGENT_STALE / 2;
        let late = || clock.mono() + limits::AGENT_STALE * 2;

        traffic.record_write();
        assert!(!traffic.is_stale(Mono::default(), soon()), "the first request of a connection");
        traffic.record_flush(&clock);
        traffic.record_read(1);
        traffic.record_write();
        traffic.record_write();
        assert!(traffic.is_stale(Mono::default(), late()), "the second, not written whole");
        traffic.record_flush(&clock);
        assert!(traffic.is_stale(Mono::default(), soon()), "written, and closed at once");
        assert!(!traffic.is_stale(Mono::default(), late()), "written, and closed later");
        traffic.record_read(0);
        assert!(traffic.is_stale(Mono::default(), soon()), "the end of the stream is no byte");
        traffic.record_read(1);
        assert!(!traffic.is_stale(Mono::default(), soon()), "a byte of an answer");
    }

    #[test]
    fn early_response_to_a_partly_written_request_is_accepted() {
        let clock = Clock::start();
        let traffic = Traffic::new(Mono::default());
        traffic.record_write();
        traffic.record_flush(&clock);
        traffic.record_read(1);
        traffic.record_write();
        traffic.record_read(1);
        traffic.record_write();
        assert!(!traffic.is_stale(Mono::default(), clock.mono()));
    }
}
