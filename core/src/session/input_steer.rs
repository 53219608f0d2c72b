//! Steering: inputs that are handed to an agent while it answers another one (ST-7 to ST-9). A steered input stays in
//! the inbox until its host run has ended; accepted ones end with that run, all others become turns of their own.
//! Both follow from the log alone, so the next owner can finish what a lost owner has started.
use crate::id::{AgentId, MessageId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::Order;
use crate::protocol::entry::{Admission, Fact, InputFact};
use crate::protocol::input::{Input, Strategy};
use crate::protocol::steer::{Steer, SteerOutcome};
use crate::session::attempt::Attempt;
use crate::session::command::{InputCommand, RunCommand};
use crate::session::context::SessionContext;
use crate::session::ending::Ending;
use crate::session::input_state::{Rank, SteeredInput};
use crate::session::outbox::Output;
use crate::session::plan::{Plan, RecordContext};
use crate::session::state::RunPhase;

/// Returns the run that takes this input, if one can. An input with earlier messages is always a turn: an agent that
/// is answering has no use for another history.
pub(super) fn host_of(context: &SessionContext, attempt: &Attempt, input: &Input, agent: &AgentId) -> Option<RunId> {
    if input.strategy != Strategy::Steer || input.history.is_some() {
        return None;
    }
    let state = &context.state;
    let host = state.running.as_ref()?;
    let run = state.runs.get(host)?;
    let takes = run.agent.as_ref() == Some(agent)
        && context.directory.policy(agent).steer
        && matches!(run.phase, RunPhase::Routing | RunPhase::Running)
        && !state.is_leaving(agent);
    let ending = attempt.live().is_some_and(|live| live.steers.is_finishing());
    // Two users may use the same message id; an agent answers by that id.
    let named = |other: &RunId| state.runs.get(other).is_some_and(|other| other.message_id == input.message_id);
    let twice = state.steered_inputs().iter().any(|(other, _)| named(other));
    (takes && !ending && !twice).then(|| host.clone())
}

/// Returns the fact that an input waits at a place among the waiting turns, or starts at once.
pub(super) fn queued_fact(context: &SessionContext, agent_id: AgentId, index: usize, replaces: Option<RunId>) -> Fact {
    let ahead = index + usize::from(context.state.running.is_some());
    let position = u32::try_from(ahead).ok().filter(|ahead| *ahead > 0);
    let strategy = if ahead == 0 { Admission::Run } else { Admission::Queued };
    Fact::Input(InputFact::Admitted { agent_id, strategy, position, host_run_id: None, replaces })
}

/// Decides on every steered input, one after the other.
pub(super) fn settle_all(context: &SessionContext, plan: &mut Plan) {
    for (run_id, steered) in context.state.steered_inputs() {
        plan.input(InputCommand::SettleSteer(run_id, steered));
    }
}

/// Decides on the follow-ups for a steered input after any change.
pub(super) fn settle(
    context: &SessionContext,
    attempt: &mut Attempt,
    run_id: &RunId,
    steered: SteeredInput,
    plan: &mut Plan,
) {
    if !context.inputs.contains_key(run_id) {
        return;
    }
    let open = context.state.runs.contains_key(&steered.host);
    match (open, steered.outcome) {
        (_, Some(SteerOutcome::Refused)) => requeue(context, run_id, plan),
        (false, Some(SteerOutcome::Accepted)) if !planted(Mutant::SteerTwice) => {
            plan.run(RunCommand::End(run_id.clone(), Ending::Steered { host: steered.host }));
        }
        (false, _) if planted(Mutant::SteerLost) => {
            plan.run(RunCommand::End(run_id.clone(), Ending::Steered { host: steered.host }));
        }
        (false, _) => requeue(context, run_id, plan),
        (true, Some(SteerOutcome::Accepted)) => {}
        (true, None | Some(SteerOutcome::Pending)) => send_steer(context, attempt, run_id, &steered.host, plan),
    }
}

/// Makes an input that was not taken the next turn (ST-9).
fn requeue(context: &SessionContext, run_id: &RunId, plan: &mut Plan) {
    if !context.is_open() {
        return plan.run(RunCommand::Stop(run_id.clone()));
    }
    let Some(run) = context.state.runs.get(run_id) else { return };
    let Some(agent_id) = run.agent.clone() else { return };
    plan.drop_steer(run_id);
    let index = context.state.waiting_index(Rank::Returned, run.first);
    let fact = queued_fact(context, agent_id, index, None);
    plan.record(context, fact, RecordContext::run(run_id));
}

/// Sends an input to the agent, once in each attempt and by each owner.
fn send_steer(context: &SessionContext, attempt: &mut Attempt, run_id: &RunId, host: &RunId, plan: &mut Plan) {
    let Some(live) = attempt.live_mut().filter(|live| live.run_id == *host) else { return };
    let epoch = context.ordering_epoch(host, live.attempt);
    let Some(open_input) = context.inputs.get(run_id) else { return };
    let Some(agent_id) = context.run_agent(host).cloned() else { return };
    let gone = live.steers.is_finishing() || context.is_cancelling(host) || !live.steers.agent_reported;
    if gone || live.steers.sent.contains_key(run_id) {
        return;
    }
    let due = context.now.mono + limits::STEER_ACK_TIMEOUT;
    live.steers.sent.insert(run_id.clone(), due);
    // The agent has to answer this first: the silence timeout of the run counts from then on.
    live.restart_silence(due, live.silence);
    let input = &open_input.input;
    let steer = Steer {
        key: context.key.clone(),
        run_id: host.clone(),
        attempt: live.attempt,
        epoch,
        agent_id,
        turn_id: run_id.clone(),
        user: input.user.clone(),
        message_id: input.message_id.clone(),
        message: input.message.clone(),
        actions: context.state.actions.context_for(host),
        traceparent: input.traceparent.clone(),
    };
    let order = Output::Order(Order::Steer(Box::new(steer)));
    if planted(Mutant::SteerEarly) {
        plan.send(order);
    } else {
        plan.send_after(order);
    }
}

/// Handles an agent's answer to a steered input. A final answer stays; only `pending` may be followed by another.
pub(super) fn handle_ack(
    context: &SessionContext,
    attempt: &Attempt,
    host: &RunId,
    message_id: &MessageId,
    outcome: SteerOutcome,
    plan: &mut Plan,
) {
    let named = |(run_id, steered): &(RunId, SteeredInput)| {
        let run = context.state.runs.get(run_id);
        steered.host == *host && run.is_some_and(|run| run.message_id == *message_id)
    };
    let found = context.state.steered_inputs().into_iter().find(named);
    let known_outcome = found.as_ref().and_then(|(_, steered)| steered.outcome);
    let (Some((run_id, _)), Some(live)) = (found, attempt.live()) else {
        plan.counts.late_reports += 1;
        return;
    };
    let given = live.steers.sent.contains_key(&run_id);
    if !given || known_outcome.is_some_and(|known_outcome| known_outcome.is_final() || known_outcome == outcome) {
        plan.counts.late_reports += 1;
        return;
    }
    let Some(agent_id) = context.run_agent(host).cloned() else { return };
    let host_run_id = host.clone();
    let attempt = live.attempt;
    let fact = Fact::Input(InputFact::SteerAcked { agent_id, host_run_id, attempt, outcome });
    plan.record(context, fact, RecordContext::agent(&run_id));
}
