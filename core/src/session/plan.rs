//! The plan of a decision: facts to record, outputs to send, and commands for what other families decide. Decisions
//! add steps and change nothing; the runtime performs the steps in order.
use crate::id::{AgentId, EventId, InboxPosition, RequestId, RunId, Seq, UserId};
use crate::protocol::entry::{Fact, MemberFact, SessionFact};
use crate::protocol::input::ControlEntry;
use crate::rng::Rng;
use crate::session::command::{
    ActionCommand, BindingFactCommand, DeliveryFactCommand, HandoverCommand, InputCommand, MemberCommand, ModelCommand,
    RunCommand, SessionCommand,
};
use crate::session::context::{SessionContext, SessionCounts};
use crate::session::outbox::{EndedInput, Outbox, Output};
use std::collections::VecDeque;
use std::time::Duration;

/// A step of a plan.
#[derive(Debug)]
pub(super) enum Step {
    /// Record a fact.
    Record(Fact, RecordContext),
    /// Give out an output at once.
    Send(Output),
    /// Give out an output once all facts recorded so far are durable.
    SendAfter(Output),
    /// Give out an output once the fact at a position is durable.
    SendAt(Seq, Output),
    /// Withdraw the order to hand over an input.
    DropSteer(RunId),
    /// Forget an input that has ended.
    ForgetInput(RunId),
    Session(SessionCommand),
    Member(MemberCommand),
    Handover(HandoverCommand),
    Action(ActionCommand),
    Binding(BindingFactCommand),
    Delivery(DeliveryFactCommand),
    Model(ModelCommand),
    Input(InputCommand),
    Run(RunCommand),
}

impl Step {
    /// Returns whether the step asks a family for a decision, which may add steps.
    fn is_command(&self) -> bool {
        match self {
            Self::Record(..)
            | Self::Send(_)
            | Self::SendAfter(_)
            | Self::SendAt(..)
            | Self::DropSteer(_)
            | Self::ForgetInput(_) => false,
            Self::Session(_)
            | Self::Member(_)
            | Self::Handover(_)
            | Self::Action(_)
            | Self::Binding(_)
            | Self::Delivery(_)
            | Self::Model(_)
            | Self::Input(_)
            | Self::Run(_) => true,
        }
    }
}

/// The originator of a fact.
#[derive(Clone, Debug, Default)]
pub(super) enum FactSource {
    User(UserId),
    /// The agent of the run.
    Agent,
    /// The runner of the action, once it has one.
    Runner,
    #[default]
    Gateway,
}

/// The context in which a fact is recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordContext {
    pub(super) run: Option<RunId>,
    /// The open action that the fact is about.
    pub(super) action: Option<EventId>,
    /// The transaction that the fact belongs to.
    pub(super) tx: Option<EventId>,
    pub(super) source: FactSource,
    /// The agent that requests an action with the fact.
    pub(super) asker: Option<AgentId>,
    pub(super) ends: Option<EndedInput>,
    /// The control entry that leaves the store with the fact; without it, the entry stays in the lane.
    pub(super) answers: Option<InboxPosition>,
    pub(super) closed: Option<bool>,
}

impl RecordContext {
    pub(super) fn run(run: &RunId) -> Self {
        Self { run: Some(run.clone()), ..Self::default() }
    }
    pub(super) fn agent(run: &RunId) -> Self {
        Self { source: FactSource::Agent, ..Self::run(run) }
    }
    pub(super) fn tx(tx: EventId) -> Self {
        Self { tx: Some(tx), ..Self::default() }
    }
}

/// The steps that are left to perform, and what decisions use besides: the outbox, the counters and random numbers. An
/// output that no step precedes goes into the outbox at once.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) outbox: Outbox,
    /// Steps of the decision that was just made, in order.
    added: VecDeque<Step>,
    /// Steps of the decisions before it, the next one last.
    rest: Vec<Step>,
    rng: Rng,
    pub(super) counts: SessionCounts,
}

impl Plan {
    pub(super) fn new(rng: Rng, outbox: Outbox) -> Self {
        Self { outbox, added: VecDeque::new(), rest: Vec::new(), rng, counts: SessionCounts::default() }
    }

    /// Returns whether no step is left.
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.rest.is_empty()
    }

    /// Returns the next step. The steps of a decision come before what was left when it was made.
    pub(super) fn next_step(&mut self) -> Option<Step> {
        let Some(step) = self.added.pop_front() else { return self.rest.pop() };
        if step.is_command() {
            // The steps that the command leads to come before those that follow it.
            self.rest.extend(self.added.drain(..).rev());
        }
        Some(step)
    }

    /// Frees the memory of the steps: most sessions are idle.
    pub(super) fn free_memory(&mut self) {
        if self.is_empty() {
            self.added = VecDeque::new();
            self.rest = Vec::new();
        }
    }

    /// Creates the id of a fact that is about to be recorded.
    pub(super) fn event_id(&mut self, context: &SessionContext) -> EventId {
        EventId::new(context.now.store, self.rng.next_u128())
    }

    /// Returns a random wait from a half of `longest` up to it, so that repetitions spread.
    pub(super) fn spread(&mut self, longest: Duration) -> Duration {
        let half = longest / 2;
        half + Duration::from_millis(self.rng.below(u64::try_from(half.as_millis()).unwrap_or(u64::MAX).max(1)))
    }

    /// Adds a fact; returns its position, if only facts and outputs were added before.
    pub(super) fn record(&mut self, context: &SessionContext, fact: Fact, about: RecordContext) -> Seq {
        self.added.push_back(Step::Record(fact, about));
        self.tail(context)
    }

    /// Returns the position of the last fact after the added ones.
    pub(super) fn tail(&self, context: &SessionContext) -> Seq {
        let facts = self.added.iter().filter(|step| matches!(step, Step::Record(..))).count();
        Seq(context.state.tail.seq.0 + facts as u64)
    }

    pub(super) fn send(&mut self, output: Output) {
        if self.added.is_empty() {
            self.outbox.push(output);
        } else {
            self.added.push_back(Step::Send(output));
        }
    }

    /// Adds an output that waits until all facts before it are durable.
    pub(super) fn send_after(&mut self, output: Output) {
        self.added.push_back(Step::SendAfter(output));
    }

    /// Adds an output that waits until the fact at `seq` is durable.
    pub(super) fn send_at(&mut self, seq: Seq, output: Output) {
        if self.added.is_empty() {
            self.outbox.push_after(seq, output);
        } else {
            self.added.push_back(Step::SendAt(seq, output));
        }
    }

    /// Adds the withdrawal of the order to hand over an input.
    pub(super) fn drop_steer(&mut self, run_id: &RunId) {
        self.added.push_back(Step::DropSteer(run_id.clone()));
    }

    /// Adds the removal of an input that has ended.
    pub(super) fn forget_input(&mut self, run_id: &RunId) {
        self.added.push_back(Step::ForgetInput(run_id.clone()));
    }

    pub(super) fn session(&mut self, command: SessionCommand) {
        self.added.push_back(Step::Session(command));
    }

    pub(super) fn member(&mut self, command: MemberCommand) {
        self.added.push_back(Step::Member(command));
    }

    pub(super) fn handover(&mut self, command: HandoverCommand) {
        self.added.push_back(Step::Handover(command));
    }

    pub(super) fn action(&mut self, command: ActionCommand) {
        self.added.push_back(Step::Action(command));
    }

    pub(super) fn binding(&mut self, command: BindingFactCommand) {
        self.added.push_back(Step::Binding(command));
    }

    pub(super) fn delivery(&mut self, command: DeliveryFactCommand) {
        self.added.push_back(Step::Delivery(command));
    }

    pub(super) fn model(&mut self, command: ModelCommand) {
        self.added.push_back(Step::Model(command));
    }

    pub(super) fn input(&mut self, command: InputCommand) {
        self.added.push_back(Step::Input(command));
    }

    pub(super) fn run(&mut self, command: RunCommand) {
        self.added.push_back(Step::Run(command));
    }

    /// Records that another member is active from now on (SR-B6, SR-B7).
    pub(super) fn record_switch(
        &mut self,
        context: &SessionContext,
        to: &AgentId,
        (reason, trigger): (String, &str),
        request_id: Option<RequestId>,
        about: RecordContext,
    ) {
        let Some(from) = context.state.active.clone() else { return };
        let trigger = trigger.to_owned();
        let fact = Fact::Member(MemberFact::Switched { from, to: to.clone(), reason, trigger, request_id });
        self.record(context, fact, about);
    }

    /// Answers a control entry by a notice.
    pub(super) fn answer_with_notice(
        &mut self,
        context: &SessionContext,
        name: &str,
        position: InboxPosition,
        control: &ControlEntry,
    ) {
        let fact = Fact::Session(SessionFact::Notice { name: name.to_owned(), request_id: control.request_id.clone() });
        self.record(context, fact, RecordContext { answers: Some(position), ..RecordContext::default() });
        self.answer_with_fact(control);
    }

    /// Answers a control entry that needs no fact.
    pub(super) fn answer_without_fact(&mut self, position: InboxPosition, control: &ControlEntry) {
        self.send(Output::RemoveControl { position });
        self.answer(control, false);
    }

    /// Answers a control entry whose answer is in the facts before.
    pub(super) fn answer_with_fact(&mut self, control: &ControlEntry) {
        self.answer(control, true);
    }

    fn answer(&mut self, control: &ControlEntry, shown: bool) {
        let control = control.id.clone();
        self.send_after(Output::ControlAnswered { control, shown });
    }
}
