//! The session machine: it decides on an input, records facts, and sends outputs only after their facts are durable.
use crate::id::{AgentId, Epoch, EventId, FenceToken, InboxPosition, RunId, Seq, SessionKey, UserId};
use crate::machine::Machine;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::action::ToolReport;
use crate::protocol::agent::{AgentDirectory, AgentEvent, Order};
use crate::protocol::delivery::DeliveryReport;
use crate::protocol::entry::{ActionFact, Entry, Fact};
use crate::protocol::input::{self, ControlEntry};
use crate::protocol::member::SessionTaskResult;
use crate::protocol::route::RouteAnswer;
use crate::rng::Rng;
use crate::session::action_decide::{self, ActionDeadlines};
use crate::session::attempt::Attempt;
use crate::session::binding_decide;
use crate::session::context::{OpenInput, SessionContext, SessionCounts};
use crate::session::control_lane::ControlLane;
use crate::session::delivery_decide::{self, DeliveryProgress};
use crate::session::delivery_route;
use crate::session::handover_decide::{self, HandoverProgress};
use crate::session::member_decide::{self, MemberChangeProgress};
use crate::session::model_decide::{self, ModelCallDeadline};
use crate::session::outbox::{FactRecord, Outbox, Output};
use crate::session::plan::{FactSource, Plan, RecordContext, Step};
use crate::session::run_permit::{AttemptPermit, PermitRequest, Permits, is_content_over_limit, next_turn};
use crate::session::state::State;
use crate::session::{
    input_decide, input_steer, run_decide, run_end, run_gather, run_report, run_start, session_decide,
};
use crate::time::{Deadline, Mono, Now};
use std::sync::Arc;

/// An input of the session machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// The next input, in inbox order.
    Take { position: InboxPosition, input: Arc<input::Input> },
    /// The next entry of the control lane, in its order.
    Control { position: InboxPosition, control: Arc<ControlEntry> },
    /// The content of an input, read after [`Output::ReadContent`].
    Content {
        position: InboxPosition,
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
    /// The result of an attempt at a delivery.
    Delivery(DeliveryReport),
    /// The answer to [`Output::Route`].
    Route(RouteAnswer),
    /// Start no more turns: the node is draining.
    Hold,
    /// The same, and leave a resumable attempt to the next owner.
    HandOver,
    /// Record the text of the running attempt, which continues on another node and is not counted.
    Suspend,
}

/// The state machine of one session: one root run at a time, in inbox order (I6).
///
/// [`State`] is the only part that outlives this machine. The other fields hold what was passed in (open inputs and
/// control entries, which are stored in the store), the live text of the running attempt, and each family's own part.
#[derive(Debug)]
pub struct SessionRuntime {
    context: SessionContext,
    lane: ControlLane,
    changes: MemberChangeProgress,
    handover: HandoverProgress,
    actions: ActionDeadlines,
    deliveries: DeliveryProgress,
    model_calls: ModelCallDeadline,
    attempt: Attempt,
    permits: Permits,
    plan: Plan,
}

impl SessionRuntime {
    /// Creates the machine for the owner of a session whose durable log gives `state`.
    pub fn new(key: SessionKey, token: FenceToken, directory: Arc<AgentDirectory>, rng: Rng, state: State) -> Self {
        let outbox = Outbox::new(state.tail.seq);
        Self {
            context: SessionContext::new(key, token, directory, state),
            lane: ControlLane::default(),
            changes: MemberChangeProgress::default(),
            handover: HandoverProgress::default(),
            actions: ActionDeadlines::default(),
            deliveries: DeliveryProgress::default(),
            model_calls: ModelCallDeadline::default(),
            attempt: Attempt::None,
            permits: Permits { permit: AttemptPermit::Unbounded, reading_content: None },
            plan: Plan::new(rng, outbox),
        }
    }

    /// Sets the user whose session it is by the store: the log of a new session does not name the user yet.
    pub fn set_user(&mut self, user: Option<UserId>) {
        self.context.stored_user = user;
    }

    /// Returns the state, including facts that are recorded but not yet durable.
    pub fn state(&self) -> &State {
        &self.context.state
    }

    /// Returns the counters since the last call, and resets them.
    pub fn take_counts(&mut self) -> SessionCounts {
        std::mem::take(&mut self.plan.counts)
    }

    /// Returns the time at which the oldest open input was taken: for metrics.
    pub fn oldest_input_at(&self) -> Option<Mono> {
        self.context.inputs.values().map(|open_input| open_input.taken_at).min()
    }

    /// Returns the time at which a turn's input was taken, on the first call for that turn only. For metrics.
    pub fn mark_shown(&mut self, run_id: &RunId) -> Option<Mono> {
        let open_input = self.context.inputs.get_mut(run_id)?;
        (!std::mem::replace(&mut open_input.is_shown, true)).then_some(open_input.taken_at)
    }

    /// Requires a permit for every attempt at an agent outside this process.
    pub fn require_permits(&mut self) {
        self.permits.permit = AttemptPermit::None;
    }

    /// Sets the level of facts that every live node knows; without it all know those of this release.
    pub fn set_fact_level(&mut self, level: u32) {
        self.context.fact_level = level;
    }

    /// Returns the state of the session's permit.
    pub fn permit(&self) -> AttemptPermit {
        self.permits.permit
    }

    /// Returns the turn that waits for a permit, if any.
    pub fn permit_request(&self) -> Option<PermitRequest> {
        self.permits.request(&self.context, &self.attempt)
    }

    /// Returns the position of an input whose content is to be read from the inbox.
    pub fn wanted_content(&self) -> Option<InboxPosition> {
        self.permits.reading_content
    }

    /// Drops the content of the turn that waits for a permit from memory.
    pub fn unload_waiting_content(&mut self) {
        let next = next_turn(&self.context, &self.attempt);
        if let Some(run_id) = next.filter(|_| self.permits.permit == AttemptPermit::Wanted) {
            self.unload_content(&run_id);
        }
    }

    /// Returns the running text from an offset on, for a reader that has less: only text that is not durable yet,
    /// since the rest is in the log.
    pub fn text_since(&self, run_id: &RunId, attempt: u32, offset: u64) -> Option<(u64, Private<Arc<str>>)> {
        let live = self.attempt.live_run(run_id).filter(|live| live.attempt == attempt)?;
        self.plan.outbox.is_durable(live.show_after).then(|| live.text.since(offset))
    }

    /// Ends the machine after this node has lost ownership; returns the orders that close requests at agents.
    pub fn abandon(&mut self) -> Vec<Order> {
        let mut orders = self.plan.outbox.pending_drops();
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
                let epoch = self.context.ordering_epoch(&live.run_id, live.attempt);
                self.context.earlier_order = Some((live.run_id.clone(), live.attempt, epoch));
            }
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => self.plan.outbox.set_epoch(token.epoch),
        }
        self.context.token = token;
    }

    /// Returns whether the session has no attempt, no waiting work and no pending output.
    pub fn is_idle(&self) -> bool {
        let resting = self.context.is_draining || self.context.inputs.is_empty();
        let settled = self.context.state.changes.is_empty() && self.is_quiet();
        // While a handover, an action or a call of a model is open, an owner has to stay, for its deadline.
        resting && settled && !self.context.state.needs_owner() && self.plan.outbox.is_empty()
    }

    /// Returns whether no attempt runs and no control entry is unanswered, except those of changes of members.
    fn is_quiet(&self) -> bool {
        let lane = self.lane.is_quiet() && self.lane.early_cancels.is_empty();
        matches!(self.attempt, Attempt::None) && lane && self.handover.is_quiet()
    }

    /// Returns whether an output waits for a fact to be durable.
    pub fn is_gated(&self) -> bool {
        self.plan.outbox.is_gated()
    }

    /// Returns whether any turn has not ended.
    pub fn has_work(&self) -> bool {
        !self.context.inputs.is_empty() || self.context.state.has_open_turn()
    }

    /// Returns whether only a handover's decision or an action is pending, and nothing else is left to do: another
    /// owner can wait for it as well.
    pub fn only_awaits_others(&self) -> bool {
        let settled = self.context.state.changes.is_empty() && self.is_quiet();
        self.context.is_draining && settled && self.context.state.needs_owner() && self.plan.outbox.is_empty()
    }

    /// Drops the content of an input from memory, unless the content of waiting inputs is small in total.
    fn unload_content(&mut self, run_id: &RunId) {
        if is_content_over_limit(&self.context)
            && let Some(open_input) = self.context.inputs.get_mut(run_id)
        {
            open_input.drop_content();
        }
    }
}

impl Machine for SessionRuntime {
    type Input = Input;
    type Output = Output;

    fn handle_input(&mut self, now: Now, input: Input) {
        self.context.now = now;
        match input {
            Input::Take { position, input } => return self.take_input(position, input),
            Input::Control { position, control } => {
                self.lane.waiting.push_back((position, control));
                session_decide::run_controls(&self.context, &mut self.lane, &mut self.plan);
            }
            Input::InboxRead => {
                session_decide::answer_early_cancels(&self.context, &mut self.lane, &mut self.plan);
            }
            Input::Content { position, input } => self.take_content(position, input),
            Input::PermitGranted => self.permits.grant(),
            // The attempt number alone does not identify an attempt: if the store lost the fact that counted one, the
            // next attempt has the same number.
            Input::Agent { ref run_id, attempt, epoch, .. }
                if epoch != self.context.ordering_epoch(run_id, attempt)
                    && !planted(Mutant::ReportsUnfenced)
                    && !planted(Mutant::AttemptsMixed) =>
            {
                self.plan.counts.late_reports += 1;
            }
            Input::Agent { run_id, attempt: number, event, .. } => {
                run_report::report(&self.context, &mut self.attempt, (&run_id, number), event, &mut self.plan);
            }
            Input::Durable(seq) => {
                self.plan.outbox.mark_durable(seq);
                self.attempt.mark_ordered(now, seq);
                run_report::grant_credit(&mut self.attempt, seq, &mut self.plan);
            }
            Input::TaskResult { tx_id, receipt } => {
                member_decide::handle_task_result(&self.context, &mut self.changes, tx_id, receipt, &mut self.plan);
            }
            Input::Tool { action_id, report } => {
                action_decide::handle_report(&self.context, &mut self.actions, action_id, report, &mut self.plan);
            }
            Input::Delivery(report) => {
                delivery_decide::handle_report(&self.context, &mut self.deliveries, report, &mut self.plan);
            }
            Input::Route(answer) => {
                delivery_route::handle_answer(&self.context, &mut self.deliveries, answer, &mut self.plan);
            }
            Input::Hold => {
                self.context.is_draining = true;
                self.attempt.drop_delayed();
            }
            Input::HandOver => {
                self.context.is_draining = true;
                run_start::hand_over(&self.context, &mut self.attempt, &mut self.plan);
            }
            Input::Suspend => {
                self.context.is_draining = true;
                run_start::suspend(&self.context, &mut self.attempt, &mut self.plan);
            }
        }
        self.perform();
        self.settle();
    }

    fn handle_timeout(&mut self, now: Now) {
        self.context.now = now;
        run_report::handle_timeout(&self.context, &mut self.attempt, &mut self.plan);
        self.perform();
        self.settle();
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.plan.outbox.pop()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let open = self.context.state.handovers.open.as_deref();
        let actions = self.actions.poll_timeout(&self.context.state.actions);
        let rest = [
            self.changes.poll_timeout(),
            self.handover.poll_timeout(open),
            actions,
            self.deliveries.poll_timeout(&self.context.state.deliveries),
            self.model_calls.poll_timeout(&self.context.state),
            run_gather::poll_timeout(&self.context, &self.attempt),
        ];
        rest.into_iter().chain([self.attempt.poll_timeout()]).flatten().min()
    }
}

impl SessionRuntime {
    fn take_input(&mut self, position: InboxPosition, input: Arc<input::Input>) {
        // Recording the active agent may have been left over by a previous owner that was lost.
        handover_decide::activate_confirmed(&self.context, &mut self.plan);
        self.perform();
        let run_id = input.run_id.clone();
        let open_input = OpenInput::new(self.context.now, position, input);
        let is_again = self.context.inputs.insert(run_id.clone(), open_input).is_some();
        input_decide::take(&self.context, &mut self.lane, &run_id, is_again, &mut self.plan);
        self.perform();
        self.settle();
        if self.permits.leaves_content(&self.context, &self.attempt, &run_id) {
            self.unload_content(&run_id);
        }
    }

    /// Accepts the content of an input that was read from the inbox.
    fn take_content(&mut self, position: InboxPosition, input: Arc<input::Input>) {
        self.permits.reading_content = self.permits.reading_content.filter(|wanted| *wanted != position);
        let open_input = self.context.inputs.get_mut(&input.run_id);
        if let Some(open_input) = open_input.filter(|open_input| open_input.position == position) {
            (open_input.input, open_input.has_content) = (input, true);
        }
    }

    /// Performs every follow-up of the last change, such as finishing a close or starting the next turn, until
    /// nothing changes.
    fn settle(&mut self) {
        loop {
            let before = self.context.state.tail.seq;
            action_decide::settle_all(&self.context, &mut self.actions, &mut self.plan);
            self.perform();
            delivery_decide::settle_all(&self.context, &mut self.deliveries, &mut self.plan);
            self.perform();
            model_decide::settle_all(&self.context, &mut self.model_calls, &mut self.plan);
            self.perform();
            session_decide::finish_close(&self.context, &mut self.lane, &mut self.plan);
            self.perform();
            session_decide::run_controls(&self.context, &mut self.lane, &mut self.plan);
            self.perform();
            handover_decide::settle(&self.context, &mut self.handover, &mut self.plan);
            self.perform();
            member_decide::ensure_active_member(&self.context, &mut self.plan);
            self.perform();
            input_decide::reassign_waiting_turn(&self.context, &mut self.plan);
            self.perform();
            member_decide::settle_all(&self.context, &mut self.plan);
            self.perform();
            run_end::finish_if_answered(&self.context, &mut self.attempt, &mut self.plan);
            self.perform();
            input_steer::settle_all(&self.context, &mut self.plan);
            self.perform();
            run_start::begin_next_turn(&self.context, &mut self.attempt, &mut self.permits, &mut self.plan);
            self.perform();
            if self.context.state.tail.seq == before {
                break;
            }
        }
        run_report::settle_clocks(&self.context, &mut self.attempt);
        self.permits.update(&self.context, &self.attempt);
        if matches!(self.attempt, Attempt::None) {
            self.plan.free_memory();
        }
    }

    /// Performs the steps of the decision that was just made, and all steps that follow from them.
    #[inline]
    fn perform(&mut self) {
        if !self.plan.is_empty() {
            self.perform_steps();
        }
    }

    #[inline(never)]
    fn perform_steps(&mut self) {
        while let Some(step) = self.plan.next_step() {
            let context = &self.context;
            let plan = &mut self.plan;
            match step {
                Step::Record(fact, about) => self.record(fact, about),
                Step::Send(output) => plan.outbox.push(output),
                Step::SendAfter(output) => plan.outbox.push_after(context.state.tail.seq, output),
                Step::SendAt(seq, output) => plan.outbox.push_after(seq, output),
                Step::DropSteer(run_id) => plan.outbox.drop_steer(&run_id),
                Step::ForgetInput(run_id) => drop(self.context.inputs.remove(&run_id)),
                Step::Session(command) => session_decide::decide(context, &mut self.lane, command, plan),
                Step::Member(command) => member_decide::decide(context, &mut self.changes, command, plan),
                Step::Handover(command) => handover_decide::decide(context, &mut self.handover, command, plan),
                Step::Action(command) => action_decide::decide(context, &mut self.actions, command, plan),
                Step::Binding(command) => binding_decide::decide(context, command, plan),
                Step::Delivery(command) => delivery_decide::decide(context, &mut self.deliveries, command, plan),
                Step::Model(command) => model_decide::decide(context, command, plan),
                Step::Input(command) => input_decide::decide(context, &mut self.attempt, command, plan),
                Step::Run(command) => {
                    run_decide::decide(context, &mut self.attempt, &mut self.permits, command, plan);
                }
            }
        }
    }

    /// Records a fact: applies it to the state and outputs it for the log. This is the only way to change the state.
    fn record(&mut self, fact: Fact, about: RecordContext) {
        let now = self.context.now;
        // The first fact of a transaction gives the transaction its id.
        let names = about.tx.filter(|_| fact.starts_transaction());
        let id = names.unwrap_or_else(|| self.plan.event_id(&self.context));
        let state = &self.context.state;
        let run = about.run.as_ref().and_then(|run| state.runs.get(run));
        let action = about.action.and_then(|action_id| state.actions.open.get(&action_id));
        let asker: Option<AgentId> = action.map(|action| action.agent.clone()).or(about.asker);
        let cause = action.map(|action| action.cause).or(run.map(|run| run.cause));
        let cause = cause.or(about.tx.filter(|_| names.is_none()));
        let open_input = about.run.as_ref().and_then(|run| self.context.inputs.get(run));
        let traceparent = open_input.and_then(|open_input| open_input.input.traceparent.as_deref()).map(Arc::from);
        let source = match &about.source {
            FactSource::Agent => run.and_then(|run| run.agent.as_ref()).map(|agent| format!("agent:{agent}")),
            FactSource::User(user) => Some(format!("user:{user}")),
            FactSource::Runner => {
                let begins = if let Fact::Action(ActionFact::Invoked(invoked)) = &fact {
                    Some(&invoked.runner_id)
                } else {
                    None
                };
                let runner = begins.or(action.and_then(|action| action.runner.as_ref()));
                runner.map(|runner| format!("runner:{runner}"))
            }
            FactSource::Gateway => None,
        };
        let entry = Arc::new(Entry {
            id,
            time: if planted(Mutant::FactTimeFallsBack) { now.store } else { now.store.max(state.time) },
            source: source.as_deref().unwrap_or("turnway").into(),
            correlation_id: match &about.run {
                Some(run) => run.as_str().into(),
                None => about.tx.unwrap_or(id).to_string().into(),
            },
            causation_id: cause,
            traceparent,
            run_id: about.run,
            fact,
        });
        self.context.state.apply(self.context.token.epoch, &entry);
        let RecordContext { ends, answers, closed, .. } = about;
        self.plan.outbox.push(Output::Record(FactRecord { entry: Arc::clone(&entry), ends, answers, closed }));
        if let Some(news) = action_decide::news_order(&self.context, &self.attempt, asker.as_ref(), &entry) {
            if planted(Mutant::NewsEarly) {
                self.plan.outbox.push(news);
            } else {
                self.plan.outbox.push_after(self.context.state.tail.seq, news);
            }
        }
    }
}
