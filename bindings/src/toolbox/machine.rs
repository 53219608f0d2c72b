//! The state machine of a tool executor: performs each requested action once, and sends its result until a gateway
//! has read it.
use super::allowed::Allowed;
use super::io::{Gate, Input, Output};
use super::process::{How, Process, Signal, Why};
use super::record::{Outcome, Record};
use super::words;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use turnway_core::id::{EventId, QualifiedAction, QualifiedSession};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::protocol::action::Stream;
use turnway_core::time::{Deadline, Mono, Now};
use turnway_core::timers::Timers;

/// An action that the executor has received.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) session: QualifiedSession,
    /// The program, if the action is a process.
    pub(super) program: Option<String>,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    Running(Box<Process>),
    Ended(Outcome),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    Stop(EventId),
    Kill(EventId),
    Flush(EventId, Stream),
    Leave,
}

/// Results sent to a gateway that has not confirmed reading them: those sent since the last ping, and those before
/// the pending one.
#[derive(Debug, Default)]
pub(super) struct Unread {
    pub(super) said: BTreeSet<EventId>,
    pub(super) asked: BTreeSet<EventId>,
}

/// The tool executor.
///
/// An action is recorded before its process starts, and its result before it is sent. So after any crash, the next
/// instance with the same journal knows the action, does not repeat it, and reports the action as interrupted if it
/// was running (LN-EV12).
#[derive(Debug)]
pub struct Toolbox {
    pub(super) allowed: Allowed,
    pub(super) known: BTreeMap<EventId, Known>,
    timers: Timers<Alarm>,
    /// The reason to stop each process when its time limit expires.
    due: BTreeMap<EventId, Why>,
    /// The connected gateways.
    pub(super) gates: BTreeMap<Gate, Unread>,
    /// The gateway that last requested or queried each action; that gateway owns the action's session.
    pub(super) whom: BTreeMap<EventId, Gate>,
    /// Actions with a result to send.
    pub(super) unsaid: BTreeSet<EventId>,
    /// Side effects of a tool, performed once the tool's result is recorded.
    effects: Vec<Output>,
    leaving: bool,
    left: bool,
    pub(super) outputs: VecDeque<Output>,
}

// === impl Toolbox ===

impl Toolbox {
    /// Creates the executor from its journal. Actions without a recorded end were interrupted: their leftover
    /// processes are killed, and a failure is recorded.
    pub fn new(allowed: Allowed, records: Vec<Record>) -> Self {
        let (known, timers, due, outputs) =
            <(BTreeMap<_, _>, Timers<_>, BTreeMap<_, _>, VecDeque<_>)>::default();
        let (gates, whom, unsaid) = <(BTreeMap<_, _>, BTreeMap<_, _>, BTreeSet<_>)>::default();
        let (leaving, left, effects) = (false, false, Vec::new());
        let mut this =
            Self { allowed, known, timers, due, gates, whom, unsaid, effects, leaving, left, outputs };
        let mut begun = BTreeMap::new();
        for record in records {
            match record {
                Record::Begun { id, session, program } => _ = begun.insert(id, (session, program)),
                Record::Ended { id, session, program, outcome } => {
                    begun.remove(&id);
                    this.known.insert(id, Known { session, program, state: State::Ended(outcome) });
                }
            }
        }
        if !begun.is_empty() {
            this.outputs.push_back(Output::Sweep(begun.keys().copied().collect()));
        }
        for (id, (session, program)) in begun {
            let outcome = Outcome::failed("abnormal_exit", "the runner stopped before the process ended");
            this.keep(id, session, Some(program), outcome);
        }
        this.known_within(limits::TOOLBOX_KNOWN_MAX);
        this
    }

    /// Returns the records that a compacted journal needs.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.known.iter().map(|(id, known)| {
            let (id, session, program) = (*id, known.session.clone(), known.program.clone());
            match &known.state {
                State::Running(process) => Record::Begun { id, session, program: process.program.clone() },
                State::Ended(outcome) => Record::Ended { id, session, program, outcome: outcome.clone() },
            }
        })
    }

    /// Returns the number of actions that the executor remembers.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// Returns the number of running processes.
    pub fn running(&self) -> usize {
        self.processes().count()
    }

    // --- helpers for the tools ---

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.known.values().filter_map(|known| match &known.state {
            State::Running(process) => Some(&**process),
            State::Ended(_) => None,
        })
    }

    /// Returns an action's qualified id, which is used in messages to gateways.
    pub(super) fn name(&self, id: EventId) -> QualifiedAction {
        match self.known.get(&id) {
            Some(known) => QualifiedAction::of(known.session.key(), id),
            None => id.into(),
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    pub(super) fn output(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(super) fn record(&mut self, record: Record) {
        self.outputs.push_back(Output::Record(record));
    }

    pub(super) fn effect(&mut self, output: Output) {
        self.effects.push(output);
    }

    /// Performs the side effects of a tool.
    pub(super) fn effects(&mut self) {
        self.outputs.extend(self.effects.drain(..));
    }

    pub(super) fn stop_at(&mut self, id: EventId, at: Mono, why: Why) {
        self.due.insert(id, why);
        self.timers.set(Alarm::Stop(id), at);
    }

    /// Asks a process to end, and kills it after a grace period. The first reason counts.
    pub(super) fn stop(&mut self, now: Now, id: EventId, why: Why) {
        if self.reason(id, why) {
            self.timers.clear(&Alarm::Stop(id));
            self.timers.set(Alarm::Kill(id), now.mono + limits::TOOLBOX_GRACE);
            self.effect(Output::Signal { action_id: id, signal: Signal::Term });
        }
    }

    /// Sets the reason for the end of a running process; returns whether it is the first reason.
    pub(super) fn reason(&mut self, id: EventId, why: Why) -> bool {
        let Some(Known { state: State::Running(process), .. }) = self.known.get_mut(&id) else {
            return false;
        };
        let first = process.why.is_none();
        process.why.get_or_insert(why);
        first
    }

    /// Records an ended action and queues its result.
    pub(super) fn keep(
        &mut self,
        id: EventId,
        session: QualifiedSession,
        program: Option<String>,
        outcome: Outcome,
    ) {
        let (kept, of) = (outcome.clone(), session.clone());
        self.record(Record::Ended { id, session: of, program: program.clone(), outcome: kept });
        self.know(id, Known { session, program, state: State::Ended(outcome) });
    }

    /// Queues the result of an action without recording it, because a later instance may repeat the action safely.
    pub(super) fn know(&mut self, id: EventId, known: Known) {
        self.known.insert(id, known);
        self.unsaid.insert(id);
    }

    // --- process events ---

    fn spawned(&mut self, now: Now, id: EventId, pid: Option<u64>) {
        let Some(Known { state: State::Running(process), .. }) = self.known.get_mut(&id) else { return };
        process.pid = pid;
        if let Some(gate) = self.asker(id) {
            self.outputs.push_back(Output::Say(gate, words::invoked(now.store, &self.name(id), pid)));
        }
    }

    fn printed(&mut self, now: Now, id: EventId, stream: Stream, bytes: &[u8]) {
        let Some(Known { state: State::Running(process), .. }) = self.known.get_mut(&id) else { return };
        let mut told = Vec::new();
        let throttled = process.print(now.mono, stream, bytes, &mut told);
        self.timers.put(Alarm::Flush(id, stream), process.due(stream));
        self.show(now, id, stream, (told, throttled));
    }

    fn flush(&mut self, now: Now, id: EventId, stream: Stream, last: bool) {
        let Some(Known { state: State::Running(process), .. }) = self.known.get_mut(&id) else { return };
        let mut told = Vec::new();
        let throttled = process.flush(now.mono, stream, last, &mut told);
        self.timers.put(Alarm::Flush(id, stream), process.due(stream).filter(|_| !last));
        self.show(now, id, stream, (told, throttled));
    }

    fn show(&mut self, now: Now, id: EventId, stream: Stream, told: (Vec<super::spool::Piece>, bool)) {
        let (told, throttled) = told;
        let Some(gate) = self.asker(id) else { return };
        let name = self.name(id);
        for piece in told {
            self.outputs.push_back(Output::Show(gate, words::chunk(now.store, &name, stream.name(), &piece)));
        }
        if throttled {
            self.outputs.push_back(Output::Say(gate, words::throttled(now.store, &name, stream.name())));
        }
    }

    fn over(&mut self, now: Now, id: EventId, how: Result<How, String>) {
        self.flush(now, id, Stream::Stdout, true);
        self.flush(now, id, Stream::Stderr, true);
        let Some(Known { state: State::Running(process), .. }) = self.known.get(&id) else { return };
        let outcome = match how {
            Ok(how) => process.outcome(now.mono, how),
            Err(why) => Outcome::failed("spawn_failed", &why),
        };
        let (session, program) = (process.session.clone(), process.program.clone());
        self.due.remove(&id);
        self.timers.clear(&Alarm::Stop(id));
        self.timers.clear(&Alarm::Kill(id));
        self.keep(id, session, Some(program), outcome);
        self.say(now);
    }

    fn leave(&mut self, now: Now, wait: Duration) {
        self.leaving = true;
        self.timers.set_earlier(Alarm::Leave, now.mono + wait);
    }

    /// Reports once, as the last output, that the executor has finished.
    fn check_left(&mut self) {
        let read = self.gates.values().all(|unread| unread.said.is_empty() && unread.asked.is_empty());
        // Results for gateways that are not connected will be sent by the next instance.
        let told = read && !self.unsaid.iter().any(|id| self.may_hear(*id));
        if self.leaving && !self.left && told && self.running() == 0 {
            self.left = true;
            self.timers.clear(&Alarm::Leave);
            self.outputs.push_back(Output::Left);
        }
    }
}

impl Machine for Toolbox {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Opened(gate) => {
                self.closed(gate);
                self.gates.insert(gate, Unread::default());
                self.say(now);
            }
            Input::Closed(gate) => self.closed(gate),
            Input::Heard(gate, told) => self.heard(now, gate, told),
            Input::Spawned { action_id, pid } => self.spawned(now, action_id, pid),
            Input::Failed { action_id, why } => self.over(now, action_id, Err(why)),
            Input::Printed { action_id, stream, bytes } => self.printed(now, action_id, stream, &bytes),
            Input::Exited { action_id, how } => self.over(now, action_id, Ok(how)),
            Input::Leave(wait) => self.leave(now, wait),
        }
        self.check_left();
    }

    fn handle_timeout(&mut self, now: Now) {
        while let Some(alarm) = self.timers.pop_due(now.mono) {
            match alarm {
                Alarm::Stop(id) => {
                    let why = self.due.remove(&id).unwrap_or(Why::Deadline);
                    self.stop(now, id, why);
                }
                Alarm::Kill(id) => self.effect(Output::Signal { action_id: id, signal: Signal::Kill }),
                Alarm::Flush(id, stream) => self.flush(now, id, stream, false),
                Alarm::Leave => {
                    let running =
                        self.known.iter().filter(|(_, known)| matches!(known.state, State::Running(_)));
                    let running: Vec<EventId> = running.map(|(id, _)| *id).collect();
                    running.into_iter().for_each(|id| self.stop(now, id, Why::Leaving));
                }
            }
            self.effects();
        }
        self.check_left();
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        self.timers.next("tool runner's own")
    }
}
