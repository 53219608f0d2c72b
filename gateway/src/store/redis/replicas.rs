//! Waiting until a replica has what was answered.
//!
//! `WAIT` counts what its own connection wrote, and keeps that connection from doing anything else. So it
//! has one of its own, which writes a mark: whoever has the mark has everything that was written before
//! it. One mark serves all that wait for the next.
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

/// How long replicas are waited for. Longer makes a client wait for what it will be told is unknown.
const WITHIN: Duration = Duration::from_secs(1);
/// Replicas that must have it.
const COUNT: u64 = 1;

type Waiter = oneshot::Sender<bool>;

/// Who is asked.
pub(super) struct Replicas {
    line: Line,
    asked: mpsc::Sender<Waiter>,
}

impl Replicas {
    /// One that writes a mark of this name.
    pub(super) fn new(line: Line, name: &str, runtime: &Handle) -> Self {
        let (asked, receiver) = mpsc::channel(limits::STORE_QUEUE_MAX);
        let mark = Call::to("mark", [key::mark(name)]).text("1");
        supervise::need(runtime, "replicas of Redis", wait(line.clone(), mark, receiver));
        Self { line, asked }
    }

    /// The connection it waits on: without it nothing need be written.
    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Returns when a replica has everything that was written before this was asked.
    pub(super) async fn have_it(&self) -> Done<()> {
        let (sender, answer) = oneshot::channel();
        let sent = self.asked.send(sender).await.is_ok();
        // The primary has it; whether anybody else does is not known.
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
            // Whoever asked may have left.
            let _ = waiter.send(enough);
        }
    }
}
