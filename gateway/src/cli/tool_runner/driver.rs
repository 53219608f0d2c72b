//! Drives a [`ToolExecutor`]: connects the machine to the journal, the processes, the gateways, signals and time.
use super::journal::Journal;
use super::process::RunningProcess;
use super::users::RunAs;
use super::{connection, leftovers, process};
use crate::cli::{CliError, CliExit, write_json, write_stdout};
use crate::clock::Clock;
use crate::signal::ShutdownSignal;
use serde_json::{Map, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use turnway_client::Options;
use turnway_core::id::{EventId, RunnerId};
use turnway_core::limits::TOOL_EXECUTOR_KILL_GRACE;
use turnway_core::machine::Machine;
use turnway_tool_executor::journal::JournalRecord;
use turnway_tool_executor::messages::GatewayMessage;
use turnway_tool_executor::process::Signal;
use turnway_tool_executor::programs::AllowedPrograms;
use turnway_tool_executor::tools::TOOLS;
use turnway_tool_executor::{GatewayIndex, Input, Output, ToolExecutor};

/// Capacity of the channels for events of processes and of connections; a full channel blocks its sender.
const EVENT_QUEUE_CAPACITY: usize = 64;
/// Time that connections have to send what is queued, and processes to end, after the runner has left.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the event loop if the machine has no deadline.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// Options of a tool runner.
#[derive(Debug)]
pub(super) struct ToolRunnerOptions {
    pub(super) id: RunnerId,
    /// One entry for each node.
    pub(super) options: Vec<Options>,
    /// Users of programs, by program name; other programs run as the runner's own user.
    pub(super) run_as: BTreeMap<String, RunAs>,
    pub(super) stop_wait: Duration,
    pub(super) json: bool,
}

/// A running tool runner.
pub(super) struct ToolRunnerDriver {
    plan: ToolRunnerOptions,
    toolbox: ToolExecutor,
    journal: Journal,
    clock: Clock,
    running_processes: BTreeMap<EventId, RunningProcess>,
    process_events: (mpsc::Sender<process::ProcessEvent>, mpsc::Receiver<process::ProcessEvent>),
    /// Senders of the open connections; a connection that is lost has none.
    outgoing: BTreeMap<GatewayIndex, mpsc::Sender<String>>,
    link_events: mpsc::Receiver<(GatewayIndex, connection::GatewayEvent)>,
    link_tasks: Vec<JoinHandle<()>>,
    signals: ShutdownSignal,
    /// Set once the runner was asked to leave: the time at which it leaves at the latest.
    leave_deadline: Option<Instant>,
    ready_printed: bool,
}

/// Decision of a handler: the event loop continues or ends.
enum DriverFlow {
    Continue,
    End(Result<CliExit, CliError>),
}

// === impl ToolRunnerDriver ===

impl ToolRunnerDriver {
    /// Creates a runner and starts its connections.
    pub(super) fn new(
        plan: ToolRunnerOptions,
        allowed: AllowedPrograms,
        journal: Journal,
        records: Vec<JournalRecord>,
    ) -> Result<Self, CliError> {
        let signals = ShutdownSignal::listen().map_err(|error| CliError::Unavailable(error.to_string()))?;
        let mut hello = Map::new();
        hello.insert("role".to_owned(), "tool_runner".into());
        hello.insert("runner_id".to_owned(), plan.id.as_str().into());
        hello.insert("tools".to_owned(), json!(TOOLS));
        let (events, link) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let keep = |(gate, options): (GatewayIndex, &Options)| {
            tokio::spawn(connection::maintain(gate, options.clone(), hello.clone(), events.clone()))
        };
        let linked = plan.options.iter().enumerate().map(keep).collect();
        let executor = ToolExecutor::new(allowed, records);
        let clock = Clock::start();
        let running = BTreeMap::new();
        let processes = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let outgoing = BTreeMap::new();
        let leaves = None;
        let ready = false;
        Ok(Self {
            plan,
            toolbox: executor,
            journal,
            clock,
            running_processes: running,
            process_events: processes,
            outgoing,
            link_events: link,
            link_tasks: linked,
            signals,
            leave_deadline: leaves,
            ready_printed: ready,
        })
    }

    /// Runs until the process is told to leave or a gateway refuses this runner.
    pub(super) async fn run(mut self) -> Result<CliExit, CliError> {
        let ended = loop {
            match self.drain_outputs().await {
                DriverFlow::Continue => {}
                DriverFlow::End(ended) => break ended,
            }
            if let DriverFlow::End(ended) = self.wait_for_event().await {
                break ended;
            }
        };
        self.shut_down().await;
        ended
    }

    async fn wait_for_event(&mut self) -> DriverFlow {
        let due = self.toolbox.poll_timeout().map(|deadline| deadline.at - self.clock.mono());
        let due = Instant::now() + due.unwrap_or(IDLE_WAIT);
        let leaves = self.leave_deadline;
        tokio::select! {
            () = self.signals.recv() => return self.handle_leave(),
            () = sleep_until(leaves.unwrap_or(due)), if leaves.is_some() => {
                tracing::warn!("stopping although processes still run or results were not acknowledged");
                return DriverFlow::End(Ok(CliExit::Failed));
            }
            () = sleep_until(due) => self.toolbox.handle_timeout(self.clock.now()),
            Some(event) = self.process_events.1.recv() => self.handle_process_event(event),
            event = self.link_events.recv() => match event {
                Some((gate, event)) => return self.handle_link_event(gate, event),
                None => return DriverFlow::End(Err(CliError::Bug("all connection tasks have ended".to_owned()))),
            }
        }
        DriverFlow::Continue
    }

    fn handle_leave(&mut self) -> DriverFlow {
        if self.leave_deadline.is_some() {
            tracing::info!("second signal: stopping at once");
            return DriverFlow::End(Ok(CliExit::Success));
        }
        tracing::info!(running = self.toolbox.process_count(), "stopping");
        self.leave_deadline = Some(Instant::now() + self.plan.stop_wait + TOOL_EXECUTOR_KILL_GRACE + SHUTDOWN_TIMEOUT);
        self.feed(Input::Shutdown(self.plan.stop_wait));
        DriverFlow::Continue
    }

    fn handle_process_event(&mut self, event: process::ProcessEvent) {
        match event {
            process::ProcessEvent::Printed(action_id, stream, bytes) => {
                self.feed(Input::Printed { action_id, stream, bytes });
            }
            process::ProcessEvent::Exited(action_id, how) => {
                tracing::info!(%action_id, ?how, "process exited");
                self.running_processes.remove(&action_id);
                self.feed(Input::Exited { action_id, how });
            }
        }
    }

    fn handle_link_event(&mut self, gate: GatewayIndex, event: connection::GatewayEvent) -> DriverFlow {
        match event {
            connection::GatewayEvent::Opened(outgoing) => {
                let url = self.plan.options.get(gate).map(|options| &*options.url);
                tracing::info!(runner = self.plan.id.as_str(), url, "connected to the gateway");
                self.outgoing.insert(gate, outgoing);
                self.feed(Input::Opened(gate));
                if !std::mem::replace(&mut self.ready_printed, true) {
                    return self.print_ready().err().map_or(DriverFlow::Continue, |error| DriverFlow::End(Err(error)));
                }
            }
            connection::GatewayEvent::Message(message) => {
                if let GatewayMessage::Error { code, .. } = &message {
                    tracing::warn!(code, "the gateway rejected a message");
                }
                self.feed(Input::Received(gate, message));
            }
            connection::GatewayEvent::Closed => {
                self.outgoing.remove(&gate);
                self.feed(Input::Closed(gate));
            }
            connection::GatewayEvent::Refused(why) => {
                return DriverFlow::End(Err(CliError::Unavailable(format!("the gateway refuses this runner: {why}"))));
            }
        }
        DriverFlow::Continue
    }

    fn print_ready(&self) -> Result<(), CliError> {
        let id = self.plan.id.as_str();
        match self.plan.json {
            true => write_json(&json!({ "ready": true, "runner_id": id })),
            false => write_stdout(&format!("turnway tool-runner ready runner={id}\n")),
        }
    }

    fn feed(&mut self, input: Input) {
        self.toolbox.handle_input(self.clock.now(), input);
    }

    // --- outputs of the machine ---

    /// Performs all outputs of the machine, including those that follow from its own inputs.
    async fn drain_outputs(&mut self) -> DriverFlow {
        let mut answers = VecDeque::new();
        loop {
            while let Some(output) = self.toolbox.poll_output() {
                match self.perform_output(output, &mut answers).await {
                    Ok(true) => {}
                    Ok(false) => return DriverFlow::End(Ok(CliExit::Success)),
                    Err(error) => {
                        // An action that is not recorded must not be performed.
                        return DriverFlow::End(Err(CliError::Unavailable(format!(
                            "the journal cannot be written: {error}"
                        ))));
                    }
                }
            }
            match answers.pop_front() {
                Some(input) => self.feed(input),
                None => break,
            }
        }
        match self.compact_journal().await {
            Ok(()) => DriverFlow::Continue,
            Err(error) => {
                DriverFlow::End(Err(CliError::Unavailable(format!("the journal cannot be written: {error}"))))
            }
        }
    }

    /// Performs one output; false if the machine is done.
    async fn perform_output(&mut self, output: Output, answers: &mut VecDeque<Input>) -> std::io::Result<bool> {
        if let Output::Record(record) = output {
            self.journal.append(&record);
            return Ok(true);
        }
        if self.journal.is_dirty() {
            self.journal.sync().await?;
        }
        match output {
            Output::Record(_) => {}
            Output::KillLeftovers(of) => {
                let ended = tokio::task::spawn_blocking(move || (of.len(), leftovers::kill_all(&of))).await;
                let (actions, ended) = ended.unwrap_or_default();
                tracing::warn!(actions, processes = ended, "killed processes left over from the previous run");
            }
            Output::Spawn { action_id, command } => answers.push_back(self.spawn(action_id, &command)),
            Output::Signal { action_id, signal } => {
                if let Some(running) = self.running_processes.get(&action_id) {
                    tracing::info!(%action_id, ?signal, "sending a signal to a process");
                    running.signal(signal);
                }
            }
            Output::Send(gate, text) => self.send(gate, text),
            Output::SendIfRoom(gate, text) => {
                // Best effort: half of the queue stays reserved for `Output::Send`.
                let there = self.outgoing.get(&gate);
                let free = there.filter(|outgoing| outgoing.capacity() > connection::SEND_QUEUE_CAPACITY / 2);
                if let Some(outgoing) = free {
                    let _ = outgoing.try_send(text);
                }
            }
            Output::Finished => return Ok(false),
        }
        Ok(true)
    }

    fn spawn(&mut self, action_id: EventId, command: &turnway_tool_executor::programs::ProcessCommand) -> Input {
        let run_as = self.plan.run_as.get(&command.program);
        match RunningProcess::start(action_id, command, run_as, self.process_events.0.clone()) {
            Ok(running) => {
                let pid = running.pid;
                tracing::info!(%action_id, program = command.program, pid, "process started");
                self.running_processes.insert(action_id, running);
                Input::Spawned { action_id, pid }
            }
            Err(error) => {
                tracing::warn!(%action_id, program = command.program, %error, "cannot start process");
                Input::Failed { action_id, why: error.to_string() }
            }
        }
    }

    /// Queues a message. A gateway that has not taken a thousand messages counts as disconnected; the machine
    /// resends unacknowledged messages on the next connection.
    fn send(&mut self, gate: GatewayIndex, text: String) {
        if self.outgoing.get(&gate).is_some_and(|outgoing| outgoing.try_send(text).is_err()) {
            self.outgoing.remove(&gate);
        }
    }

    async fn compact_journal(&mut self) -> std::io::Result<()> {
        if self.journal.is_dirty() {
            self.journal.sync().await?;
        }
        if self.journal.needs_rewrite(self.toolbox.action_count()) {
            let records = self.toolbox.records().collect();
            self.journal.rewrite(records).await?;
        }
        Ok(())
    }

    // --- shutdown ---

    /// Kills all processes that still run, then waits for queued messages to be written. No process outlives
    /// the runner.
    async fn shut_down(mut self) {
        self.running_processes.values().for_each(|running| running.signal(Signal::Kill));
        let connected = self.outgoing.len();
        self.outgoing.clear();
        self.running_processes.clear();
        let (sender, mut events) = self.process_events;
        drop(sender);
        let gone = async { while events.recv().await.is_some() {} };
        let _ = timeout(SHUTDOWN_TIMEOUT, gone).await;
        // A connection reports its end only after everything queued has been written.
        let closed = async {
            let mut left = connected;
            while left > 0
                && let Some((_, event)) = self.link_events.recv().await
            {
                left -= usize::from(matches!(
                    event,
                    connection::GatewayEvent::Closed | connection::GatewayEvent::Refused(_)
                ));
            }
        };
        let _ = timeout(SHUTDOWN_TIMEOUT, closed).await;
        self.link_tasks.iter().for_each(JoinHandle::abort);
    }
}
