//! Monitors whether the connected server still keeps the required durability, rights and memory: a fail-over or an
//! operator may change them. Until a new connection's server is checked, and while it guarantees too little, no op is
//! answered as durable: inputs are refused and nothing is appended; other ops continue. Started by the store.
use crate::config::Durability;
use crate::config::redis::RedisUrl;
use crate::redis::server_error::ServerCondition;
use crate::redis::{RedisCommandError, RedisConnection};
use crate::store::redis::RedisOpenError;
use crate::store::redis::health::StoreHealth;
use crate::store::redis::quota::QuotaBounds;
use crate::store::redis::{probe, rights};
use crate::supervise;
use ::redis::cmd;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// First delay before a repeated check of a server that was insufficient or could not be checked; doubled each time …
const RETRY_MIN: Duration = Duration::from_millis(100);
/// … up to this maximum.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Interval between two checks of a good server's settings and the user's rights, since an operator may change them.
const SETTINGS_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between two test writes, one small command each: no other write is sent while a node is not ready.
const TEST_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Connection timeout of a check of the rights.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// The server to monitor, the logins for it, and the receivers of the results.
pub(super) struct MonitorContext {
    /// Login of the node's own user.
    pub(super) url: RedisUrl,
    /// Login that may read settings.
    pub(super) deployer: RedisUrl,
    /// Durability that is promised.
    pub(super) wanted: Durability,
    /// Durability that the operator attests.
    pub(super) attest: Option<Durability>,
    /// Receives problems of the server.
    pub(super) health: Arc<StoreHealth>,
    /// Receives the server's memory bounds.
    pub(super) quotas: Arc<QuotaBounds>,
}

/// A handle of the monitoring task, which ends when the handle is dropped.
pub(super) struct DurabilityMonitor {
    line: RedisConnection,
    /// Number of the connection whose server was found sufficient, if it was.
    good_connection: watch::Receiver<Option<u64>>,
    task: AbortHandle,
}

impl Drop for DurabilityMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl DurabilityMonitor {
    /// Starts monitoring the server that `line` is connected to.
    pub(super) fn new(line: RedisConnection, watched: MonitorContext, runtime: &Handle) -> Self {
        let (shown, good_connection) = watch::channel(None);
        let look = run_monitor(line.clone(), watched, shown);
        let task = supervise::spawn_required(runtime, "durability of Redis", look).abort_handle();
        Self { line, good_connection, task }
    }

    /// Returns whether the currently connected server keeps the required durability.
    pub(super) fn is_good(&self) -> bool {
        let turn = self.line.generation();
        turn.is_some() && *self.good_connection.borrow() == turn
    }

    /// Waits until the connected server keeps the required durability.
    pub(super) async fn ready(&self) {
        // The task lives as long as this handle.
        let _ = self.good_connection.clone().wait_for(|good| good.is_some() && *good == self.line.generation()).await;
    }
}

async fn run_monitor(mut connection: RedisConnection, watched: MonitorContext, shown: watch::Sender<Option<u64>>) {
    let mut again = RETRY_MIN;
    loop {
        let Some(turn) = connection.generation() else {
            watched.report_refusal(&connection);
            let _ = timeout(TEST_WRITE_INTERVAL, connection.wait_generation()).await;
            continue;
        };
        match probe::recheck(&watched.deployer, watched.wanted, watched.attest).await {
            Ok(memory) => {
                watched.health.set_unfit(false);
                watched.quotas.set_memory(memory);
                again = RETRY_MIN;
                let _ = shown.send(Some(turn));
                watched.test_writes(&mut connection, turn).await;
            }
            Err(error) => {
                // A server that could not be asked keeps its last result.
                let has_answered = !matches!(error, RedisOpenError::Unreached(_) | RedisOpenError::Command { .. });
                if has_answered {
                    if *shown.borrow() == Some(turn) || shown.borrow().is_none() && again == RETRY_MIN {
                        let redis = &watched.deployer;
                        tracing::error!(%redis, %error, "Redis no longer gives the promised durability");
                    }
                    watched.health.set_unfit(true);
                    let _ = shown.send(None);
                }
                sleep(again).await;
                again = (again * 2).min(RETRY_MAX);
            }
        }
    }
}

// === impl MonitorContext ===

impl MonitorContext {
    /// Reports the error with which the server refused the connection.
    fn report_refusal(&self, connection: &RedisConnection) {
        if let Some((code, detail)) = connection.last_error() {
            self.health.record_refusal(&code, &detail);
        }
    }

    /// Sends test writes until the settings have to be checked again or the connection changes.
    async fn test_writes(&self, connection: &mut RedisConnection, turn: u64) {
        let began = Instant::now();
        self.check_rights().await;
        while connection.generation() == Some(turn) && began.elapsed() < SETTINGS_CHECK_INTERVAL {
            self.test_write(connection).await;
            if self.health.has(ServerCondition::Forbidden) {
                self.check_rights().await;
            }
            let _ = timeout(TEST_WRITE_INTERVAL, connection.wait_generation()).await;
        }
    }

    /// Sets a missing key on the condition that it exists: this changes nothing, but a server that accepts no writes
    /// refuses.
    async fn test_write(&self, connection: &RedisConnection) {
        match connection.execute(cmd("SET").arg("mark:{turnway/probe}").arg("1").arg("XX")).await {
            Ok(_) => {
                self.health.resolve(ServerCondition::Full);
                self.health.resolve(ServerCondition::ReadOnly);
            }
            Err(RedisCommandError::Refused { code, detail }) => self.health.record_refusal(&code, &detail),
            Err(RedisCommandError::NotSent | RedisCommandError::Unanswered) => {}
        }
    }

    async fn check_rights(&self) {
        let with_wait = self.wanted == Durability::FsyncReplica;
        match rights::check(&self.url, with_wait, CONNECT_TIMEOUT).await {
            Ok(()) => self.health.resolve(ServerCondition::Forbidden),
            Err(RedisOpenError::Rights(missing)) => self.health.record_refusal("NOPERM", &missing.to_string()),
            // If the server could not be asked, its last result stays, unless it refused the login.
            Err(error) => {
                if let RedisOpenError::Unreached(unreached) = error
                    && let Some((code, detail)) = unreached.server_error()
                {
                    self.health.record_refusal(&code, &detail);
                }
            }
        }
    }
}
