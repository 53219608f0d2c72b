//! Contains a panic inside quinn: it ends one connection, not the process (S-19). The panic poisons the connection's
//! lock, and a value that takes the lock when dropped would panic again during the unwind, which aborts the process. So
//! such values are dropped after the unwind. A failed endpoint is rebuilt on the same socket.
use super::anti_amplification::{AmplificationLedger, AntiAmplification};
use futures_util::FutureExt;
use quinn::{
    AsyncTimer, AsyncUdpSocket, Connection, ConnectionError, Endpoint, EndpointConfig, Incoming, Runtime, ServerConfig,
    TokioRuntime, VarInt, ZeroRttAccepted,
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
pub(super) const RESTART_DELAY: Duration = Duration::from_millis(250);

/// A background task of quinn.
type QuinnFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An endpoint whose failure is reported instead of aborting the process.
pub(super) struct IsolatedEndpoint {
    endpoint: CatchDropPanic<Endpoint>,
    socket: Arc<AntiAmplification>,
    runtime: Arc<IsolationRuntime>,
}

/// The way in which an endpoint's accept loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointOutcome {
    /// The accept loop finished.
    Finished,
    /// The endpoint failed, and all of its connections with it.
    Broken,
}

/// The runtime that quinn spawns its tasks on.
#[derive(Debug, Default)]
struct IsolationRuntime {
    /// The first spawned task is the endpoint's; the later ones are connections'.
    has_endpoint_task: AtomicBool,
    broken: Arc<Notify>,
    /// A connection's task. It must not run before the connection's handles are held.
    next_connection: Mutex<Option<IsolatedTask>>,
}

/// A task of quinn whose panic is caught.
struct IsolatedTask {
    /// First field, so that it is dropped before the others.
    future: CatchDropPanic<QuinnFuture>,
    subject: TaskSubject,
}

/// The subject of a task.
#[derive(Debug)]
enum TaskSubject {
    /// The endpoint; notified when its task ends, which does not happen by itself while the endpoint is held.
    Endpoint(Arc<Notify>),
    Connection(Arc<HandleParking>),
    /// The task has ended.
    Finished,
}

/// Storage for the last handles of a connection, until its task ends.
#[derive(Debug)]
struct HandleParking(Mutex<ParkedHandles>);

#[derive(Debug)]
enum ParkedHandles {
    /// The connection's task runs.
    Running(Option<LastHandles>),
    Finished,
}

/// The last handles of a connection. Two, because each of the last two takes the lock when dropped.
type LastHandles = [CatchDropPanic<Connection>; 2];

/// A handle of quinn whose drop may panic on a poisoned lock; the panic is caught here.
#[derive(Debug)]
pub(super) struct CatchDropPanic<T>(Option<T>);

/// A connection that must outlive its streams and all other handles, and is closed on drop. Each of the last two
/// handles takes the connection's lock when dropped. A stream or quinn's task could do so while its own panic unwinds,
/// so these two more handles are kept until the task has ended.
#[derive(Debug)]
pub(super) struct ConnectionHandles {
    held: Option<LastHandles>,
    parking: Arc<HandleParking>,
}

// === impl IsolatedEndpoint ===

impl IsolatedEndpoint {
    /// Creates an endpoint on a socket.
    pub(super) fn new(config: EndpointConfig, terms: ServerConfig, socket: UdpSocket) -> io::Result<Self> {
        let isolation = Arc::new(IsolationRuntime::default());
        let ration = Arc::new(AntiAmplification::new(isolation.wrap_udp_socket(socket)?));
        let socket = Arc::clone(&ration) as _;
        let runtime = Arc::clone(&isolation) as _;
        let endpoint = Endpoint::new_with_abstract_socket(config, Some(terms), socket, runtime)?;
        Ok(Self { endpoint: CatchDropPanic::new(endpoint), socket: ration, runtime: isolation })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn amplification(&self) -> &AmplificationLedger {
        &self.socket.ledger
    }

    /// Accepts a connection. Also returns a future that is ready when the handshake has ended, however it ended.
    pub(super) fn accept(
        &mut self,
        incoming: Incoming,
        terms: Arc<ServerConfig>,
    ) -> Result<(ConnectionHandles, ZeroRttAccepted), ConnectionError> {
        // Nothing is sent or read before the handshake has ended; without 0-RTT there would be no handle of ours until
        // then.
        let begun = incoming.accept_with(terms)?.into_0rtt();
        let (connection, greeted) = begun.unwrap_or_else(|_| unreachable!("a server's always can"));
        let driver = self.runtime.next().take().expect("whatever is accepted is driven");
        let handles = ConnectionHandles::new(connection, driver.parking());
        tokio::spawn(driver);
        Ok((handles, greeted))
    }

    /// Runs the accept loop until it finishes or the endpoint fails.
    pub(super) async fn run(mut self, attend: impl AsyncFnOnce(&mut Self)) -> EndpointOutcome {
        let broken = Arc::clone(&self.runtime.broken);
        let attended = AssertUnwindSafe(attend(&mut self)).catch_unwind();
        let held = tokio::select! {
            biased;
            () = broken.notified() => EndpointOutcome::Broken,
            attended = attended => if attended.is_ok() { EndpointOutcome::Finished } else { EndpointOutcome::Broken },
        };
        // Dropped last, so that no drop before it releases the last handle of the endpoint.
        drop(self.endpoint);
        held
    }
}

// === impl CatchDropPanic ===

impl<T> CatchDropPanic<T> {
    pub(super) fn new(what: T) -> Self {
        Self(Some(what))
    }

    fn drop_inner(&mut self) {
        let what = self.0.take();
        _ = catch_unwind(AssertUnwindSafe(|| drop(what)));
    }
}

impl<T> Deref for CatchDropPanic<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> DerefMut for CatchDropPanic<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is there until it is dropped")
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CatchDropPanic<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut **self).poll_read(cx, into)
    }
}

impl<T> Drop for CatchDropPanic<T> {
    fn drop(&mut self) {
        self.drop_inner();
    }
}

// === impl ConnectionHandles ===

impl ConnectionHandles {
    fn new(connection: Connection, parking: Arc<HandleParking>) -> Self {
        Self { held: Some([CatchDropPanic::new(connection.clone()), CatchDropPanic::new(connection)]), parking }
    }
}

impl Deref for ConnectionHandles {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.held.as_ref().map(|[first, _]| &**first).expect("it is there until it is dropped")
    }
}

impl Drop for ConnectionHandles {
    fn drop(&mut self) {
        if !thread::panicking() {
            _ = catch_unwind(AssertUnwindSafe(|| {
                if self.close_reason().is_none() {
                    self.close(VarInt::from_u32(0), b"");
                }
            }));
        }
        if let Some(held) = self.held.take() {
            self.parking.park(held);
        }
    }
}

// === impl HandleParking ===

impl HandleParking {
    /// Keeps the handles until the connection's task has ended.
    fn park(&self, held: LastHandles) {
        let mut now = self.lock();
        match &mut *now {
            ParkedHandles::Running(kept) => *kept = Some(held),
            ParkedHandles::Finished => {
                drop(now);
                drop(held);
            }
        }
    }

    fn end(&self) {
        let kept = std::mem::replace(&mut *self.lock(), ParkedHandles::Finished);
        drop(kept);
    }

    fn lock(&self) -> MutexGuard<'_, ParkedHandles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl IsolationRuntime ===

impl IsolationRuntime {
    fn next(&self) -> MutexGuard<'_, Option<IsolatedTask>> {
        self.next_connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime for IsolationRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: QuinnFuture) {
        let future = CatchDropPanic::new(future);
        if self.has_endpoint_task.swap(true, Ordering::Relaxed) {
            let rest = Arc::new(HandleParking(Mutex::new(ParkedHandles::Running(None))));
            *self.next() = Some(IsolatedTask { future, subject: TaskSubject::Connection(rest) });
        } else {
            tokio::spawn(IsolatedTask { future, subject: TaskSubject::Endpoint(Arc::clone(&self.broken)) });
        }
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }
}

// === impl IsolatedTask ===

impl IsolatedTask {
    fn parking(&self) -> Arc<HandleParking> {
        match &self.subject {
            TaskSubject::Connection(rest) => Arc::clone(rest),
            TaskSubject::Endpoint(_) | TaskSubject::Finished => {
                unreachable!("it is a connection's and has not begun")
            }
        }
    }

    /// Ends the task, because it finished or because the process ends.
    fn end(&mut self) {
        self.future.drop_inner();
        match std::mem::replace(&mut self.subject, TaskSubject::Finished) {
            TaskSubject::Endpoint(broken) => broken.notify_one(),
            TaskSubject::Connection(rest) => rest.end(),
            TaskSubject::Finished => {}
        }
    }
}

impl Drop for IsolatedTask {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for IsolatedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IsolatedTask").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Future for IsolatedTask {
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
