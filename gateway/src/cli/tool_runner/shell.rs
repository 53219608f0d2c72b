//! Drives a [`Toolbox`]: connects the machine to the journal, the processes, the gateways, signals and time.
use super::journal::Journal;
use super::process::Running;
use super::users::RunAs;
use super::{link, process, remains};
use crate::cli::{Exit, Trouble, say, say_json};
use crate::clock::Clock;
use crate::signal::Leave;
use serde_json::{Map, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use turnway_bindings::toolbox::allowed::Allowed;
use turnway_bindings::toolbox::process::Signal;
use turnway_bindings::toolbox::record::Record;
use turnway_bindings::toolbox::tools::TOOLS;
use turnway_bindings::toolbox::words::Told;
use turnway_bindings::toolbox::{Gate, Input, Output, Toolbox};
use turnway_client::Options;
use turnway_core::id::{EventId, RunnerId};
use turnway_core::limits::TOOLBOX_GRACE;
use turnway_core::machine::Machine;

/// Capacity of the channels for events of processes and of connections; a full channel blocks its sender.
const EVENTS: usize = 64;
/// Time that connections have to send what is queued, and processes to end, after the runner has left.
const GOODBYE: Duration = Duration::from_secs(2);
/// Timeout of the event loop if the machine has no deadline.
const LONG: Duration = Duration::from_secs(3600);

/// Options of a tool runner.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) id: RunnerId,
    /// One entry for each node.
    pub(super) options: Vec<Options>,
    /// Users of programs, by program name; other programs run as the runner's own user.
    pub(super) run_as: BTreeMap<String, RunAs>,
    pub(super) wait: Duration,
    pub(super) json: bool,
}

/// A running tool runner.
pub(super) struct Shell {
    plan: Plan,
    toolbox: Toolbox,
    journal: Journal,
    clock: Clock,
    running: BTreeMap<EventId, Running>,
    processes: (mpsc::Sender<process::Event>, mpsc::Receiver<process::Event>),
    /// Senders of the open connections; a connection that is lost has none.
    outgoing: BTreeMap<Gate, mpsc::Sender<String>>,
    link: mpsc::Receiver<(Gate, link::Event)>,
    linked: Vec<JoinHandle<()>>,
    signals: Leave,
    /// Set once the runner was asked to leave: the time at which it leaves at the latest.
    leaves: Option<Instant>,
    ready: bool,
}

/// Whether the event loop continues.
enum Next {
    On,
    End(Result<Exit, Trouble>),
}

// === impl Shell ===

impl Shell {
    /// Creates a runner and starts its connections.
    pub(super) fn new(
        plan: Plan,
        allowed: Allowed,
        journal: Journal,
        records: Vec<Record>,
    ) -> Result<Self, Trouble> {
        let signals = Leave::listen().map_err(|error| Trouble::Unavailable(error.to_string()))?;
        let mut hello = Map::new();
        hello.insert("role".to_owned(), "tool_runner".into());
        hello.insert("runner_id".to_owned(), plan.id.as_str().into());
        hello.insert("tools".to_owned(), json!(TOOLS));
        let (events, link) = mpsc::channel(EVENTS);
        let keep = |(gate, options): (Gate, &Options)| {
            tokio::spawn(link::keep(gate, options.clone(), hello.clone(), events.clone()))
        };
        let linked = plan.options.iter().enumerate().map(keep).collect();
        let toolbox = Toolbox::new(allowed, records);
        let (clock, running, processes) = (Clock::start(), BTreeMap::new(), mpsc::channel(EVENTS));
        let (outgoing, leaves, ready) = (BTreeMap::new(), None, false);
        Ok(Self {
            plan,
            toolbox,
            journal,
            clock,
            running,
            processes,
            outgoing,
            link,
            linked,
            signals,
            leaves,
            ready,
        })
    }

    /// Runs until the process is told to leave or a gateway refuses this runner.
    pub(super) async fn run(mut self) -> Result<Exit, Trouble> {
        let ended = loop {
            match self.perform().await {
                Next::On => {}
                Next::End(ended) => break ended,
            }
            if let Next::End(ended) = self.step().await {
                break ended;
            }
        };
        self.goodbye().await;
        ended
    }

    async fn step(&mut self) -> Next {
        let due = self.toolbox.poll_timeout().map(|deadline| deadline.at - self.clock.mono());
        let due = Instant::now() + due.unwrap_or(LONG);
        let leaves = self.leaves;
        tokio::select! {
            () = self.signals.asked() => return self.leave(),
            () = sleep_until(leaves.unwrap_or(due)), if leaves.is_some() => {
                tracing::warn!("stopping although processes still run or results were not acknowledged");
                return Next::End(Ok(Exit::Failed));
            }
            () = sleep_until(due) => self.toolbox.handle_timeout(self.clock.now()),
            Some(event) = self.processes.1.recv() => self.process(event),
            event = self.link.recv() => match event {
                Some((gate, event)) => return self.link(gate, event),
                None => return Next::End(Err(Trouble::Bug("all connection tasks have ended".to_owned()))),
            }
        }
        Next::On
    }

    fn leave(&mut self) -> Next {
        if self.leaves.is_some() {
            tracing::info!("second signal: stopping at once");
            return Next::End(Ok(Exit::Fine));
        }
        tracing::info!(running = self.toolbox.running(), "stopping");
        self.leaves = Some(Instant::now() + self.plan.wait + TOOLBOX_GRACE + GOODBYE);
        self.tell(Input::Leave(self.plan.wait));
        Next::On
    }

    fn process(&mut self, event: process::Event) {
        match event {
            process::Event::Printed(action_id, stream, bytes) => {
                self.tell(Input::Printed { action_id, stream, bytes });
            }
            process::Event::Exited(action_id, how) => {
                tracing::info!(%action_id, ?how, "process exited");
                self.running.remove(&action_id);
                self.tell(Input::Exited { action_id, how });
            }
        }
    }

    fn link(&mut self, gate: Gate, event: link::Event) -> Next {
        match event {
            link::Event::Opened(outgoing) => {
                let url = self.plan.options.get(gate).map(|options| &*options.url);
                tracing::info!(runner = self.plan.id.as_str(), url, "connected to the gateway");
                self.outgoing.insert(gate, outgoing);
                self.tell(Input::Opened(gate));
                if !std::mem::replace(&mut self.ready, true) {
                    return self.tell_ready().err().map_or(Next::On, |trouble| Next::End(Err(trouble)));
                }
            }
            link::Event::Told(told) => {
                if let Told::Error { code, .. } = &told {
                    tracing::warn!(code, "the gateway rejected a message");
                }
                self.tell(Input::Heard(gate, told));
            }
            link::Event::Closed => {
                self.outgoing.remove(&gate);
                self.tell(Input::Closed(gate));
            }
            link::Event::Refused(why) => {
                return Next::End(Err(Trouble::Unavailable(format!(
                    "the gateway refuses this runner: {why}"
                ))));
            }
        }
        Next::On
    }

    fn tell_ready(&self) -> Result<(), Trouble> {
        let id = self.plan.id.as_str();
        match self.plan.json {
            true => say_json(&json!({ "ready": true, "runner_id": id })),
            false => say(&format!("turnway tool-runner ready runner={id}\n")),
        }
    }

    fn tell(&mut self, input: Input) {
        self.toolbox.handle_input(self.clock.now(), input);
    }

    // --- outputs of the machine ---

    /// Performs all outputs of the machine, including those that follow from its own inputs.
    async fn perform(&mut self) -> Next {
        let mut answers = VecDeque::new();
        loop {
            while let Some(output) = self.toolbox.poll_output() {
                match self.act(output, &mut answers).await {
                    Ok(true) => {}
                    Ok(false) => return Next::End(Ok(Exit::Fine)),
                    Err(error) => {
                        // An action that is not recorded must not be performed.
                        return Next::End(Err(Trouble::Unavailable(format!(
                            "the journal cannot be written: {error}"
                        ))));
                    }
                }
            }
            match answers.pop_front() {
                Some(input) => self.tell(input),
                None => break,
            }
        }
        match self.keep_short().await {
            Ok(()) => Next::On,
            Err(error) => {
                Next::End(Err(Trouble::Unavailable(format!("the journal cannot be written: {error}"))))
            }
        }
    }

    /// Performs one output; false if the machine is done.
    async fn act(&mut self, output: Output, answers: &mut VecDeque<Input>) -> std::io::Result<bool> {
        if let Output::Record(record) = output {
            self.journal.add(&record);
            return Ok(true);
        }
        if self.journal.is_dirty() {
            self.journal.sync().await?;
        }
        match output {
            Output::Record(_) => {}
            Output::Sweep(of) => {
                let ended = tokio::task::spawn_blocking(move || (of.len(), remains::end(&of))).await;
                let (actions, ended) = ended.unwrap_or_default();
                tracing::warn!(
                    actions,
                    processes = ended,
                    "killed processes left over from the previous run"
                );
            }
            Output::Spawn { action_id, command } => answers.push_back(self.spawn(action_id, &command)),
            Output::Signal { action_id, signal } => {
                if let Some(running) = self.running.get(&action_id) {
                    tracing::info!(%action_id, ?signal, "sending a signal to a process");
                    running.signal(signal);
                }
            }
            Output::Say(gate, text) => self.say(gate, text),
            Output::Show(gate, text) => {
                // `Show` is best effort: half of the queue stays reserved for `Say`.
                let there = self.outgoing.get(&gate);
                let room = there.filter(|outgoing| outgoing.capacity() > link::OUTGOING / 2);
                if let Some(outgoing) = room {
                    let _ = outgoing.try_send(text);
                }
            }
            Output::Left => return Ok(false),
        }
        Ok(true)
    }

    fn spawn(&mut self, action_id: EventId, command: &turnway_bindings::toolbox::allowed::Command) -> Input {
        let run_as = self.plan.run_as.get(&command.program);
        match Running::start(action_id, command, run_as, self.processes.0.clone()) {
            Ok(running) => {
                let pid = running.pid;
                tracing::info!(%action_id, program = command.program, pid, "process started");
                self.running.insert(action_id, running);
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
    fn say(&mut self, gate: Gate, text: String) {
        if self.outgoing.get(&gate).is_some_and(|outgoing| outgoing.try_send(text).is_err()) {
            self.outgoing.remove(&gate);
        }
    }

    async fn keep_short(&mut self) -> std::io::Result<()> {
        if self.journal.is_dirty() {
            self.journal.sync().await?;
        }
        if self.journal.is_long(self.toolbox.known()) {
            let records = self.toolbox.records().collect();
            self.journal.replace(records).await?;
        }
        Ok(())
    }

    // --- shutdown ---

    /// Kills all processes that still run, then waits for queued messages to be written. No process outlives
    /// the runner.
    async fn goodbye(mut self) {
        self.running.values().for_each(|running| running.signal(Signal::Kill));
        let connected = self.outgoing.len();
        self.outgoing.clear();
        self.running.clear();
        let (sender, mut events) = self.processes;
        drop(sender);
        let gone = async { while events.recv().await.is_some() {} };
        let _ = timeout(GOODBYE, gone).await;
        // A connection reports its end only after everything queued has been written.
        let closed = async {
            let mut left = connected;
            while left > 0
                && let Some((_, event)) = self.link.recv().await
            {
                left -= usize::from(matches!(event, link::Event::Closed | link::Event::Refused(_)));
            }
        };
        let _ = timeout(GOODBYE, closed).await;
        self.linked.iter().for_each(JoinHandle::abort);
    }
}
