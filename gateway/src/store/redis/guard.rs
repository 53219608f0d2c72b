//! Monitors whether the connected server still keeps the required durability, rights and memory: a fail-over or an
//! operator may change them. Until a new connection's server is checked, and while it guarantees too little, no op is
//! answered as durable: inputs are refused and nothing is appended; other ops continue. Started by the store.
use crate::config::Durability;
use crate::config::redis::RedisUrl;
use crate::redis::refusal::Complaint;
use crate::redis::{Line, Missed};
use crate::store::redis::OpenError;
use crate::store::redis::health::Health;
use crate::store::redis::quota::Bounds;
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
const AGAIN: Duration = Duration::from_millis(100);
/// … up to this maximum.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// Interval between two checks of a good server's settings and the user's rights, since an operator may change them.
const WATCH: Duration = Duration::from_secs(30);
/// Interval between two test writes, one small command each: no other write is sent while a node is not ready.
const TRY: Duration = Duration::from_secs(1);
/// Connection timeout of a check of the rights.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);

/// The server to monitor, the logins for it, and the receivers of the results.
pub(super) struct Watched {
    /// Login of the node's own user.
    pub(super) url: RedisUrl,
    /// Login that may read settings.
    pub(super) deployer: RedisUrl,
    /// Durability that is promised.
    pub(super) wanted: Durability,
    /// Durability that the operator attests.
    pub(super) attest: Option<Durability>,
    /// Receives problems of the server.
    pub(super) health: Arc<Health>,
    /// Receives the server's memory bounds.
    pub(super) quotas: Arc<Bounds>,
}

/// A handle of the monitoring task, which ends when the handle is dropped.
pub(super) struct Guard {
    line: Line,
    /// Number of the connection whose server was found sufficient, if it was.
    good: watch::Receiver<Option<u64>>,
    task: AbortHandle,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Guard {
    /// Starts monitoring the server that `line` is connected to.
    pub(super) fn new(line: Line, watched: Watched, runtime: &Handle) -> Self {
        let (shown, good) = watch::channel(None);
        let look = look(line.clone(), watched, shown);
        let task = supervise::need(runtime, "durability of Redis", look).abort_handle();
        Self { line, good, task }
    }

    /// Returns whether the currently connected server keeps the required durability.
    pub(super) fn is_good(&self) -> bool {
        let turn = self.line.turn();
        turn.is_some() && *self.good.borrow() == turn
    }

    /// Waits until the connected server keeps the required durability.
    pub(super) async fn ready(&self) {
        // The task lives as long as this handle.
        let _ = self.good.clone().wait_for(|good| good.is_some() && *good == self.line.turn()).await;
    }
}

async fn look(mut line: Line, watched: Watched, shown: watch::Sender<Option<u64>>) {
    let mut again = AGAIN;
    loop {
        let Some(turn) = line.turn() else {
            watched.tell_closed(&line);
            let _ = timeout(TRY, line.turned()).await;
            continue;
        };
        match probe::keeps(&watched.deployer, watched.wanted, watched.attest).await {
            Ok(memory) => {
                watched.health.unfit(false);
                watched.quotas.learn(memory);
                again = AGAIN;
                let _ = shown.send(Some(turn));
                watched.watch(&mut line, turn).await;
            }
            Err(error) => {
                // A server that could not be asked keeps its last result.
                let asked = !matches!(error, OpenError::Unreached(_) | OpenError::Asked { .. });
                if asked {
                    if *shown.borrow() == Some(turn) || shown.borrow().is_none() && again == AGAIN {
                        tracing::error!(redis = %watched.deployer, %error, "Redis no longer gives the promised durability");
                    }
                    watched.health.unfit(true);
                    let _ = shown.send(None);
                }
                sleep(again).await;
                again = (again * 2).min(AGAIN_MAX);
            }
        }
    }
}

// === impl Watched ===

impl Watched {
    /// Reports the error with which the server refused the connection.
    fn tell_closed(&self, line: &Line) {
        if let Some((code, detail)) = line.refusal() {
            self.health.refused(&code, &detail);
        }
    }

    /// Sends test writes until the settings have to be checked again or the connection changes.
    async fn watch(&self, line: &mut Line, turn: u64) {
        let began = Instant::now();
        self.look_at_rights().await;
        while line.turn() == Some(turn) && began.elapsed() < WATCH {
            self.try_to_write(line).await;
            if self.health.has(Complaint::Forbidden) {
                self.look_at_rights().await;
            }
            let _ = timeout(TRY, line.turned()).await;
        }
    }

    /// Sets a missing key on the condition that it exists: this changes nothing, but a server that accepts no writes
    /// refuses.
    async fn try_to_write(&self, line: &Line) {
        match line.ask(cmd("SET").arg("mark:{turnway/probe}").arg("1").arg("XX")).await {
            Ok(_) => {
                self.health.over(Complaint::Full);
                self.health.over(Complaint::ReadOnly);
            }
            Err(Missed::Refused { code, detail }) => self.health.refused(&code, &detail),
            Err(Missed::NotSent | Missed::Unanswered) => {}
        }
    }

    async fn look_at_rights(&self) {
        let with_wait = self.wanted == Durability::FsyncReplica;
        match rights::check(&self.url, with_wait, CONNECT_WITHIN).await {
            Ok(()) => self.health.over(Complaint::Forbidden),
            Err(OpenError::Rights(missing)) => self.health.refused("NOPERM", &missing.to_string()),
            // If the server could not be asked, its last result stays, unless it refused the login.
            Err(error) => {
                if let OpenError::Unreached(unreached) = error
                    && let Some((code, detail)) = unreached.said()
                {
                    self.health.refused(&code, &detail);
                }
            }
        }
    }
}
