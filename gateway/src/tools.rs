//! The tool runners connected to this node (protocol.md §1.7). A [`RunnerPool`] decides which runner executes an
//! action; this file carries orders and messages to and from it. Orders never block. Messages of a runner wait while
//! the switchboard's queue is full, which in turn pauses reading from that runner.
use crate::clock::Clock;
use crate::config::ServedBy;
use crate::supervise;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use turnway_core::id::{EventId, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::action::{ToolOrder, ToolReport};
use turnway_node::runner::pool::{Input, Output, RunnerConnectionId, RunnerPool, RunnerRefusal};
use turnway_wire::channel::hello::RunnerHello;
use turnway_wire::channel::service::ServerIdentity;
use turnway_wire::runner::{FromRunner, ToRunner};

/// Length of a timer when no deadline is set.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// A report about an action, on the way to the switchboard.
#[derive(Clone, Debug)]
pub struct RunnerReport {
    pub key: SessionKey,
    pub action_id: EventId,
    pub report: ToolReport,
}

/// The tool runners of a node. Clones share one state.
#[derive(Clone)]
pub struct ToolRunners(Arc<ToolRunnersInner>);

struct ToolRunnersInner {
    state: Mutex<ToolRunnersState>,
    /// Notified when the next deadline may have changed.
    wake: Notify,
    reports: Sender<RunnerReport>,
    runtime: Handle,
    clock: Clock,
    /// The identities that may run tools for every tenant.
    served_by: ServedBy,
}

#[derive(Default)]
struct ToolRunnersState {
    pool: RunnerPool,
    queues: BTreeMap<RunnerConnectionId, Arc<RunnerQueue>>,
    last_connection: RunnerConnectionId,
}

/// The messages that wait for one runner's connection; the flag is set when the queue has overflowed.
#[derive(Default)]
struct RunnerQueue {
    messages: Mutex<(VecDeque<ToRunner>, bool)>,
    wake: Notify,
}

/// The registration of a runner's connection. After it is dropped, the runner's actions wait for the runner to
/// reconnect.
pub struct RunnerRegistration {
    tools: ToolRunners,
    connection: RunnerConnectionId,
    queue: Arc<RunnerQueue>,
}

// === impl ToolRunners ===

impl ToolRunners {
    /// Creates the pool without runners. Reports go to `reports`; the timer task runs on `runtime`.
    pub fn new(reports: Sender<RunnerReport>, runtime: &Handle, clock: Clock, served_by: ServedBy) -> Self {
        let state = Mutex::default();
        let wake = Notify::new();
        let this =
            Self(Arc::new(ToolRunnersInner { state, wake, reports, runtime: runtime.clone(), clock, served_by }));
        let watched = this.clone();
        runtime.spawn(supervise::run_restarting("tools", move || watched.clone().run_timer()));
        this
    }

    /// Executes an order of a session. Never blocks. Every order may arrive twice.
    pub fn perform(&self, order: ToolOrder) {
        for report in self.handle_input(Input::Order(order)) {
            self.report(report);
        }
    }

    /// Returns the identities that the configuration lets run tools for every tenant.
    pub fn served_by(&self) -> &ServedBy {
        &self.0.served_by
    }

    /// Registers a runner that may serve as this identity.
    pub fn register(&self, hello: RunnerHello, identity: ServerIdentity) -> Result<RunnerRegistration, RunnerRefusal> {
        let RunnerHello { runner_id: runner, tools } = hello;
        let queue = Arc::new(RunnerQueue::default());
        let mut state = self.lock_state();
        state.pool.check_admission(&runner, &identity)?;
        state.last_connection += 1;
        let connection = state.last_connection;
        state.queues.insert(connection, Arc::clone(&queue));
        let connected = Input::RunnerConnected { connection, runner, identity, tools };
        state.pool.handle_input(self.0.clock.now(), connected);
        let reports = state.drain();
        drop(state);
        self.0.wake.notify_one();
        reports.into_iter().for_each(|report| self.report(report));
        Ok(RunnerRegistration { tools: self.clone(), connection, queue })
    }

    /// Returns the number of connected runners.
    pub fn connected(&self) -> usize {
        self.lock_state().pool.runners()
    }

    /// Passes an input to the pool's machine. Returns the reports for sessions, because only the caller knows whether
    /// they may wait.
    fn handle_input(&self, input: Input) -> Vec<RunnerReport> {
        let mut state = self.lock_state();
        state.pool.handle_input(self.0.clock.now(), input);
        let reports = state.drain();
        drop(state);
        self.0.wake.notify_one();
        reports
    }

    /// Runs the timer of the pool's machine.
    async fn run_timer(self) {
        loop {
            let due = self.lock_state().pool.poll_timeout();
            let wait = due.map_or(IDLE_WAIT, |due| due.at - self.0.clock.mono());
            tokio::select! {
                () = self.0.wake.notified() => {}
                () = tokio::time::sleep(wait) => {
                    for report in self.handle_timeout() {
                        // The send fails only while the node shuts down.
                        let _ = self.0.reports.send(report).await;
                    }
                }
            }
        }
    }

    fn handle_timeout(&self) -> Vec<RunnerReport> {
        let mut state = self.lock_state();
        state.pool.handle_timeout(self.0.clock.now());
        state.drain()
    }

    /// Reports from an order, which must not block. There are no more such reports than actions.
    fn report(&self, report: RunnerReport) {
        match self.0.reports.try_send(report) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(report)) => {
                let reports = self.0.reports.clone();
                self.0.runtime.spawn(async move { reports.send(report).await });
            }
        }
    }

    /// Returns the locked state; no code panics while it holds this lock.
    fn lock_state(&self) -> MutexGuard<'_, ToolRunnersState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ToolRunners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} tool runners>", self.connected())
    }
}

// === impl ToolRunnersState ===

impl ToolRunnersState {
    fn drain(&mut self) -> Vec<RunnerReport> {
        let mut reports = Vec::new();
        while let Some(output) = self.pool.poll_output() {
            match output {
                Output::Send { connection, message } => {
                    self.queues.get(&connection).into_iter().for_each(|queue| queue.push(message.clone()));
                }
                Output::Report { key, action_id, report } => reports.push(RunnerReport { key, action_id, report }),
            }
        }
        reports
    }
}

// === impl RunnerQueue ===

impl RunnerQueue {
    fn push(&self, message: ToRunner) {
        let mut queue = self.messages();
        if queue.0.len() >= limits::RUNNER_QUEUE_MAX {
            queue.1 = true;
        } else {
            queue.0.push_back(message);
        }
        drop(queue);
        self.wake.notify_one();
    }

    fn messages(&self) -> MutexGuard<'_, (VecDeque<ToRunner>, bool)> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl RunnerRegistration ===

impl RunnerRegistration {
    /// Waits for the next message to the runner. Returns `None` if the queue has overflowed, and the connection must be
    /// closed. Cancel-safe.
    pub async fn next_message(&self) -> Option<ToRunner> {
        loop {
            {
                let mut queue = self.queue.messages();
                if queue.1 {
                    return None;
                }
                if let Some(message) = queue.0.pop_front() {
                    return Some(message);
                }
            }
            self.queue.wake.notified().await;
        }
    }

    /// Handles a message of the runner. Waits while the switchboard's queue is full.
    pub async fn handle_message(&self, message: FromRunner) {
        let connection = self.connection;
        for report in self.tools.handle_input(Input::Message { connection, message }) {
            // The send fails only while the node shuts down.
            let _ = self.tools.0.reports.send(report).await;
        }
    }
}

impl fmt::Debug for RunnerRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<tool runner {}>", self.connection)
    }
}

impl Drop for RunnerRegistration {
    fn drop(&mut self) {
        self.tools.lock_state().queues.remove(&self.connection);
        for report in self.tools.handle_input(Input::RunnerDisconnected { connection: self.connection }) {
            self.tools.report(report);
        }
    }
}
