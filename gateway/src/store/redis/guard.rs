//! Whether the server at the other end keeps what is promised, and does what it is asked: it need not be the one of the
//! start, nor set as it was then. A fail-over may lead to one that keeps nothing; somebody may take rights away; memory
//! runs out.
//!
//! Until a new connection's server was looked at, and while it promises less than was asked for, nothing
//! is answered as being durable: inputs are refused and nothing is appended. Everything else goes on.
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

/// Before another look at a server that was not good enough, or could not be looked at; twice as long
/// before each later one …
const AGAIN: Duration = Duration::from_millis(100);
/// … but never longer than this.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// Between two looks at the settings of a good one, and at the rights of the user: somebody may change them.
const WATCH: Duration = Duration::from_secs(30);
/// Between two tries to write: nobody else writes while a node is not ready. One small command.
const TRY: Duration = Duration::from_secs(1);
/// What a look at the rights may take to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);

/// What is looked at, and as whom.
pub(super) struct Watched {
    /// The node's own user.
    pub(super) url: RedisUrl,
    /// Who may see settings.
    pub(super) deployer: RedisUrl,
    /// What is promised.
    pub(super) wanted: Durability,
    /// What the operator vouches for.
    pub(super) attest: Option<Durability>,
    /// Who is told.
    pub(super) health: Arc<Health>,
    /// What is told how much memory the server has.
    pub(super) quotas: Arc<Bounds>,
}

/// Who looks. It ends when dropped.
pub(super) struct Guard {
    line: Line,
    /// The connection whose server was found good, if it is good.
    good: watch::Receiver<Option<u64>>,
    task: AbortHandle,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Guard {
    /// One who looks at whatever a line is connected to, as a user who may.
    pub(super) fn new(line: Line, watched: Watched, runtime: &Handle) -> Self {
        let (shown, good) = watch::channel(None);
        let look = look(line.clone(), watched, shown);
        let task = supervise::need(runtime, "durability of Redis", look).abort_handle();
        Self { line, good, task }
    }

    /// Whether the server of today keeps what is promised.
    pub(super) fn is_good(&self) -> bool {
        let turn = self.line.turn();
        turn.is_some() && *self.good.borrow() == turn
    }

    /// Waits until it does.
    pub(super) async fn ready(&self) {
        // The task lives as long as this.
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
                // Whoever could not be asked is as good as before.
                let asked = !matches!(error, OpenError::Unreached(_) | OpenError::Asked { .. });
                if asked {
                    if *shown.borrow() == Some(turn) || shown.borrow().is_none() && again == AGAIN {
                        tracing::error!(redis = %watched.deployer, %error, "Redis does not keep what is promised");
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
    /// Tells what the server said when it did not let the node in.
    fn tell_closed(&self, line: &Line) {
        if let Some((code, detail)) = line.refusal() {
            self.health.refused(&code, &detail);
        }
    }

    /// Tries to write now and then, until the settings are to be looked at again or the connection is another.
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

    /// Sets what is not there, on the condition that it is: nothing is changed, and a server that takes no writes says so.
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
            // Whoever could not be asked may what it might before, unless it was not let in.
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
