//! Runs a node: starts its tasks, serves, drains, and shuts down. Called by `node`.
use super::build::{App, CredentialRefresh, QuicService};
use super::ready::{self, Addresses};
use crate::agent::dialin::RemoteCalls;
use crate::cli::CliExit;
use crate::driver::DriverExit;
use crate::keys::ApiKeys;
use crate::keys::provider::ProviderKeysFetcher;
use crate::listen::{Listener, ListenerContext};
use crate::phase::{Lifecycle, NodePhase, UnreadyReason};
use crate::signal::{ReloadSignal, ShutdownSignal};
use crate::supervise;
use crate::tls::CertificateReloader;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle};
use turnway_core::limits;

/// Time for the switchboard beyond [`limits::DRAIN_TIMEOUT`], to record, hand over and release its lease.
const HANDOVER_TIMEOUT: Duration = limits::DRAIN_RECORD_TIMEOUT.saturating_add(Duration::from_secs(1));
/// Time to join the other nodes, and to read the keys. The store was reachable a moment ago: a server that has become
/// unreachable since is waited for as at the start.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a start waits for its first lease before it serves without one: longer than a lease takes at the longest
/// round trip at which a lease can be held.
const FIRST_LEASE_TIMEOUT: Duration = Duration::from_secs(8);
/// Pause between two tries to read the keys.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Time to leave the other nodes.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the store to finish pending operations and to close its file.
const STORE_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for links to close: with all of the above, 20 s at the most.
const LINKS_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

// === impl App ===

impl App {
    /// Runs a node to its end, and closes its store explicitly: tasks that are not waited for may keep the store alive
    /// for longer.
    pub async fn run(mut self) -> CliExit {
        let embedded = self.embedded.take();
        let life = self.life.clone();
        let exit = self.serve().await;
        if let Some(store) = embedded {
            let closed = tokio::task::spawn_blocking(move || store.close());
            if tokio::time::timeout(STORE_CLOSE_TIMEOUT, closed).await.is_err() {
                tracing::warn!("the store could not be closed in time; the next start will check all of it");
            }
        }
        tracing::info!(?exit, "turnway exits");
        life.advance(NodePhase::Stopped);
        exit
    }

    async fn serve(self) -> CliExit {
        let (Ok(leave), Ok(reload), Ok(again)) =
            (ShutdownSignal::listen(), ReloadSignal::listen(), ReloadSignal::listen())
        else {
            tracing::error!("cannot listen for signals");
            return CliExit::Unavailable;
        };
        supervise::spawn_required(&Handle::current(), "timekeeper", self.skew_monitor.run());
        let mut hurried = tokio::spawn(supervise::run_required("signals", handle_signals(leave, self.life.clone())));
        // Before the first lease: other nodes send to a node that holds one.
        if let Some(fleet) = &self.fleet {
            tokio::select! {
                () = fleet.wait_joined() => {}
                () = tokio::time::sleep(JOIN_TIMEOUT) => {
                    let refusal = fleet.refusal().unwrap_or_else(|| "Redis does not answer".to_owned());
                    tracing::error!(refusal, "cannot join the other nodes");
                    return CliExit::Unavailable;
                }
                _ = &mut hurried => return CliExit::Failed,
            }
        }
        // No client is accepted before the credentials are known.
        let CredentialRefresh { keys, provider, has_password_file: logs_in } = self.refresh;
        if let Some(keys) = keys {
            if !read_keys(&keys).await {
                tracing::error!(reasons = ?self.life.reasons(), "the keys cannot be read from the store");
                return CliExit::Unavailable;
            }
            tokio::spawn(supervise::run_restarting("keys", move || Arc::clone(&keys).run()));
        }
        let reread = handle_reload(self.certificate_reloader, provider, logs_in, reload, again);
        supervise::spawn_required(&Handle::current(), "certificates and provider", reread);
        let mut driver = tokio::spawn(self.driver.run());
        let (listener, context) = self.public;
        let public = listener.address();
        tokio::spawn(accept("listener", Arc::new(listener), context));
        let quic = self.quic.map(quic);
        let admin = self.admin;
        // Turns can start with the first lease. Without one the node serves requests that need no lease, and is not
        // ready.
        tokio::select! {
            () = wait_for_lease(&self.life) => {}
            _ = &mut hurried => return CliExit::Failed,
        }
        self.life.advance(NodePhase::Serving);
        ready::announce(&self.plan, self.durability, self.node, Addresses { http: public, quic, admin });

        let exit = tokio::select! {
            exit = until_leaving(&mut driver, &self.remote_calls, &self.life, &self.store_failed) => exit,
            _ = &mut hurried => return CliExit::Failed,
        };
        self.life.advance(NodePhase::Stopping);
        driver.abort();
        if let Some(fleet) = &self.fleet
            && tokio::time::timeout(LEAVE_TIMEOUT, fleet.leave()).await.is_err()
        {
            tracing::warn!("not all messages to the other nodes could be sent");
        }
        self.agents.abort_all();
        self.links.close_all();
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = tokio::time::sleep(LINKS_CLOSE_TIMEOUT) => {
                tracing::warn!(links = self.links.count(), "not all links closed in time");
            }
            _ = &mut hurried => return CliExit::Failed,
        }
        exit
    }
}

/// Waits for the first lease, at most [`FIRST_LEASE_TIMEOUT`].
async fn wait_for_lease(life: &Lifecycle) {
    if tokio::time::timeout(FIRST_LEASE_TIMEOUT, life.wait_cleared(UnreadyReason::LeaseMissing)).await.is_err() {
        tracing::warn!(reason = UnreadyReason::LeaseMissing.code(), "no lease yet; serving, but not ready");
    }
}

/// Waits until the node has to exit; returns the exit code.
async fn until_leaving(
    driver: &mut JoinHandle<DriverExit>,
    lines: &RemoteCalls,
    life: &Lifecycle,
    fatal: &Notify,
) -> CliExit {
    tokio::select! {
        exit = serve_and_drain(driver, lines, life) => exit,
        () = fatal.notified() => {
            tracing::error!("the store has failed; exiting");
            CliExit::Unavailable
        }
        () = life.wait_drain_without_store() => {
            tracing::error!("the store's file is gone and nothing more can be recorded; exiting");
            CliExit::Unavailable
        }
        task = supervise::wait_failed() => {
            tracing::error!(task, "a task that the node cannot run without failed; exiting");
            CliExit::Bug
        }
    }
}

/// Waits until the switchboard has drained, or the drain times out.
async fn serve_and_drain(driver: &mut JoinHandle<DriverExit>, lines: &RemoteCalls, life: &Lifecycle) -> CliExit {
    let ended = match serve(driver, life, life.wait_for_phase(NodePhase::Draining)).await {
        ServeOutcome::Broken(ended) => return exit_code(ended),
        ServeOutcome::Draining(ended) => ended,
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
    let others = tokio::time::timeout(limits::DRAIN_TIMEOUT, lines.wait_idle());
    match tokio::join!(tokio::time::timeout(limits::DRAIN_TIMEOUT + HANDOVER_TIMEOUT, driver), others) {
        (Ok(ended), _) => exit_code(ended),
        (Err(_), _) => {
            tracing::error!("draining timed out; other nodes take over the remaining sessions");
            CliExit::Failed
        }
    }
}

/// The outcome of serving.
#[derive(Debug)]
enum ServeOutcome {
    /// The node drains; the driver may have ended already.
    Draining(Option<Result<DriverExit, JoinError>>),
    /// The driver ended without a drain.
    Broken(Result<DriverExit, JoinError>),
}

/// Serves until the node drains. The driver watches the phase itself: with nothing to drain, the driver may end before
/// this function sees the new phase, and that also counts as a drain.
async fn serve(
    driver: &mut JoinHandle<DriverExit>,
    life: &Lifecycle,
    draining: impl Future<Output = ()>,
) -> ServeOutcome {
    tokio::select! {
        biased;
        () = draining => ServeOutcome::Draining(None),
        ended = driver => match life.phase() {
            NodePhase::Starting | NodePhase::Serving => ServeOutcome::Broken(ended),
            NodePhase::Draining | NodePhase::Stopping | NodePhase::Stopped => ServeOutcome::Draining(Some(ended)),
        },
    }
}

fn exit_code(ended: Result<DriverExit, JoinError>) -> CliExit {
    match ended {
        Ok(DriverExit::Finished) => CliExit::Success,
        Ok(DriverExit::Broken) => CliExit::Bug,
        Err(error) => {
            tracing::error!(%error, "the driver panicked; exiting");
            CliExit::Bug
        }
    }
}

/// Starts the drain at the first request to leave. Returns at the second request, which ends the process at once.
async fn handle_signals(mut leave: ShutdownSignal, life: Lifecycle) {
    leave.recv().await;
    life.advance(NodePhase::Draining);
    leave.recv().await;
    tracing::warn!("second shutdown signal; exiting at once");
}

/// Returns whether the keys could be read in time.
async fn read_keys(keys: &ApiKeys) -> bool {
    let read = async {
        while let Err(error) = keys.read().await {
            tracing::warn!(%error, "the keys could not be read yet; retrying");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    tokio::time::timeout(JOIN_TIMEOUT, read).await.is_ok()
}

/// Handles `SIGHUP`: reloads certificates, a provider's keys, and the password of Redis, which the Redis connections
/// read. Logs it if there is nothing to reload.
async fn handle_reload(
    certificate_reloader: Option<CertificateReloader>,
    provider: Option<ProviderKeysFetcher>,
    logs_in: bool,
    mut reload: ReloadSignal,
    again: ReloadSignal,
) {
    let is_fetching = provider.is_some() || logs_in;
    if let Some(provider) = provider {
        supervise::spawn_required(&Handle::current(), "keys of the provider", provider.run(again));
    }
    if let Some(certificate_reloader) = certificate_reloader {
        return certificate_reloader.run(reload).await;
    }
    loop {
        reload.recv().await;
        if !is_fetching {
            tracing::info!("there is nothing to reload");
        }
    }
}

/// Accepts connections until the listener ends. After a panic it starts again; only connections that were being
/// accepted are lost.
async fn accept(name: &'static str, listener: Arc<Listener>, context: Arc<ListenerContext>) {
    let serve = || async {
        if let Err(error) = listener.serve(Arc::clone(&context)).await {
            tracing::error!(%error, name, "a listener failed");
            supervise::fail_node(name);
        }
    };
    supervise::run_restarting(name, serve).await;
}

/// Starts serving QUIC, and returns its address.
fn quic((listener, context): QuicService) -> SocketAddr {
    let address = listener.address();
    let tasks = context.tasks.clone();
    // Tracked by the tasks that the shutdown waits for, because this task writes the last packets of all its links.
    tasks.spawn(supervise::run_required("QUIC", async move {
        if let Err(error) = listener.serve(context).await {
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
        let life = Lifecycle::default();
        let ended = || tokio::spawn(async { DriverExit::Finished });
        life.advance(NodePhase::Serving);
        assert!(matches!(serve(&mut ended(), &life, pending()).await, ServeOutcome::Broken(Ok(DriverExit::Finished))));
        life.advance(NodePhase::Draining);
        let drained = serve(&mut ended(), &life, pending()).await;
        assert!(matches!(drained, ServeOutcome::Draining(Some(Ok(DriverExit::Finished)))), "{drained:?}");
        let outcome = serve(&mut tokio::spawn(pending()), &life, ready(())).await;
        assert!(matches!(outcome, ServeOutcome::Draining(None)), "{outcome:?}");
    }
}
