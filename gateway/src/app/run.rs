//! Runs a node: starts its tasks, serves, drains, and shuts down. Called by `node`.
use super::build::{App, Served, Upkeep};
use super::ready::{self, Addresses};
use crate::agent::dialin::Lines;
use crate::cli::Exit;
use crate::driver::Ended;
use crate::keys::Keys;
use crate::keys::provider::Provider;
use crate::listen::{House, Listener};
use crate::phase::{Life, Phase, Reason};
use crate::signal::{Leave, Reload};
use crate::supervise;
use crate::tls::Keeper;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle};
use turnway_core::limits;

/// Time for the switchboard beyond [`limits::DRAIN`], to record, hand over and release its lease.
const HANDOVER: Duration = limits::DRAIN_RECORD.saturating_add(Duration::from_secs(1));
/// Time to join the other nodes, and to read the keys. The store was reachable a moment ago: a server that has become
/// unreachable since is waited for as at the start.
const JOIN: Duration = Duration::from_secs(60);
/// Time that a start waits for its first lease before it serves without one: longer than a lease takes at the longest
/// round trip at which a lease can be held.
const FIRST_LEASE: Duration = Duration::from_secs(8);
/// Pause between two tries to read the keys.
const AGAIN: Duration = Duration::from_millis(500);
/// Time to leave the other nodes.
const FAREWELL: Duration = Duration::from_secs(1);
/// Time for the store to finish pending operations and to close its file.
const CLOSE: Duration = Duration::from_secs(5);
/// Time for links to close: with all of the above, 20 s at the most.
const GOODBYE: Duration = Duration::from_secs(2);

// === impl App ===

impl App {
    /// Runs a node to its end, and closes its store explicitly: tasks that are not waited for may keep the store alive
    /// for longer.
    pub async fn run(mut self) -> Exit {
        let (embedded, life) = (self.embedded.take(), self.life.clone());
        let exit = self.serve().await;
        if let Some(store) = embedded {
            let closed = tokio::task::spawn_blocking(move || store.close());
            if tokio::time::timeout(CLOSE, closed).await.is_err() {
                tracing::warn!("the store could not be closed in time; the next start will check all of it");
            }
        }
        tracing::info!(?exit, "turnway exits");
        life.advance(Phase::Left);
        exit
    }

    async fn serve(self) -> Exit {
        let (Ok(leave), Ok(reload), Ok(again)) = (Leave::listen(), Reload::listen(), Reload::listen()) else {
            tracing::error!("cannot listen for signals");
            return Exit::Unavailable;
        };
        supervise::need(&Handle::current(), "timekeeper", self.timekeeper.run());
        let mut hurried = tokio::spawn(supervise::needed("signals", obey(leave, self.life.clone())));
        // Before the first lease: other nodes send to a node that holds one.
        if let Some(fleet) = &self.fleet {
            tokio::select! {
                () = fleet.joined() => {}
                () = tokio::time::sleep(JOIN) => {
                    let said = fleet.refusal().unwrap_or_else(|| "Redis does not answer".to_owned());
                    tracing::error!(said, "cannot join the other nodes");
                    return Exit::Unavailable;
                }
                _ = &mut hurried => return Exit::Failed,
            }
        }
        // No client is accepted before the credentials are known.
        let Upkeep { keys, provider, logs_in } = self.upkeep;
        if let Some(keys) = keys {
            if !known(&keys).await {
                tracing::error!(reasons = ?self.life.reasons(), "the keys cannot be read from the store");
                return Exit::Unavailable;
            }
            tokio::spawn(supervise::keep("keys", move || Arc::clone(&keys).keep()));
        }
        let reread = reread(self.keeper, provider, logs_in, reload, again);
        supervise::need(&Handle::current(), "certificates and provider", reread);
        let mut driver = tokio::spawn(self.driver.run());
        let (listener, house) = self.public;
        let public = listener.address();
        let listener = Arc::new(listener);
        tokio::spawn(accept("listener", listener, house));
        let quic = self.quic.map(quic);
        let admin = self.admin;
        // Turns can start with the first lease. Without one the node serves requests that need no lease, and is not
        // ready.
        tokio::select! {
            () = leased(&self.life) => {}
            _ = &mut hurried => return Exit::Failed,
        }
        self.life.advance(Phase::Serving);
        ready::announce(&self.plan, self.promise, self.node, Addresses { http: public, quic, admin });

        let exit = tokio::select! {
            exit = until_leaving(&mut driver, &self.lines, &self.life, &self.fatal) => exit,
            _ = &mut hurried => return Exit::Failed,
        };
        self.life.advance(Phase::Leaving);
        driver.abort();
        if let Some(fleet) = &self.fleet
            && tokio::time::timeout(FAREWELL, fleet.leave()).await.is_err()
        {
            tracing::warn!("not all messages to the other nodes could be sent");
        }
        self.agents.close();
        self.links.close_all();
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = tokio::time::sleep(GOODBYE) => {
                tracing::warn!(links = self.links.count(), "not all links closed in time");
            }
            _ = &mut hurried => return Exit::Failed,
        }
        exit
    }
}

/// Waits for the first lease, at most [`FIRST_LEASE`].
async fn leased(life: &Life) {
    if tokio::time::timeout(FIRST_LEASE, life.without(Reason::LeaseMissing)).await.is_err() {
        tracing::warn!(reason = Reason::LeaseMissing.code(), "no lease yet; serving, but not ready");
    }
}

/// Waits until the node has to exit; returns the exit code.
async fn until_leaving(driver: &mut JoinHandle<Ended>, lines: &Lines, life: &Life, fatal: &Notify) -> Exit {
    tokio::select! {
        exit = serve_and_drain(driver, lines, life) => exit,
        () = fatal.notified() => {
            tracing::error!("the store has failed; exiting");
            Exit::Unavailable
        }
        () = life.left_without_store() => {
            tracing::error!("the store's file is gone and nothing more can be recorded; exiting");
            Exit::Unavailable
        }
        task = supervise::failed() => {
            tracing::error!(task, "a task that the node cannot run without failed; exiting");
            Exit::Bug
        }
    }
}

/// Waits until the switchboard has drained, or the drain times out.
async fn serve_and_drain(driver: &mut JoinHandle<Ended>, lines: &Lines, life: &Life) -> Exit {
    let ended = match serve(driver, life, life.reached(Phase::Draining)).await {
        Serving::Broken(ended) => return finished(ended),
        Serving::Draining(ended) => ended,
    };
    tracing::info!("draining");
    lines.leave();
    let driver = async move {
        match ended {
            Some(ended) => ended,
            None => driver.await,
        }
    };
    // Attempts of other nodes at agents of this node get the same time to end as its own.
    let others = tokio::time::timeout(limits::DRAIN, lines.quiet());
    match tokio::join!(tokio::time::timeout(limits::DRAIN + HANDOVER, driver), others) {
        (Ok(ended), _) => finished(ended),
        (Err(_), _) => {
            tracing::error!("draining timed out; other nodes take over the remaining sessions");
            Exit::Failed
        }
    }
}

/// The outcome of serving.
#[derive(Debug)]
enum Serving {
    /// The node drains; the driver may have ended already.
    Draining(Option<Result<Ended, JoinError>>),
    /// The driver ended without a drain.
    Broken(Result<Ended, JoinError>),
}

/// Serves until the node drains. The driver watches the phase itself: with nothing to drain, the driver may end before
/// this function sees the new phase, and that also counts as a drain.
async fn serve(driver: &mut JoinHandle<Ended>, life: &Life, draining: impl Future<Output = ()>) -> Serving {
    tokio::select! {
        biased;
        () = draining => Serving::Draining(None),
        ended = driver => match life.phase() {
            Phase::Starting | Phase::Serving => Serving::Broken(ended),
            Phase::Draining | Phase::Leaving | Phase::Left => Serving::Draining(Some(ended)),
        },
    }
}

fn finished(ended: Result<Ended, JoinError>) -> Exit {
    match ended {
        Ok(Ended::Exit) => Exit::Fine,
        Ok(Ended::Broken) => Exit::Bug,
        Err(error) => {
            tracing::error!(%error, "the driver panicked; exiting");
            Exit::Bug
        }
    }
}

/// Starts the drain at the first request to leave. Returns at the second request, which ends the process at once.
async fn obey(mut leave: Leave, life: Life) {
    leave.asked().await;
    life.advance(Phase::Draining);
    leave.asked().await;
    tracing::warn!("second shutdown signal; exiting at once");
}

/// Returns whether the keys could be read in time.
async fn known(keys: &Keys) -> bool {
    let read = async {
        while let Err(error) = keys.read().await {
            tracing::warn!(%error, "the keys could not be read yet; retrying");
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::time::timeout(JOIN, read).await.is_ok()
}

/// Handles `SIGHUP`: reloads certificates, a provider's keys, and the password of Redis, which the Redis connections
/// read. Logs it if there is nothing to reload.
async fn reread(
    keeper: Option<Keeper>,
    provider: Option<Provider>,
    logs_in: bool,
    mut reload: Reload,
    again: Reload,
) {
    let is_fetching = provider.is_some() || logs_in;
    if let Some(provider) = provider {
        supervise::need(&Handle::current(), "keys of the provider", provider.keep(again));
    }
    if let Some(keeper) = keeper {
        return keeper.keep(reload).await;
    }
    loop {
        reload.asked().await;
        if !is_fetching {
            tracing::info!("there is nothing to reload");
        }
    }
}

/// Accepts connections until the listener ends. After a panic it starts again; only connections that were being
/// accepted are lost.
async fn accept(name: &'static str, listener: Arc<Listener>, house: Arc<House>) {
    let serve = || async {
        if let Err(error) = listener.serve(Arc::clone(&house)).await {
            tracing::error!(%error, name, "a listener failed");
            supervise::end(name);
        }
    };
    supervise::keep(name, serve).await;
}

/// Starts serving QUIC, and returns its address.
fn quic((listener, house): Served) -> SocketAddr {
    let (address, tasks) = (listener.address(), house.tasks.clone());
    // Tracked by the tasks that the shutdown waits for, because this task writes the last packets of all its links.
    tasks.spawn(supervise::needed("QUIC", async move {
        if let Err(error) = listener.serve(house).await {
            tracing::error!(%error, "the QUIC listener failed");
        }
    }));
    address
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    /// Covers the moment between the change of a phase and its notification, in which a driver without work may end.
    #[tokio::test]
    async fn driver_end_before_the_drain_notification_counts_as_drained() {
        let life = Life::default();
        let ended = || tokio::spawn(async { Ended::Exit });
        life.advance(Phase::Serving);
        assert!(matches!(serve(&mut ended(), &life, pending()).await, Serving::Broken(Ok(Ended::Exit))));
        life.advance(Phase::Draining);
        let drained = serve(&mut ended(), &life, pending()).await;
        assert!(matches!(drained, Serving::Draining(Some(Ok(Ended::Exit)))), "{drained:?}");
        let told = serve(&mut tokio::spawn(pending()), &life, ready(())).await;
        assert!(matches!(told, Serving::Draining(None)), "{told:?}");
    }
}
