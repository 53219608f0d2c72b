//! The state machine of a tool executor: performs each requested action once, and sends its result until a gateway
//! has read it.
use crate::io::{GatewayIndex, Input, Output};
use crate::journal::{JournalRecord, ToolOutcome};
use crate::messages;
use crate::output_buffer::OutputPiece;
use crate::process::{ExitStatus, Process, ProcessStopCause, Signal};
use crate::programs::AllowedPrograms;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{EventId, QualifiedAction, QualifiedSession};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::action::OutputStream;
use turnway_core::time::{Deadline, Mono, Now};
use turnway_core::timers::Timers;

/// An action that the executor has received.
#[derive(Debug)]
pub(super) struct KnownAction {
    pub(super) session: QualifiedSession,
    /// The program, if the action is a process.
    pub(super) program: Option<String>,
    pub(super) state: ActionState,
}

#[derive(Debug)]
pub(super) enum ActionState {
    Running(Box<Process>),
    Ended(ToolOutcome),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ExecutorTimer {
    Stop(EventId),
    Kill(EventId),
    Flush(EventId, OutputStream),
    Leave,
}

/// Results sent to a gateway that has not confirmed reading them: those sent since the last ping, and those before
/// the pending one.
#[derive(Debug, Default)]
pub(super) struct UnreadResults {
    pub(super) sent: BTreeSet<EventId>,
    pub(super) awaiting_pong: BTreeSet<EventId>,
}

/// The tool executor.
///
/// An action is recorded before its process starts, and its result before it is sent. So after any crash, the next
/// instance with the same journal knows the action, does not repeat it, and reports the action as interrupted if it
/// was running (LN-EV12).
#[derive(Debug)]
pub struct ToolExecutor {
    pub(super) programs: AllowedPrograms,
    pub(super) actions: BTreeMap<EventId, KnownAction>,
    timers: Timers<ExecutorTimer>,
    /// The reason to stop each process when its time limit expires.
    stop_causes: BTreeMap<EventId, ProcessStopCause>,
    /// The connected gateways.
    pub(super) gateways: BTreeMap<GatewayIndex, UnreadResults>,
    /// The gateway that last requested or queried each action; that gateway owns the action's session.
    pub(super) owner_gateways: BTreeMap<EventId, GatewayIndex>,
    /// Actions with a result to send.
    pub(super) unsent_results: BTreeSet<EventId>,
    /// Side effects of a tool, performed once the tool's result is recorded.
    effects: Vec<Output>,
    shutting_down: bool,
    finished: bool,
    pub(super) outputs: VecDeque<Output>,
}

// === impl ToolExecutor ===

impl ToolExecutor {
    /// Creates the executor from its journal. Actions without a recorded end were interrupted: their leftover
    /// processes are killed, and a failure is recorded.
    pub fn new(allowed: AllowedPrograms, records: Vec<JournalRecord>) -> Self {
        let (known, timers, due, outputs) = <(BTreeMap<_, _>, Timers<_>, BTreeMap<_, _>, VecDeque<_>)>::default();
        let (gates, whom, unsaid) = <(BTreeMap<_, _>, BTreeMap<_, _>, BTreeSet<_>)>::default();
        let leaving = false;
        let left = false;
        let effects = Vec::new();
        let mut this = Self {
            programs: allowed,
            actions: known,
            timers,
            stop_causes: due,
            gateways: gates,
            owner_gateways: whom,
            unsent_results: unsaid,
            effects,
            shutting_down: leaving,
            finished: left,
            outputs,
        };
        let mut begun = BTreeMap::new();
        for record in records {
            match record {
                JournalRecord::Begun { id, session, program } => _ = begun.insert(id, (session, program)),
                JournalRecord::Ended { id, session, program, outcome } => {
                    begun.remove(&id);
                    this.actions.insert(id, KnownAction { session, program, state: ActionState::Ended(outcome) });
                }
            }
        }
        if !begun.is_empty() {
            this.outputs.push_back(Output::KillLeftovers(begun.keys().copied().collect()));
        }
        for (id, (session, program)) in begun {
            let outcome = ToolOutcome::failure("abnormal_exit", "the runner stopped before the process ended");
            this.record_outcome(id, session, Some(program), outcome);
        }
        this.drop_excess(limits::TOOL_EXECUTOR_ACTIONS_KEPT_MAX);
        this
    }

    /// Returns the records that a compacted journal needs.
    pub fn records(&self) -> impl Iterator<Item = JournalRecord> {
        self.actions.iter().map(|(id, known)| {
            let id = *id;
            let session = known.session.clone();
            let program = known.program.clone();
            match &known.state {
                ActionState::Running(process) => JournalRecord::Begun { id, session, program: process.program.clone() },
                ActionState::Ended(outcome) => JournalRecord::Ended { id, session, program, outcome: outcome.clone() },
            }
        })
    }

    /// Returns the number of actions that the executor remembers.
    pub fn action_count(&self) -> usize {
        self.actions.len()
    }

    /// Returns the number of running processes.
    pub fn process_count(&self) -> usize {
        self.processes().count()
    }

    // --- helpers for the tools ---

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.actions.values().filter_map(|known| match &known.state {
            ActionState::Running(process) => Some(&**process),
            ActionState::Ended(_) => None,
        })
    }

    /// Returns an action's qualified id, which is used in messages to gateways.
    pub(super) fn qualified_id(&self, id: EventId) -> QualifiedAction {
        match self.actions.get(&id) {
            Some(known) => QualifiedAction::of(known.session.key(), id),
            None => id.into(),
        }
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    pub(super) fn push_output(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(super) fn push_record(&mut self, record: JournalRecord) {
        self.outputs.push_back(Output::Record(record));
    }

    pub(super) fn push_effect(&mut self, output: Output) {
        self.effects.push(output);
    }

    /// Performs the side effects of a tool.
    pub(super) fn flush_effects(&mut self) {
        self.outputs.extend(self.effects.drain(..));
    }

    pub(super) fn stop_at(&mut self, id: EventId, at: Mono, why: ProcessStopCause) {
        self.stop_causes.insert(id, why);
        self.timers.set(ExecutorTimer::Stop(id), at);
    }

    /// Asks a process to end, and kills it after a grace period. The first reason counts.
    pub(super) fn stop(&mut self, now: Now, id: EventId, why: ProcessStopCause) {
        if self.set_stop_cause(id, why) {
            self.timers.clear(&ExecutorTimer::Stop(id));
            self.timers.set(ExecutorTimer::Kill(id), now.mono + limits::TOOL_EXECUTOR_KILL_GRACE);
            self.push_effect(Output::Signal { action_id: id, signal: Signal::Term });
        }
    }

    /// Sets the reason for the end of a running process; returns whether it is the first reason.
    pub(super) fn set_stop_cause(&mut self, id: EventId, why: ProcessStopCause) -> bool {
        let Some(KnownAction { state: ActionState::Running(process), .. }) = self.actions.get_mut(&id) else {
            return false;
        };
        let first = process.stop_cause.is_none();
        process.stop_cause.get_or_insert(why);
        first
    }

    /// Records an ended action and queues its result.
    pub(super) fn record_outcome(
        &mut self,
        id: EventId,
        session: QualifiedSession,
        program: Option<String>,
        outcome: ToolOutcome,
    ) {
        let kept = outcome.clone();
        let of = session.clone();
        self.push_record(JournalRecord::Ended { id, session: of, program: program.clone(), outcome: kept });
        self.queue_result(id, KnownAction { session, program, state: ActionState::Ended(outcome) });
    }

    /// Queues the result of an action without recording it, because a later instance may repeat the action safely.
    pub(super) fn queue_result(&mut self, id: EventId, known: KnownAction) {
        self.actions.insert(id, known);
        self.unsent_results.insert(id);
    }

    // --- process events ---

    fn handle_spawned(&mut self, now: Now, id: EventId, pid: Option<u64>) {
        let Some(KnownAction { state: ActionState::Running(process), .. }) = self.actions.get_mut(&id) else {
            return;
        };
        process.pid = pid;
        if let Some(gate) = self.owner_gateway(id) {
            self.outputs.push_back(Output::Send(gate, messages::invoked(now.store, &self.qualified_id(id), pid)));
        }
    }

    fn handle_output(&mut self, now: Now, id: EventId, stream: OutputStream, bytes: &[u8]) {
        let Some(KnownAction { state: ActionState::Running(process), .. }) = self.actions.get_mut(&id) else {
            return;
        };
        let mut pieces = Vec::new();
        let throttled = process.print(now.mono, stream, bytes, &mut pieces);
        self.timers.set_or_clear(ExecutorTimer::Flush(id, stream), process.flush_deadline(stream));
        self.send_output(now, id, stream, (pieces, throttled));
    }

    fn flush(&mut self, now: Now, id: EventId, stream: OutputStream, last: bool) {
        let Some(KnownAction { state: ActionState::Running(process), .. }) = self.actions.get_mut(&id) else {
            return;
        };
        let mut pieces = Vec::new();
        let throttled = process.flush(now.mono, stream, last, &mut pieces);
        self.timers.set_or_clear(ExecutorTimer::Flush(id, stream), process.flush_deadline(stream).filter(|_| !last));
        self.send_output(now, id, stream, (pieces, throttled));
    }

    fn send_output(&mut self, now: Now, id: EventId, stream: OutputStream, pieces: (Vec<OutputPiece>, bool)) {
        let (pieces, throttled) = pieces;
        let Some(gate) = self.owner_gateway(id) else { return };
        let name = self.qualified_id(id);
        for piece in pieces {
            self.outputs.push_back(Output::SendIfRoom(gate, messages::chunk(now.store, &name, stream.name(), &piece)));
        }
        if throttled {
            self.outputs.push_back(Output::Send(gate, messages::throttled(now.store, &name, stream.name())));
        }
    }

    fn handle_exit(&mut self, now: Now, id: EventId, how: Result<ExitStatus, String>) {
        self.flush(now, id, OutputStream::Stdout, true);
        self.flush(now, id, OutputStream::Stderr, true);
        let Some(KnownAction { state: ActionState::Running(process), .. }) = self.actions.get(&id) else {
            return;
        };
        let outcome = match how {
            Ok(how) => process.outcome(now.mono, how),
            Err(why) => ToolOutcome::failure("spawn_failed", &why),
        };
        let session = process.session.clone();
        let program = process.program.clone();
        self.stop_causes.remove(&id);
        self.timers.clear(&ExecutorTimer::Stop(id));
        self.timers.clear(&ExecutorTimer::Kill(id));
        self.record_outcome(id, session, Some(program), outcome);
        self.send_results(now);
    }

    fn shut_down(&mut self, now: Now, wait: Duration) {
        self.shutting_down = true;
        self.timers.set_earlier(ExecutorTimer::Leave, now.mono + wait);
    }

    /// Reports once, as the last output, that the executor has finished.
    fn check_finished(&mut self) {
        let read = self.gateways.values().all(|unread| unread.sent.is_empty() && unread.awaiting_pong.is_empty());
        // Results for gateways that are not connected will be sent by the next instance.
        let is_delivered = read && !self.unsent_results.iter().any(|id| self.has_receiver(*id));
        if self.shutting_down && !self.finished && is_delivered && self.process_count() == 0 {
            self.finished = true;
            self.timers.clear(&ExecutorTimer::Leave);
            self.outputs.push_back(Output::Finished);
        }
    }
}

impl Machine for ToolExecutor {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Opened(gate) => {
                self.gateway_closed(gate);
                self.gateways.insert(gate, UnreadResults::default());
                self.send_results(now);
            }
            Input::Closed(gate) => self.gateway_closed(gate),
            Input::Received(gate, message) => self.handle_message(now, gate, message),
            Input::Spawned { action_id, pid } => self.handle_spawned(now, action_id, pid),
            Input::Failed { action_id, why } => self.handle_exit(now, action_id, Err(why)),
            Input::Printed { action_id, stream, bytes } => self.handle_output(now, action_id, stream, &bytes),
            Input::Exited { action_id, how } => self.handle_exit(now, action_id, Ok(how)),
            Input::Shutdown(wait) => self.shut_down(now, wait),
        }
        self.check_finished();
    }

    fn handle_timeout(&mut self, now: Now) {
        while let Some(alarm) = self.timers.pop_due(now.mono) {
            match alarm {
                ExecutorTimer::Stop(id) => {
                    let why = self.stop_causes.remove(&id).unwrap_or(ProcessStopCause::Deadline);
                    self.stop(now, id, why);
                }
                ExecutorTimer::Kill(id) => self.push_effect(Output::Signal { action_id: id, signal: Signal::Kill }),
                ExecutorTimer::Flush(id, stream) => self.flush(now, id, stream, false),
                ExecutorTimer::Leave => {
                    let running =
                        self.actions.iter().filter(|(_, known)| matches!(known.state, ActionState::Running(_)));
                    let running: Vec<EventId> = running.map(|(id, _)| *id).collect();
                    running.into_iter().for_each(|id| self.stop(now, id, ProcessStopCause::Leaving));
                }
            }
            self.flush_effects();
        }
        self.check_finished();
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.timers.next_deadline("tool runner's own")
    }
}
