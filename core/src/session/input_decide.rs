//! Admission of inputs: the decision on each is made once and recorded (scenario A, and ST-6).
use crate::id::{AgentId, RunId};
use crate::mutant::{Mutant, planted};
use crate::planted::{self, Planted};
use crate::protocol::entry::{self, Admission, Fact, InputFact, SessionFact};
use crate::protocol::history::History;
use crate::protocol::input::{Input, Strategy};
use crate::protocol::refusal::Code;
use crate::session::attempt::Attempt;
use crate::session::command::{InputCommand, RunCommand};
use crate::session::context::SessionContext;
use crate::session::control_lane::ControlLane;
use crate::session::ending::Ending;
use crate::session::input_state::Rank;
use crate::session::input_steer;
use crate::session::plan::{FactSource, Plan, RecordContext};
use crate::session::state::SessionPhase;

/// The reason why an input cannot be admitted; the input then ends like any other, with its terminal fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AdmissionError {
    code: Code,
    why: &'static str,
}

/// Decides on a command about inputs.
pub(super) fn decide(context: &SessionContext, attempt: &mut Attempt, command: InputCommand, plan: &mut Plan) {
    match command {
        InputCommand::Admit(run_id) => admit_or_end(context, attempt, &run_id, plan),
        InputCommand::Reassign => reassign_waiting_turn(context, plan),
        InputCommand::AckSteer { host, message_id, outcome } => {
            input_steer::handle_ack(context, attempt, &host, &message_id, outcome, plan);
        }
        InputCommand::SettleSteer(run_id, steered) => {
            input_steer::settle(context, attempt, &run_id, steered, plan);
        }
    }
}

/// Decides on an input that was taken from the inbox.
pub(super) fn take(context: &SessionContext, lane: &mut ControlLane, run_id: &RunId, is_again: bool, plan: &mut Plan) {
    let Some(open_input) = context.inputs.get(run_id) else { return };
    let input = &*open_input.input;
    // A previous owner may have been lost between a message and its admission: the input is then admitted now.
    let begun = context.state.runs.get(run_id).map(|run| run.agent.is_some());
    if begun == Some(true) || is_again {
        // The log has the turn, but the store had lost the input when the turn was to be cancelled.
        if let Some(entry) = lane.early_cancels.remove(run_id) {
            plan.run(RunCommand::Cancel { run_id: run_id.clone(), reason: "user", by: Some(entry) });
        } else if lane.close.is_some() && !context.state.is_steered(run_id) {
            plan.run(RunCommand::Stop(run_id.clone()));
        }
        return;
    }
    if planted(Mutant::CloseLeavesInputs) && !context.is_open() && context.state.phase != SessionPhase::New {
        return;
    }
    let default = input.agent_id.clone().or_else(|| context.directory.default.clone());
    if context.state.phase == SessionPhase::New
        && let Some(active_agent) = default
    {
        let agents = context.directory.default_members(Some(&active_agent));
        let user = context.session_user(&input.user);
        let fact = Fact::Session(SessionFact::Opened { user, agents, active_agent, request_id: None });
        plan.record(context, fact, RecordContext { closed: Some(false), ..RecordContext::default() });
    }
    if begun.is_none() {
        record_message(context, input, plan);
    }
    if let Some(entry) = lane.early_cancels.remove(run_id) {
        return plan.run(RunCommand::Cancel { run_id: run_id.clone(), reason: "user", by: Some(entry) });
    }
    if begun.is_none() && is_late_edit(context, input) {
        let reason = entry::LATE_EDIT.to_owned();
        let ending = Ending::Cancelled { reason, forced: false, answers: None };
        return plan.run(RunCommand::End(run_id.clone(), ending));
    }
    plan.input(InputCommand::Admit(run_id.clone()));
}

/// Returns whether an input is an edit of a message that does not wait any more. It must not be answered beside the message.
/// An edit whose message is recorded may have replaced the waiting one already, before the previous owner was lost.
fn is_late_edit(context: &SessionContext, input: &Input) -> bool {
    input.is_edit() && replaced_run(context, input).is_none() && !planted::planted(Planted::LateEditAnswered)
}

fn record_message(context: &SessionContext, input: &Input, plan: &mut Plan) {
    let fact = Fact::Input(InputFact::UserMessage {
        message_id: input.message_id.clone(),
        request_id: input.request_id.clone(),
        user: input.user.clone(),
        message: input.message.clone(),
        history_sha256: input.history.as_ref().map(History::sha256),
        agent_id: input.agent_id.clone(),
        strategy: input.strategy,
        metadata: input.metadata.clone(),
        origin: input.origin.clone(),
    });
    let about = RecordContext { source: FactSource::User(input.user.clone()), ..RecordContext::run(&input.run_id) };
    plan.record(context, fact, about);
}

/// Admits an input whose message is recorded, or ends its turn.
fn admit_or_end(context: &SessionContext, attempt: &Attempt, run_id: &RunId, plan: &mut Plan) {
    let Some(open_input) = context.inputs.get(run_id) else { return };
    let input = &*open_input.input;
    let replaced = replaced_run(context, input);
    let addressed = input.agent_id.as_ref().or_else(|| context.run_agent(replaced.as_ref()?));
    match choose_agent(context, addressed) {
        Ok(agent) if let Some(old) = replaced => replace_waiting(context, input, agent, old, plan),
        Ok(agent) => admit(context, attempt, input, agent, plan),
        Err(unfit) => plan.run(RunCommand::End(run_id.clone(), Ending::failed(unfit.code, unfit.why))),
    }
}

/// Returns the agent that will answer, if any can. Pure.
fn choose_agent(context: &SessionContext, addressed: Option<&AgentId>) -> Result<AgentId, AdmissionError> {
    if !context.is_open() {
        let closed = context.state.phase != SessionPhase::New;
        let (code, why) = if closed {
            (Code::SessionClosed, "the session is closed")
        } else {
            (Code::AgentUnavailable, "no agent is configured")
        };
        return Err(AdmissionError { code, why });
    }
    let agent = addressed.or(context.state.active.as_ref());
    let member = agent.filter(|agent| context.state.agents.contains(agent));
    let Some(agent) = member else {
        return Err(AdmissionError { code: Code::AgentNotInSession, why: "the agent is not a member of this session" });
    };
    if !context.directory.agents.contains_key(agent) {
        let why = "the agent is not configured on this node";
        return Err(AdmissionError { code: Code::AgentUnavailable, why });
    }
    Ok(agent.clone())
}

fn admit(context: &SessionContext, attempt: &Attempt, input: &Input, agent: AgentId, plan: &mut Plan) {
    let run_id = &input.run_id;
    let strategy = input.strategy;
    if context.state.active.as_ref() != Some(&agent) {
        let why = ("addressed".to_owned(), "mention");
        plan.record_switch(context, &agent, why, None, RecordContext::run(run_id));
    }
    if let Some(host) = input_steer::host_of(context, attempt, input, &agent) {
        let strategy = Admission::Steered;
        let host_run_id = Some(host);
        let fact =
            Fact::Input(InputFact::Admitted { agent_id: agent, strategy, position: None, host_run_id, replaces: None });
        plan.record(context, fact, RecordContext::run(run_id));
        return;
    }
    let ahead = context.state.waiting.len() + usize::from(context.state.running.is_some());
    let interrupts = matches!(strategy, Strategy::Interrupt | Strategy::Rollback) && ahead > 0;
    let (strategy, position) = match (interrupts, ahead) {
        (true, _) => (Admission::Interrupts, None),
        (false, 0) => (Admission::Run, None),
        (false, ahead) => (Admission::Queued, u32::try_from(ahead).ok()),
    };
    let fact =
        Fact::Input(InputFact::Admitted { agent_id: agent, strategy, position, host_run_id: None, replaces: None });
    plan.record(context, fact, RecordContext::run(run_id));
    if interrupts && let Some(running) = context.state.running.clone() {
        let reason = if input.strategy == Strategy::Rollback { entry::ROLLED_BACK } else { "interrupt" };
        plan.run(RunCommand::Cancel { run_id: running, reason, by: None });
    }
}

/// Returns the run that an input replaces: a queued input of the same user. An input that the agent already knows, or
/// that has interrupted a run, cannot be replaced.
fn replaced_run(context: &SessionContext, input: &Input) -> Option<RunId> {
    let old = input.replaces.as_ref().filter(|old| context.state.waiting.contains(old))?;
    let waits = context.state.runs.get(old).is_some_and(|run| run.rank == Rank::Queued);
    let replaced = context.inputs.get(old).filter(|_| waits)?;
    (replaced.input.user == input.user).then(|| old.clone())
}

/// Gives an input the place of a waiting one, which ends. The end is recorded first: if the owner is lost in between,
/// one input waits as usual, and never two.
fn replace_waiting(context: &SessionContext, input: &Input, agent_id: AgentId, old: RunId, plan: &mut Plan) {
    let waiting = &context.state.waiting;
    let index = waiting.iter().position(|waiting| *waiting == old).unwrap_or_default();
    if !planted(Mutant::ReplacedStays) {
        let reason = entry::REPLACED.to_owned();
        plan.run(RunCommand::End(old.clone(), Ending::Cancelled { reason, forced: false, answers: None }));
    }
    // The place behind all others, once the replaced input has ended.
    let last = waiting.len().saturating_sub(1);
    let index = if planted(Mutant::ReplacementWaitsLast) { last } else { index };
    record_queued(context, &input.run_id, agent_id, index, Some(old), plan);
}

/// Records that an input waits at a place among the waiting turns, or starts at once.
fn record_queued(
    context: &SessionContext,
    run_id: &RunId,
    agent_id: AgentId,
    index: usize,
    replaces: Option<RunId>,
    plan: &mut Plan,
) {
    let fact = input_steer::queued_fact(context, agent_id, index, replaces);
    plan.record(context, fact, RecordContext::run(run_id));
}

/// Decides on the first waiting turn whose agent has left: a turn that addressed the agent fails, any other turn goes
/// to the active agent.
pub(super) fn reassign_waiting_turn(context: &SessionContext, plan: &mut Plan) {
    let Some((run_id, index)) = first_without_agent(context) else { return };
    let addressed = context.inputs.get(&run_id).is_some_and(|open| open.input.agent_id.is_some());
    let agent = context.state.active.clone().filter(|_| !addressed);
    if let Some(agent_id) = agent.filter(|agent| context.state.agents.contains(agent)) {
        record_queued(context, &run_id, agent_id, index, None, plan);
    } else {
        let ending = Ending::failed(Code::AgentNotInSession, "the agent has left this session");
        plan.run(RunCommand::End(run_id, ending));
    }
    plan.input(InputCommand::Reassign);
}

/// Returns the first waiting turn whose agent has left.
fn first_without_agent(context: &SessionContext) -> Option<(RunId, usize)> {
    let state = &context.state;
    let alone = |run_id: &RunId| {
        let agent = context.run_agent(run_id);
        agent.is_some_and(|agent| !state.agents.contains(agent) && !state.is_leaving(agent))
    };
    let index = state.waiting.iter().position(|run_id| alone(run_id) && context.inputs.contains_key(run_id));
    let index = index.filter(|_| context.is_open())?;
    Some((state.waiting.get(index)?.clone(), index))
}
