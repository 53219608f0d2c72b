//! Whether the server at the other end keeps what is promised: it need not be the one of the start, nor
//! set as it was then. A fail-over may lead to one that keeps nothing.
//!
//! Until a new connection's server was looked at, and while it promises less than was asked for, nothing
//! is answered as being durable: inputs are refused and nothing is appended. Everything else goes on.
use crate::config::Durability;
use crate::config::redis::RedisUrl;
use crate::redis::Line;
use crate::store::redis::OpenError;
use crate::store::redis::probe;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Before another look at a server that was not good enough, or could not be looked at; twice as long
/// before each later one …
const AGAIN: Duration = Duration::from_millis(100);
/// … but never longer than this.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// Between two looks at a good one: somebody may change its settings.
const WATCH: Duration = Duration::from_secs(30);

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
    pub(super) fn new(line: Line, deployer: RedisUrl, wanted: Durability, runtime: &Handle) -> Self {
        let (shown, good) = watch::channel(None);
        let task = runtime.spawn(look(line.clone(), deployer, wanted, shown)).abort_handle();
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

async fn look(mut line: Line, deployer: RedisUrl, wanted: Durability, shown: watch::Sender<Option<u64>>) {
    let (mut told, mut again) = (false, AGAIN);
    loop {
        let Some(turn) = line.turn() else {
            line.turned().await;
            continue;
        };
        match probe::keeps(&deployer, wanted).await {
            Ok(()) => {
                if std::mem::take(&mut told) {
                    tracing::info!(redis = %deployer, "Redis keeps what is promised again");
                }
                again = AGAIN;
                let _ = shown.send(Some(turn));
                // A new connection is looked at at once.
                let _ = timeout(WATCH, line.turned()).await;
            }
            Err(error) => {
                // Whoever could not be asked is as good as before.
                let asked = !matches!(error, OpenError::Unreached(_) | OpenError::Asked { .. });
                if asked && !std::mem::replace(&mut told, true) {
                    tracing::error!(redis = %deployer, %error, "Redis does not keep what is promised; taking nothing");
                }
                if asked {
                    let _ = shown.send(None);
                }
                sleep(again).await;
                again = (again * 2).min(AGAIN_MAX);
            }
        }
    }
}
