//! Waits until a replica has the answered writes. `WAIT` counts only its own connection's writes and blocks that
//! connection, so a separate connection writes a mark: a replica that has the mark has every earlier write. One mark
//! serves all callers that wait for the next.
use crate::redis::Line;
use crate::store::redis::call::{Call, Trouble};
use crate::store::redis::desk::Done;
use crate::store::redis::key;
use crate::supervise;
use ::redis::{Pipeline, Value, cmd};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use turnway_core::limits;

/// Timeout of `WAIT`. A longer one would only delay a client whose answer is going to be `Unknown`.
const WITHIN: Duration = Duration::from_secs(1);
/// Replicas that must have the write.
const COUNT: u64 = 1;

type Waiter = oneshot::Sender<bool>;

/// A handle of the task that waits for replicas.
pub(super) struct Replicas {
    line: Line,
    asked: mpsc::Sender<Waiter>,
}

impl Replicas {
    /// Starts the task; it writes a mark of this name.
    pub(super) fn new(line: Line, name: &str, runtime: &Handle) -> Self {
        let (asked, receiver) = mpsc::channel(limits::STORE_QUEUE_MAX);
        let mark = Call::to("mark", [key::mark(name)]).text("1");
        supervise::need(runtime, "replicas of Redis", wait(line.clone(), mark, receiver));
        Self { line, asked }
    }

    /// Returns the connection of the task: without this connection a durable write cannot be confirmed.
    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Waits until a replica has everything that was written before this call.
    pub(super) async fn have_it(&self) -> Done<()> {
        let (sender, answer) = oneshot::channel();
        let sent = self.asked.send(sender).await.is_ok();
        // The primary has the write; whether a replica has it is unknown.
        if sent && answer.await.unwrap_or(false) { Ok(()) } else { Err(Trouble::Doubt) }
    }
}

async fn wait(line: Line, mark: Call, mut asked: mpsc::Receiver<Waiter>) {
    let mut waiters = Vec::new();
    let within = WITHIN.as_millis().to_string();
    while asked.recv_many(&mut waiters, limits::STORE_QUEUE_MAX).await > 0 {
        let mut pipeline = Pipeline::new();
        pipeline.add_command(mark.command().clone());
        let mut wait = cmd("WAIT");
        wait.arg(COUNT).arg(&within);
        pipeline.add_command(wait);
        let answers = line.ask_all(&pipeline).await.unwrap_or_default();
        let enough = match answers.as_slice() {
            [Ok(_), Ok(Value::Int(replicas))] => u64::try_from(*replicas).is_ok_and(|have| have >= COUNT),
            _ => false,
        };
        for waiter in waiters.drain(..) {
            // The caller may have been dropped.
            let _ = waiter.send(enough);
        }
    }
}
