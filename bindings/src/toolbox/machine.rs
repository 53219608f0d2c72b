//! A tool runner, as a machine: what it is asked to do is done once, and what came of it is said until somebody has read it.
//!
//! An action is recorded before its process is started, and its result before that is told. So whatever ends this runner,
//! the next one with the same journal knows of it, does it no second time, and says of what was under way that it was
//! interrupted (LN-EV12).
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

/// What is known of an action.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) session: QualifiedSession,
    /// Of a process.
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

/// Results that were said to a node, and of which it is asked whether it has read them.
#[derive(Debug, Default)]
pub(super) struct Unread {
    pub(super) said: BTreeSet<EventId>,
    pub(super) asked: BTreeSet<EventId>,
}

/// A tool runner.
#[derive(Debug)]
pub struct Toolbox {
    pub(super) allowed: Allowed,
    pub(super) known: BTreeMap<EventId, Known>,
    timers: Timers<Alarm>,
    /// Why a process is stopped where its time is up.
    due: BTreeMap<EventId, Why>,
    /// The nodes that it is connected to.
    pub(super) gates: BTreeMap<Gate, Unread>,
    /// Who has asked for an action, or of it, last: that owns its session.
    pub(super) whom: BTreeMap<EventId, Gate>,
    /// Results that have to be said.
    pub(super) unsaid: BTreeSet<EventId>,
    /// What a tool does besides answering, done once its answer is recorded.
    effects: Vec<Output>,
    leaving: bool,
    left: bool,
    pub(super) outputs: VecDeque<Output>,
}

// === impl Toolbox ===

impl Toolbox {
    /// A runner that may run this, with what its journal has. What was under way is over.
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
            let outcome = Outcome::failed("abnormal_exit", "its runner ended before it did");
            this.keep(id, session, Some(program), outcome);
        }
        this.known_within(limits::TOOLBOX_KNOWN_MAX);
        this
    }

    /// Everything that a journal has to have: a shorter way of saying what it says.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.known.iter().map(|(id, known)| {
            let (id, session, program) = (*id, known.session.clone(), known.program.clone());
            match &known.state {
                State::Running(process) => Record::Begun { id, session, program: process.program.clone() },
                State::Ended(outcome) => Record::Ended { id, session, program, outcome: outcome.clone() },
            }
        })
    }

    /// How many actions that is about.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// How many processes run.
    pub fn running(&self) -> usize {
        self.processes().count()
    }

    // --- what the tools lean on ---

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.known.values().filter_map(|known| match &known.state {
            State::Running(process) => Some(&**process),
            State::Ended(_) => None,
        })
    }

    /// Returns the name by which gateways are told of an action: the qualified one.
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

    /// What a tool has done, besides answering.
    pub(super) fn effects(&mut self) {
        self.outputs.extend(self.effects.drain(..));
    }

    pub(super) fn stop_at(&mut self, id: EventId, at: Mono, why: Why) {
        self.due.insert(id, why);
        self.timers.set(Alarm::Stop(id), at);
    }

    /// A process is asked to end, and ends a while later. It has the first reason that it was given.
    pub(super) fn stop(&mut self, now: Now, id: EventId, why: Why) {
        if self.reason(id, why) {
            self.timers.clear(&Alarm::Stop(id));
            self.timers.set(Alarm::Kill(id), now.mono + limits::TOOLBOX_GRACE);
            self.effect(Output::Signal { action_id: id, signal: Signal::Term });
        }
    }

    /// Whether it runs and had no reason to end.
    pub(super) fn reason(&mut self, id: EventId, why: Why) -> bool {
        let Some(Known { state: State::Running(process), .. }) = self.known.get_mut(&id) else {
            return false;
        };
        let first = process.why.is_none();
        process.why.get_or_insert(why);
        first
    }

    /// An action is over: it is recorded, and is going to be told.
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

    /// The same of what may be done again by who comes after this runner.
    pub(super) fn know(&mut self, id: EventId, known: Known) {
        self.known.insert(id, known);
        self.unsaid.insert(id);
    }

    // --- what processes do ---

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

    /// Said once, and last.
    fn check_left(&mut self) {
        let read = self.gates.values().all(|unread| unread.said.is_empty() && unread.asked.is_empty());
        // What somebody is to hear who is not there the next runner knows.
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
