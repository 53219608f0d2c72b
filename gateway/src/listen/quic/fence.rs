//! Contains a panic inside quinn: it ends one connection, not the process (S-19). The panic poisons the connection's
//! lock, and a value that takes the lock when dropped would panic again during the unwind, which aborts the process. So
//! such values are dropped after the unwind. A failed endpoint is rebuilt on the same socket.
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

/// Delay before a failed endpoint is rebuilt, so that a client that can break it cannot keep the node busy with that.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// A background task of quinn.
type Driven = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An endpoint whose failure is reported instead of aborting the process.
pub(super) struct Fenced {
    endpoint: Kept<Endpoint>,
    ration: Arc<Ration>,
    yard: Arc<Yard>,
}

/// The way in which an endpoint's accept loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// The accept loop finished.
    Over,
    /// The endpoint failed, and all of its connections with it.
    Broken,
}

/// The runtime that quinn spawns its tasks on.
#[derive(Debug, Default)]
struct Yard {
    /// The first spawned task is the endpoint's; the later ones are connections'.
    is_driven: AtomicBool,
    broken: Arc<Notify>,
    /// A connection's task. It must not run before the connection's handles are held.
    next: Mutex<Option<Driver>>,
}

/// A task of quinn whose panic is caught.
struct Driver {
    /// First field, so that it is dropped before the others.
    future: Kept<Driven>,
    of: Of,
}

/// The subject of a task.
#[derive(Debug)]
enum Of {
    /// The endpoint; notified when its task ends, which does not happen by itself while the endpoint is held.
    Endpoint(Arc<Notify>),
    Connection(Arc<Rest>),
    /// The task has ended.
    Over,
}

/// Storage for the last handles of a connection, until its task ends.
#[derive(Debug)]
struct Rest(Mutex<Resting>);

#[derive(Debug)]
enum Resting {
    /// The connection's task runs.
    Driven(Option<Pair>),
    Over,
}

/// The last handles of a connection. Two, because each of the last two takes the lock when dropped.
type Pair = [Kept<Connection>; 2];

/// A handle of quinn whose drop may panic on a poisoned lock; the panic is caught here.
#[derive(Debug)]
pub(super) struct Kept<T>(Option<T>);

/// A connection that must outlive its streams and all other handles, and is closed on drop. Each of the last two
/// handles takes the connection's lock when dropped. A stream or quinn's task could do so while its own panic unwinds,
/// so these two more handles are kept until the task has ended.
#[derive(Debug)]
pub(super) struct Handles {
    held: Option<Pair>,
    rest: Arc<Rest>,
}

// === impl Fenced ===

impl Fenced {
    /// Creates an endpoint on a socket.
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

    /// Accepts a connection. Also returns a future that is ready when the handshake has ended, however it ended.
    pub(super) fn accept(
        &mut self,
        incoming: Incoming,
        terms: Arc<ServerConfig>,
    ) -> Result<(Handles, ZeroRttAccepted), ConnectionError> {
        // Nothing is sent or read before the handshake has ended; without 0-RTT there would be no handle of ours until
        // then.
        let begun = incoming.accept_with(terms)?.into_0rtt();
        let (connection, greeted) = begun.unwrap_or_else(|_| unreachable!("a server's always can"));
        let driver = self.yard.next().take().expect("whatever is accepted is driven");
        let handles = Handles::new(connection, driver.rest());
        tokio::spawn(driver);
        Ok((handles, greeted))
    }

    /// Runs the accept loop until it finishes or the endpoint fails.
    pub(super) async fn hold(mut self, attend: impl AsyncFnOnce(&mut Self)) -> Held {
        let broken = Arc::clone(&self.yard.broken);
        let attended = AssertUnwindSafe(attend(&mut self)).catch_unwind();
        let held = tokio::select! {
            biased;
            () = broken.notified() => Held::Broken,
            attended = attended => if attended.is_ok() { Held::Over } else { Held::Broken },
        };
        // Dropped last, so that no drop before it releases the last handle of the endpoint.
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
    /// Keeps the handles until the connection's task has ended.
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

    /// Ends the task, because it finished or because the process ends.
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
