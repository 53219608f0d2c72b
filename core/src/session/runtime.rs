//! The session machine: it decides on an input, records facts, and sends outputs only after their facts are durable.
use crate::id::{AgentId, Epoch, EventId, FenceToken, InboxPosition, RunId, RunnerId, Seq, SessionKey};
use crate::machine::Machine;
use crate::mutant::{Mutant, planted};
use crate::protocol::action::ToolReport;
use crate::protocol::agent::{AgentDirectory, AgentEvent, Order};
use crate::protocol::entry::{Entry, Fact};
use crate::protocol::input::{self, ControlEntry};
use crate::protocol::member::SessionTaskResult;
use crate::rng::Rng;
use crate::session::action_decide::ActionDeadlines;
use crate::session::attempt::Attempt;
use crate::session::handover_decide::HandoverProgress;
use crate::session::member_decide::MemberChangeProgress;
use crate::session::outbox::{EndedInput, FactRecord, Outbox, Output};
use crate::session::run_permit::AttemptPermit;
use crate::session::state::{SessionPhase, State};
use crate::time::{Deadline, Mono, Now};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An input of the session machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// The next input, in inbox order.
    Take { place: InboxPosition, input: Arc<input::Input> },
    /// The next entry of the control lane, in its order.
    Control { place: InboxPosition, control: Arc<ControlEntry> },
    /// The content of an input, read after [`Output::ReadContent`].
    Content {
        place: InboxPosition,
        /// The whole input.
        input: Arc<input::Input>,
    },
    /// The requested permit to start a turn ([`AttemptPermit::Wanted`]).
    PermitGranted,
    /// The inbox was read up to its end after [`Output::ReadInbox`].
    InboxRead,
    /// A report of an agent.
    Agent {
        run_id: RunId,
        attempt: u32,
        /// The ownership that ordered the attempt: after the store lost facts, attempt numbers may repeat.
        epoch: Epoch,
        event: AgentEvent,
    },
    /// The log is durable up to this position.
    Durable(Seq),
    /// The outcome of a task.
    TaskResult {
        /// The transaction of the task.
        tx_id: EventId,
        receipt: SessionTaskResult,
    },
    /// A report about an action.
    Tool { action_id: EventId, report: ToolReport },
    /// Start no more turns: the node is draining.
    Hold,
    /// The same, and leave a resumable attempt to the next owner.
    HandOver,
    /// Record the text of the running attempt, which continues on another node and is not counted.
    Suspend,
}

/// Counters of a session, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Reports of agents that came too late or belonged to no attempt: dropped, never shown (RX-8).
    pub late_reports: u64,
    /// Attempts after the first.
    pub restarts: u64,
    /// Attempts that were resumed under another owner.
    pub resumed: u64,
}

/// An input that this owner has taken from the inbox and not ended.
#[derive(Clone, Debug)]
pub(super) struct OpenInput {
    pub(super) place: InboxPosition,
    /// The input; without its content if that was left in the store.
    pub(super) input: Arc<input::Input>,
    /// Bytes of the input's content.
    pub(super) bytes: u64,
    /// True if the content is in memory.
    pub(super) has_content: bool,
    /// Time at which this owner got the input: for metrics.
    pub(super) taken_at: Mono,
    /// True once a part of the answer was shown: for metrics.
    is_shown: bool,
}

impl OpenInput {
    pub(super) fn new(now: Now, place: InboxPosition, input: Arc<input::Input>) -> Self {
        let bytes = input.weight() as u64;
        Self { place, input, bytes, has_content: true, taken_at: now.mono, is_shown: false }
    }
}

/// The state machine of one session: one root run at a time, in inbox order (I6).
///
/// [`State`] is the only part that outlives this machine. The other fields hold what was passed in (open inputs and
/// control entries, which are stored in the store) and the live text of the running attempt.
#[derive(Debug)]
pub struct SessionRuntime {
    pub(super) key: SessionKey,
    pub(super) token: FenceToken,
    pub(super) directory: Arc<AgentDirectory>,
    pub(super) rng: Rng,
    pub(super) state: State,
    /// Inputs that have not ended, by the turn that they open.
    pub(super) inputs: BTreeMap<RunId, OpenInput>,
    /// Control entries not yet answered, in order; entries wait here only while the session is closing.
    pub(super) controls: VecDeque<(InboxPosition, Arc<ControlEntry>)>,
    /// The close in progress.
    pub(super) close: Option<(InboxPosition, Arc<ControlEntry>)>,
    /// Cancels of turns that are not known (yet).
    pub(super) early_cancels: BTreeMap<RunId, (InboxPosition, Arc<ControlEntry>)>,
    pub(super) changes: MemberChangeProgress,
    pub(super) handover: HandoverProgress,
    pub(super) actions: ActionDeadlines,
    pub(super) attempt: Attempt,
    pub(super) is_draining: bool,
    pub(super) permit: AttemptPermit,
    /// Position of an input whose content is being read.
    pub(super) reading_content: Option<InboxPosition>,
    pub(super) outbox: Outbox,
    pub(super) counts: SessionCounts,
    /// An attempt that was ordered under an earlier ownership of this same owner.
    earlier_order: Option<(RunId, u32, Epoch)>,
}

impl SessionRuntime {
    /// Creates the machine for the owner of a session whose durable log gives `state`.
    pub fn new(key: SessionKey, token: FenceToken, directory: Arc<AgentDirectory>, rng: Rng, state: State) -> Self {
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
            changes: MemberChangeProgress::default(),
            handover: HandoverProgress::default(),
            actions: ActionDeadlines::default(),
            attempt: Attempt::None,
            is_draining: false,
            permit: AttemptPermit::Unbounded,
            reading_content: None,
            outbox,
            counts: SessionCounts::default(),
            earlier_order: None,
        }
    }

    /// Returns the state, including facts that are recorded but not yet durable.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the counters since the last call, and resets them.
    pub fn take_counts(&mut self) -> SessionCounts {
        std::mem::take(&mut self.counts)
    }

    /// Returns the time at which the oldest open input was taken: for metrics.
    pub fn oldest_input_at(&self) -> Option<Mono> {
        self.inputs.values().map(|open_input| open_input.taken_at).min()
    }

    /// Returns the time at which a turn's input was taken, on the first call for that turn only. For metrics.
    pub fn mark_shown(&mut self, run_id: &RunId) -> Option<Mono> {
        let open_input = self.inputs.get_mut(run_id)?;
        (!std::mem::replace(&mut open_input.is_shown, true)).then_some(open_input.taken_at)
    }

    /// Ends the machine after this node has lost ownership; returns the orders that close requests at agents.
    pub fn abandon(&mut self) -> Vec<Order> {
        let mut orders = self.outbox.pending_drops();
        match std::mem::take(&mut self.attempt) {
            Attempt::Live(live) if live.is_ordered => {
                orders.push(Order::Drop { run_id: live.run_id, attempt: live.attempt });
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => {}
        }
        orders
    }

    /// Continues under a new ownership by the same node, if no other node owned the session in between.
    pub fn continue_under(&mut self, token: FenceToken) {
        match &self.attempt {
            Attempt::Live(live) if live.is_ordered => {
                let epoch = self.ordering_epoch(&live.run_id, live.attempt);
                self.earlier_order = Some((live.run_id.clone(), live.attempt, epoch));
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => self.outbox.set_epoch(token.epoch),
        }
        self.token = token;
    }

    /// Returns the ownership that ordered an attempt, if the attempt is the current one.
    pub(super) fn ordering_epoch(&self, run_id: &RunId, attempt: u32) -> Epoch {
        let kept = self.earlier_order.as_ref().filter(|(run, number, _)| run == run_id && *number == attempt);
        kept.map_or(self.token.epoch, |(_, _, epoch)| *epoch)
    }

    /// Returns whether the session has no attempt, no waiting work and no pending output.
    pub fn is_idle(&self) -> bool {
        let resting = self.is_draining || self.inputs.is_empty();
        let idle = matches!(self.attempt, Attempt::None) && self.controls.is_empty() && self.close.is_none();
        let settled = self.early_cancels.is_empty() && self.state.changes.is_empty() && self.handover.is_quiet();
        // While a handover or an action is open, an owner has to stay, for its deadline.
        idle && resting && settled && !self.state.needs_owner() && self.outbox.is_empty()
    }

    /// Returns whether an output waits for a fact to be durable.
    pub fn is_gated(&self) -> bool {
        self.outbox.is_gated()
    }

    /// Returns whether any turn has not ended.
    pub fn has_work(&self) -> bool {
        !self.inputs.is_empty() || self.state.has_open_turn()
    }

    /// Returns whether only a handover's decision or an action is pending, and nothing else is left to do: another
    /// owner can wait for it as well.
    pub fn only_awaits_others(&self) -> bool {
        let idle = matches!(self.attempt, Attempt::None) && self.controls.is_empty() && self.close.is_none();
        let settled = self.early_cancels.is_empty() && self.state.changes.is_empty() && self.handover.is_quiet();
        self.is_draining && idle && settled && self.state.needs_owner() && self.outbox.is_empty()
    }

    /// Creates the id of a fact that is about to be recorded.
    pub(super) fn event_id(&mut self, now: Now) -> EventId {
        EventId::new(now.store, self.rng.next_u128())
    }

    /// Records a fact: applies it to the state and outputs it for the log. This is the only way to change the state.
    pub(super) fn record(&mut self, now: Now, fact: Fact, about: RecordContext<'_>) -> Seq {
        // The first fact of a transaction gives the transaction its id.
        let names = about.tx.filter(|_| fact.starts_transaction());
        let id = names.unwrap_or_else(|| self.event_id(now));
        let run = about.run.and_then(|run| self.state.runs.get(run));
        let cause = about.cause.or(run.map(|run| run.cause)).or(about.tx.filter(|_| names.is_none()));
        let traceparent = about.run.and_then(|run| self.inputs.get(run));
        let traceparent = traceparent.and_then(|open_input| open_input.input.traceparent.as_deref()).map(Arc::from);
        let source = match (about.source, run) {
            (FactSource::Agent, Some(run)) => run.agent.as_ref().map(|agent| format!("agent:{agent}")),
            (FactSource::User, _) => about.user.map(|user| format!("user:{user}")),
            (FactSource::Runner, _) => about.runner.map(|runner| format!("runner:{runner}")),
            (FactSource::Agent | FactSource::Gateway, _) => None,
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
        let ends = about.ends;
        let answers = about.answers;
        let closed = about.closed;
        let record = FactRecord { entry: Arc::clone(&entry), ends, answers, closed };
        self.outbox.push(Output::Record(record));
        self.deliver_to_agent(about.asker, &entry);
        self.state.tail.seq
    }
}

/// The originator of a fact.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum FactSource {
    User,
    Agent,
    Runner,
    #[default]
    Gateway,
}

/// The context in which a fact is recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordContext<'a> {
    pub(super) run: Option<&'a RunId>,
    /// The transaction that the fact belongs to.
    pub(super) tx: Option<EventId>,
    pub(super) source: FactSource,
    pub(super) user: Option<&'a crate::id::UserId>,
    pub(super) runner: Option<&'a RunnerId>,
    /// The agent that requested the action which the fact is about.
    pub(super) asker: Option<&'a AgentId>,
    /// The fact that this one follows from, if that is not the run's last cause.
    pub(super) cause: Option<EventId>,
    pub(super) ends: Option<EndedInput>,
    pub(super) answers: Option<InboxPosition>,
    pub(super) closed: Option<bool>,
}

impl<'a> RecordContext<'a> {
    pub(super) fn run(run: &'a RunId) -> Self {
        Self { run: Some(run), ..Self::default() }
    }
    pub(super) fn agent(run: &'a RunId) -> Self {
        Self { run: Some(run), source: FactSource::Agent, ..Self::default() }
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
                self.take_input(now, place, input);
                self.settle(now);
                return self.unload_if_waiting(&run_id);
            }
            Input::Control { place, control } => self.handle_control(now, place, control),
            Input::InboxRead => self.handle_inbox_read(),
            Input::Content { place, input } => self.handle_content(place, input),
            Input::PermitGranted => self.grant_permit(),
            // The attempt number alone does not identify an attempt: if the store lost the fact that counted one, the
            // next attempt has the same number.
            Input::Agent { ref run_id, attempt, epoch, .. }
                if epoch != self.ordering_epoch(run_id, attempt)
                    && !planted(Mutant::ReportsUnfenced)
                    && !planted(Mutant::AttemptsMixed) =>
            {
                self.counts.late_reports += 1;
            }
            Input::Agent { run_id, attempt, event, .. } => self.handle_agent_event(now, &run_id, attempt, event),
            Input::Durable(seq) => {
                self.outbox.mark_durable(seq);
                self.mark_ordered(now, seq);
                self.grant_credit(seq);
            }
            Input::TaskResult { tx_id, receipt } => self.handle_task_result(now, tx_id, receipt),
            Input::Tool { action_id, report } => self.handle_tool_report(now, action_id, report),
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
        let actions = self.actions.poll_timeout(&self.state.actions);
        let rest = [self.changes.poll_timeout(), self.handover.poll_timeout(open), actions];
        rest.into_iter().chain([self.attempt.poll_timeout()]).flatten().min()
    }
}

impl SessionRuntime {
    /// Performs every follow-up of the last change, such as finishing a close or starting the next turn, until
    /// nothing changes.
    fn settle(&mut self, now: Now) {
        loop {
            let before = self.state.tail.seq;
            self.settle_actions(now);
            self.finish_close(now);
            self.run_controls(now);
            self.settle_handover(now);
            self.settle_members(now);
            self.settle_steers(now);
            self.begin_next_turn(now);
            if self.state.tail.seq == before {
                break;
            }
        }
        self.settle_silence(now);
        self.update_permit();
    }

    /// Returns whether the session accepts inputs.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state.phase, SessionPhase::Open)
    }
}
