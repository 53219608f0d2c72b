//! A panic of one connection inside quinn ends that connection (S-19). Its lock is poisoned by it, and what is dropped
//! on the way out would ask for it again: a second panic during the first, which ends the process. So whatever of a
//! connection asks for its lock when it is dropped is dropped behind the panic. For a panic of the whole endpoint that
//! cannot be done from here: quinn's own future holds what asks for the lock, and drops it while it unwinds. An
//! endpoint that ends, as it does where its socket fails, is put up again on that socket.
use super::ration::{Books, Ration};
use futures_util::FutureExt;
use quinn::{
    AsyncTimer, AsyncUdpSocket, Connection, Endpoint, EndpointConfig, Runtime, ServerConfig, TokioRuntime,
};
use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
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
}

/// One of those.
struct Driver {
    future: Kept<Driven>,
    /// Told when an endpoint's ends, which it never does by itself as long as somebody has the endpoint.
    broken: Option<Arc<Notify>>,
}

/// A handle of quinn's, whose lock may be poisoned when it is dropped: that is a panic at the most, and it ends here.
#[derive(Debug)]
pub(super) struct Kept<T>(Option<T>);

/// A connection, to be dropped behind its streams. The last two handles of one ask for its lock, and a stream that is
/// one of them would do so while its own panic is under way: so there are two more.
#[derive(Debug)]
pub(super) struct Handles(Kept<Connection>, #[expect(dead_code, reason = "it is dropped")] Kept<Connection>);

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

    /// Attends to it until that is over, or it breaks.
    pub(super) async fn hold(self, attend: impl AsyncFnOnce(&Endpoint, &Books)) -> Held {
        let attended = AssertUnwindSafe(attend(&self.endpoint, &self.ration.books)).catch_unwind();
        let held = tokio::select! {
            biased;
            () = self.yard.broken.notified() => Held::Broken,
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

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        self.let_go();
    }
}

// === impl Handles ===

impl Handles {
    pub(super) fn new(connection: Connection) -> Self {
        Self(Kept::new(connection.clone()), Kept::new(connection))
    }
}

impl Deref for Handles {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

// === impl Yard ===

impl Runtime for Yard {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Driven) {
        let is_first = !self.is_driven.swap(true, Ordering::Relaxed);
        let broken = is_first.then(|| Arc::clone(&self.broken));
        tokio::spawn(Driver { future: Kept::new(future), broken });
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }
}

// === impl Driver ===

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let future = &mut self.future;
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        ready!(polled.unwrap_or(Poll::Ready(())));
        self.future.let_go();
        if let Some(broken) = self.broken.take() {
            broken.notify_one();
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests;
