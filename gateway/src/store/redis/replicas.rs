//! Waits until a replica has the answered writes. `WAIT` counts only its own connection's writes and blocks that
//! connection, so a separate connection writes a mark: a replica that has the mark has every earlier write. One mark
//! serves all callers that wait for the next.
use crate::redis::RedisConnection;
use crate::store::redis::call::{RedisCall, RedisCallError};
use crate::store::redis::executor::CallResult;
use crate::store::redis::key;
use crate::supervise;
use ::redis::{Pipeline, Value, cmd};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use turnway_core::limits;

/// Timeout of `WAIT`. A longer one would only delay a client whose answer is going to be `Unknown`.
const WAIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Replicas that must have the write.
const REPLICAS_MIN: u64 = 1;

type ReplicaWaiter = oneshot::Sender<bool>;

/// A handle of the task that waits for replicas.
pub(super) struct Replicas {
    line: RedisConnection,
    requests: mpsc::Sender<ReplicaWaiter>,
}

impl Replicas {
    /// Starts the task; it writes a mark of this name.
    pub(super) fn new(line: RedisConnection, name: &str, runtime: &Handle) -> Self {
        let (requests, receiver) = mpsc::channel(limits::STORE_QUEUE_MAX);
        let mark = RedisCall::write("mark", [key::mark(name)]).text("1");
        supervise::spawn_required(runtime, "replicas of Redis", run(line.clone(), mark, receiver));
        Self { line, requests }
    }

    /// Returns the connection of the task: without this connection a durable write cannot be confirmed.
    pub(super) fn line(&self) -> &RedisConnection {
        &self.line
    }

    /// Waits until a replica has everything that was written before this call.
    pub(super) async fn wait_replicated(&self) -> CallResult<()> {
        let (sender, answer) = oneshot::channel();
        let sent = self.requests.send(sender).await.is_ok();
        // The primary has the write; whether a replica has it is unknown.
        if sent && answer.await.unwrap_or(false) { Ok(()) } else { Err(RedisCallError::Unknown) }
    }
}

async fn run(connection: RedisConnection, mark: RedisCall, mut requests: mpsc::Receiver<ReplicaWaiter>) {
    let mut waiters = Vec::new();
    let within = WAIT_TIMEOUT.as_millis().to_string();
    while requests.recv_many(&mut waiters, limits::STORE_QUEUE_MAX).await > 0 {
        let mut pipeline = Pipeline::new();
        pipeline.add_command(mark.command().clone());
        let mut wait = cmd("WAIT");
        wait.arg(REPLICAS_MIN).arg(&within);
        pipeline.add_command(wait);
        let answers = connection.execute_all(&pipeline).await.unwrap_or_default();
        let enough = match answers.as_slice() {
            [Ok(_), Ok(Value::Int(replicas))] => u64::try_from(*replicas).is_ok_and(|have| have >= REPLICAS_MIN),
            _ => false,
        };
        for waiter in waiters.drain(..) {
            // The caller may have been dropped.
            let _ = waiter.send(enough);
        }
    }
}
