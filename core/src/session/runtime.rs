//! `SessionRuntime`: decides, records, and only then speaks.
use crate::id::{AgentId, Epoch, EventId, Place, RunId, RunnerId, Seq, SessionKey, Token};
use crate::machine::Machine;
use crate::mutant::{Mutant, planted};
use crate::protocol::action::ToolReport;
use crate::protocol::agent::{AgentEvent, Directory, Order};
use crate::protocol::entry::{Entry, Fact};
use crate::protocol::input::{self, Control};
use crate::protocol::member::Receipt;
use crate::rng::Rng;
use crate::session::acting::Acting;
use crate::session::attempt::Attempt;
use crate::session::handing::Handing;
use crate::session::membership::Changes;
use crate::session::outbox::{Ended, Outbox, Output, Record};
use crate::session::permit::Permit;
use crate::session::state::{Phase, State};
use crate::time::{Deadline, Mono, Now};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What may happen to a session.
#[derive(Clone, Debug)]
pub enum Input {
    /// The next input in inbox order.
    Take {
        /// Where it lies.
        place: Place,
        /// What.
        input: Arc<input::Input>,
    },
    /// The next entry of the control lane, in its order.
    Control {
        /// Where it lies.
        place: Place,
        /// What.
        control: Arc<Control>,
    },
    /// The content of an input, read after [`Output::ReadContent`].
    Content {
        /// Where it lies.
        place: Place,
        /// The whole input.
        input: Arc<input::Input>,
    },
    /// The session may begin a turn, as it wanted to ([`Permit::Wanted`]).
    Permitted,
    /// The inbox was read up to its end after [`Output::CatchUp`].
    CaughtUp,
    /// An agent reports.
    Agent {
        /// Which run.
        run_id: RunId,
        /// Which attempt.
        attempt: u32,
        /// The ownership it was ordered under: a store that forgot lets attempts be numbered again.
        epoch: Epoch,
        /// What.
        event: AgentEvent,
    },
    /// The log is durable up to here.
    Durable(Seq),
    /// An errand came back.
    Receipt {
        /// Whose.
        tx_id: EventId,
        /// What became of it.
        receipt: Receipt,
    },
    /// Something is heard of an action.
    Tool {
        /// Which.
        action_id: EventId,
        /// What.
        report: ToolReport,
    },
    /// Begin nothing new: the node leaves.
    Hold,
    /// The same, and what another owner can go on with is left to it.
    HandOver,
    /// Record what there is of the running attempt; it goes on elsewhere, uncounted.
    Suspend,
}

/// What a session counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reports of agents that came too late or belonged to nothing: dropped, never shown (RX-8).
    pub late_reports: u64,
    /// Attempts after the first.
    pub restarts: u64,
    /// Attempts that went on under another owner.
    pub resumed: u64,
}

/// An input that was handed over.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) place: Place,
    /// The input; without its content where that was left to the store.
    pub(super) input: Arc<input::Input>,
    /// Bytes of its content.
    pub(super) bytes: u64,
    /// Its content is in memory.
    pub(super) is_here: bool,
    /// When: for metrics.
    pub(super) at: Mono,
    /// Some of its answer was shown: for metrics.
    heard: bool,
}

impl Taken {
    pub(super) fn new(now: Now, place: Place, input: Arc<input::Input>) -> Self {
        let bytes = input.weight() as u64;
        Self { place, input, bytes, is_here: true, at: now.mono, heard: false }
    }
}

/// The orchestrator of one session: one root run at a time, in inbox order (I6).
///
/// All of its state that outlives it is [`State`]. The rest is what it was handed (open inputs and
/// control entries, which lie in the store) and the live text of the running attempt.
#[derive(Debug)]
pub struct SessionRuntime {
    pub(super) key: SessionKey,
    pub(super) token: Token,
    pub(super) directory: Arc<Directory>,
    pub(super) rng: Rng,
    pub(super) state: State,
    /// Inputs not yet ended, by the turn they open.
    pub(super) inputs: BTreeMap<RunId, Taken>,
    /// Control entries not yet answered, in order; only a closing session leaves any waiting.
    pub(super) controls: VecDeque<(Place, Arc<Control>)>,
    /// The close that is under way.
    pub(super) close: Option<(Place, Arc<Control>)>,
    /// Cancels of turns that are not known (yet).
    pub(super) early_cancels: BTreeMap<RunId, (Place, Arc<Control>)>,
    pub(super) changes: Changes,
    pub(super) handing: Handing,
    pub(super) acting: Acting,
    pub(super) attempt: Attempt,
    pub(super) held: bool,
    pub(super) permit: Permit,
    /// Place of an input whose content is being read.
    pub(super) reading: Option<Place>,
    pub(super) outbox: Outbox,
    pub(super) counts: Counts,
    /// An attempt that was ordered under an earlier ownership of this very owner.
    kept: Option<(RunId, u32, Epoch)>,
}

impl SessionRuntime {
    /// The owner of a session whose durable log makes `state`.
    pub fn new(key: SessionKey, token: Token, directory: Arc<Directory>, rng: Rng, state: State) -> Self {
        let outbox = Outbox::new(state.tail.seq);
        Self {
            key,
            token,
            directory,
            rng,
            state,
            inputs: BTreeMap::new(),
            controls: VecDeque::new(),
            close: None,
            early_cancels: BTreeMap::new(),
            changes: Changes::default(),
            handing: Handing::default(),
            acting: Acting::default(),
            attempt: Attempt::None,
            held: false,
            permit: Permit::Unbounded,
            reading: None,
            outbox,
            counts: Counts::default(),
            kept: None,
        }
    }

    /// What its facts make of it, recorded but perhaps not yet durable ones included.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What it has counted since it was made; taken, so that nothing is counted twice.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// When the oldest turn it was handed was handed to it: for metrics.
    pub fn oldest(&self) -> Option<Mono> {
        self.inputs.values().map(|taken| taken.at).min()
    }

    /// The first time that something of a turn's answer is shown: when the turn was handed over. For metrics.
    pub fn first_shown(&mut self, run_id: &RunId) -> Option<Mono> {
        let taken = self.inputs.get_mut(run_id)?;
        (!std::mem::replace(&mut taken.heard, true)).then_some(taken.at)
    }

    /// This node is not its owner any more: what is open with an agent is to be closed.
    pub fn give_up(&mut self) -> Vec<Order> {
        let mut orders = self.outbox.unsent_drops();
        match std::mem::take(&mut self.attempt) {
            Attempt::Live(live) if live.ordered => {
                orders.push(Order::Drop { run_id: live.run_id, attempt: live.attempt });
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => {}
        }
        orders
    }

    /// It is owned anew by the same node, and nobody owned it between: everything goes on.
    pub fn go_on(&mut self, token: Token) {
        match &self.attempt {
            Attempt::Live(live) if live.ordered => {
                let epoch = self.ordered_under(&live.run_id, live.attempt);
                self.kept = Some((live.run_id.clone(), live.attempt, epoch));
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => self.outbox.rename(token.epoch),
        }
        self.token = token;
    }

    /// The ownership that ordered an attempt, if it is the one under way.
    pub(super) fn ordered_under(&self, run_id: &RunId, attempt: u32) -> Epoch {
        let kept = self.kept.as_ref().filter(|(run, number, _)| run == run_id && *number == attempt);
        kept.map_or(self.token.epoch, |(_, _, epoch)| *epoch)
    }

    /// Nothing begun, nothing waiting, nothing to say.
    pub fn is_quiet(&self) -> bool {
        let resting = self.held || self.inputs.is_empty();
        let idle = matches!(self.attempt, Attempt::None) && self.controls.is_empty() && self.close.is_none();
        let settled =
            self.early_cancels.is_empty() && self.state.changes.is_empty() && self.handing.is_quiet();
        // Somebody has to be here when nobody decides.
        idle && resting && settled && !self.state.is_awaited() && self.outbox.is_empty()
    }

    /// Something that it asks for waits for a fact to be durable.
    pub fn is_gated(&self) -> bool {
        self.outbox.is_gated()
    }

    /// There are turns that have not ended.
    pub fn has_work(&self) -> bool {
        !self.inputs.is_empty() || self.state.has_open_turn()
    }

    /// A person is to decide on a handover, or an action is under way, and nothing else is left to do here: another owner
    /// can wait as well.
    pub fn only_waits(&self) -> bool {
        let idle = matches!(self.attempt, Attempt::None) && self.controls.is_empty() && self.close.is_none();
        let settled =
            self.early_cancels.is_empty() && self.state.changes.is_empty() && self.handing.is_quiet();
        self.held && idle && settled && self.state.is_awaited() && self.outbox.is_empty()
    }

    /// A name for what is about to be recorded.
    pub(super) fn event_id(&mut self, now: Now) -> EventId {
        EventId::new(now.store, self.rng.next_u128())
    }

    /// The one way to change anything: record a fact, apply it, write it down.
    pub(super) fn record(&mut self, now: Now, fact: Fact, about: About<'_>) -> Seq {
        // The first fact of a transaction gives it its name.
        let names = about.tx.filter(|_| fact.begins_change());
        let id = names.unwrap_or_else(|| self.event_id(now));
        let run = about.run.and_then(|run| self.state.runs.get(run));
        let cause = about.cause.or(run.map(|run| run.cause)).or(about.tx.filter(|_| names.is_none()));
        let traceparent = about.run.and_then(|run| self.inputs.get(run));
        let traceparent = traceparent.and_then(|taken| taken.input.traceparent.as_deref()).map(Arc::from);
        let source = match (about.source, run) {
            (Source::Agent, Some(run)) => run.agent.as_ref().map(|agent| format!("agent:{agent}")),
            (Source::User, _) => about.user.map(|user| format!("user:{user}")),
            (Source::Runner, _) => about.runner.map(|runner| format!("runner:{runner}")),
            (Source::Agent | Source::Gateway, _) => None,
        };
        let entry = Arc::new(Entry {
            id,
            time: if planted(Mutant::FactTimeFallsBack) { now.store } else { now.store.max(self.state.time) },
            source: source.as_deref().unwrap_or("turnway").into(),
            correlation_id: match about.run {
                Some(run) => run.as_str().into(),
                None => about.tx.unwrap_or(id).to_string().into(),
            },
            causation_id: cause,
            traceparent,
            run_id: about.run.cloned(),
            fact,
        });
        self.state.apply(self.token.epoch, &entry);
        let (ends, answers, closed) = (about.ends, about.answers, about.closed);
        let record = Record { entry: Arc::clone(&entry), ends, answers, closed };
        self.outbox.now(Output::Record(record));
        self.tell_agent(about.asker, &entry);
        self.state.tail.seq
    }
}

/// Who caused a fact.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Source {
    User,
    Agent,
    Runner,
    #[default]
    Gateway,
}

/// What belongs to a fact besides itself.
#[derive(Clone, Debug, Default)]
pub(super) struct About<'a> {
    pub(super) run: Option<&'a RunId>,
    /// The change of members it belongs to.
    pub(super) tx: Option<EventId>,
    pub(super) source: Source,
    pub(super) user: Option<&'a crate::id::UserId>,
    pub(super) runner: Option<&'a RunnerId>,
    /// Who has asked for what it is about.
    pub(super) asker: Option<&'a AgentId>,
    /// The fact it follows from, where that is not its run's.
    pub(super) cause: Option<EventId>,
    pub(super) ends: Option<Ended>,
    pub(super) answers: Option<Place>,
    pub(super) closed: Option<bool>,
}

impl<'a> About<'a> {
    pub(super) fn run(run: &'a RunId) -> Self {
        Self { run: Some(run), ..Self::default() }
    }
    pub(super) fn agent(run: &'a RunId) -> Self {
        Self { run: Some(run), source: Source::Agent, ..Self::default() }
    }
    pub(super) fn tx(tx: EventId) -> Self {
        Self { tx: Some(tx), ..Self::default() }
    }
}

impl Machine for SessionRuntime {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        match input {
            Input::Take { place, input } => {
                let run_id = input.run_id.clone();
                self.take(now, place, input);
                self.settle(now);
                return self.leave_if_waiting(&run_id);
            }
            Input::Control { place, control } => self.control(now, place, control),
            Input::CaughtUp => self.caught_up(),
            Input::Content { place, input } => self.content_read(place, input),
            Input::Permitted => self.permitted(),
            // The number of an attempt does not say whose it is: where the store forgot the fact that counted
            // one, the next bears the same.
            Input::Agent { ref run_id, attempt, epoch, .. }
                if epoch != self.ordered_under(run_id, attempt)
                    && !planted(Mutant::ReportsUnfenced)
                    && !planted(Mutant::AttemptsMixed) =>
            {
                self.counts.late_reports += 1;
            }
            Input::Agent { run_id, attempt, event, .. } => self.agent(now, &run_id, attempt, event),
            Input::Durable(seq) => {
                self.outbox.durable(seq);
                self.ordered(now, seq);
                self.credit(seq);
            }
            Input::Receipt { tx_id, receipt } => self.receipt(now, tx_id, receipt),
            Input::Tool { action_id, report } => self.tool(now, action_id, report),
            Input::Hold => self.hold(),
            Input::HandOver => self.hand_over(now),
            Input::Suspend => self.suspend(now),
        }
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        self.attempt_timeout(now);
        self.settle(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let open = self.state.handovers.open.as_deref();
        let actions = self.acting.poll_timeout(&self.state.actions);
        let rest = [self.changes.poll_timeout(), self.handing.poll_timeout(open), actions];
        rest.into_iter().chain([self.attempt.poll_timeout()]).flatten().min()
    }
}

impl SessionRuntime {
    /// What follows from what has just changed: a close that can be finished, a turn that can begin.
    fn settle(&mut self, now: Now) {
        loop {
            let before = self.state.tail.seq;
            self.settle_actions(now);
            self.finish_close(now);
            self.run_controls(now);
            self.settle_handover(now);
            self.settle_members(now);
            self.settle_steers(now);
            self.begin(now);
            if self.state.tail.seq == before {
                break;
            }
        }
        self.settle_silence(now);
        self.settle_permit();
    }

    /// Whether inputs are taken at all.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state.phase, Phase::Open)
    }
}
