//! A panic of one connection inside quinn ends that connection (S-19). Its lock is poisoned by it, and what is dropped
//! on the way out would ask for it again: a second panic during the first, which ends the process. So whatever of a
//! connection asks for its lock when it is dropped is dropped behind the panic: a stream by [`Kept`], and the last two
//! handles, which ask for it too, by nobody before whoever drives the connection has ended. For a panic of the whole endpoint that
//! cannot be done from here: quinn's own future holds what asks for the lock, and drops it while it unwinds. An
//! endpoint that ends, as it does where its socket fails, is put up again on that socket.
use super::ration::{Books, Ration};
use futures_util::FutureExt;
use quinn::{
    AsyncTimer, AsyncUdpSocket, Connection, ConnectionError, Endpoint, EndpointConfig, Incoming, Runtime,
    ServerConfig, TokioRuntime, VarInt, ZeroRttAccepted,
};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;

/// Before it is put up again: whoever can break it shall not keep the node busy with that.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// What quinn runs of its own.
type Driven = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An endpoint, and how it is heard of its end.
pub(super) struct Fenced {
    endpoint: Kept<Endpoint>,
    ration: Arc<Ration>,
    yard: Arc<Yard>,
}

/// How an endpoint was attended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Until there was nothing left to do.
    Over,
    /// Until it broke, with everything that was connected.
    Broken,
}

/// Where quinn runs what it runs.
#[derive(Debug, Default)]
struct Yard {
    /// The endpoint's own is the first.
    is_driven: AtomicBool,
    broken: Arc<Notify>,
    /// A connection's, which does not run before its handles are held.
    next: Mutex<Option<Driver>>,
}

/// One of those.
struct Driver {
    /// Dropped before the rest.
    future: Kept<Driven>,
    of: Of,
}

/// What is driven.
#[derive(Debug)]
enum Of {
    /// The endpoint: told when it ends, which it never does by itself as long as somebody has the endpoint.
    Endpoint(Arc<Notify>),
    Connection(Arc<Rest>),
    /// Nothing any more.
    Over,
}

/// Where a connection's handles are when nobody holds them.
#[derive(Debug)]
struct Rest(Mutex<Resting>);

#[derive(Debug)]
enum Resting {
    /// As long as the connection is driven.
    Driven(Option<Pair>),
    Over,
}

/// The handles that are last to go. Two, for the last two of all ask for the lock.
type Pair = [Kept<Connection>; 2];

/// A handle of quinn's, whose lock may be poisoned when it is dropped: that is a panic at the most, and it ends here.
#[derive(Debug)]
pub(super) struct Kept<T>(Option<T>);

/// A connection, to be dropped behind its streams and behind every other handle, and then closed. The last two handles
/// of all ask for its lock, and a stream, or whoever drives the connection, would do so while its own panic is under
/// way: so these are two more, and they go when it is no longer driven.
#[derive(Debug)]
pub(super) struct Handles {
    held: Option<Pair>,
    rest: Arc<Rest>,
}

// === impl Fenced ===

impl Fenced {
    /// Puts one up.
    pub(super) fn new(config: EndpointConfig, terms: ServerConfig, socket: UdpSocket) -> io::Result<Self> {
        let yard = Arc::new(Yard::default());
        let ration = Arc::new(Ration::new(yard.wrap_udp_socket(socket)?));
        let (socket, runtime) = (Arc::clone(&ration) as _, Arc::clone(&yard) as _);
        let endpoint = Endpoint::new_with_abstract_socket(config, Some(terms), socket, runtime)?;
        Ok(Self { endpoint: Kept::new(endpoint), ration, yard })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn books(&self) -> &Books {
        &self.ration.books
    }

    /// Lets somebody in: the connection, and what is ready when its handshake is over, in whatever way.
    pub(super) fn accept(
        &mut self,
        incoming: Incoming,
        terms: Arc<ServerConfig>,
    ) -> Result<(Handles, ZeroRttAccepted), ConnectionError> {
        // Nothing is sent or read before the handshake is over; but without a handle there is only quinn's.
        let begun = incoming.accept_with(terms)?.into_0rtt();
        let (connection, greeted) = begun.unwrap_or_else(|_| unreachable!("a server's always can"));
        let driver = self.yard.next().take().expect("whatever is accepted is driven");
        let handles = Handles::new(connection, driver.rest());
        tokio::spawn(driver);
        Ok((handles, greeted))
    }

    /// Attends to it until that is over, or it breaks.
    pub(super) async fn hold(mut self, attend: impl AsyncFnOnce(&mut Self)) -> Held {
        let broken = Arc::clone(&self.yard.broken);
        let attended = AssertUnwindSafe(attend(&mut self)).catch_unwind();
        let held = tokio::select! {
            biased;
            () = broken.notified() => Held::Broken,
            attended = attended => if attended.is_ok() { Held::Over } else { Held::Broken },
        };
        // Last, so that nothing before it was the last to hold the endpoint.
        drop(self.endpoint);
        held
    }
}

// === impl Kept ===

impl<T> Kept<T> {
    pub(super) fn new(what: T) -> Self {
        Self(Some(what))
    }

    fn let_go(&mut self) {
        let what = self.0.take();
        _ = catch_unwind(AssertUnwindSafe(|| drop(what)));
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is there until it is dropped")
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Kept<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut **self).poll_read(cx, into)
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        self.let_go();
    }
}

// === impl Handles ===

impl Handles {
    fn new(connection: Connection, rest: Arc<Rest>) -> Self {
        Self { held: Some([Kept::new(connection.clone()), Kept::new(connection)]), rest }
    }
}

impl Deref for Handles {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.held.as_ref().map(|[first, _]| &**first).expect("it is there until it is dropped")
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        if !thread::panicking() {
            _ = catch_unwind(AssertUnwindSafe(|| {
                if self.close_reason().is_none() {
                    self.close(VarInt::from_u32(0), b"");
                }
            }));
        }
        if let Some(held) = self.held.take() {
            self.rest.keep(held);
        }
    }
}

// === impl Rest ===

impl Rest {
    /// Keeps them until the connection is no longer driven.
    fn keep(&self, held: Pair) {
        let mut now = self.lock();
        match &mut *now {
            Resting::Driven(kept) => *kept = Some(held),
            Resting::Over => {
                drop(now);
                drop(held);
            }
        }
    }

    fn end(&self) {
        let kept = std::mem::replace(&mut *self.lock(), Resting::Over);
        drop(kept);
    }

    fn lock(&self) -> MutexGuard<'_, Resting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Yard ===

impl Yard {
    fn next(&self) -> MutexGuard<'_, Option<Driver>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime for Yard {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Driven) {
        let future = Kept::new(future);
        if self.is_driven.swap(true, Ordering::Relaxed) {
            let rest = Arc::new(Rest(Mutex::new(Resting::Driven(None))));
            *self.next() = Some(Driver { future, of: Of::Connection(rest) });
        } else {
            tokio::spawn(Driver { future, of: Of::Endpoint(Arc::clone(&self.broken)) });
        }
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }
}

// === impl Driver ===

impl Driver {
    fn rest(&self) -> Arc<Rest> {
        match &self.of {
            Of::Connection(rest) => Arc::clone(rest),
            Of::Endpoint(_) | Of::Over => unreachable!("it is a connection's and has not begun"),
        }
    }

    /// It runs no more, by itself or because the process ends.
    fn end(&mut self) {
        self.future.let_go();
        match std::mem::replace(&mut self.of, Of::Over) {
            Of::Endpoint(broken) => broken.notify_one(),
            Of::Connection(rest) => rest.end(),
            Of::Over => {}
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("of", &self.of).finish_non_exhaustive()
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let future = &mut self.future;
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        ready!(polled.unwrap_or(Poll::Ready(())));
        self.end();
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests;
