//! Starting attempts: the first of a turn, a further one after its owner was lost, or the same one resumed under
//! another owner (ownership.md §2.5, §2.6).
use crate::id::RunId;
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::{AgentFailure, ErrorResponse, Invoke, OnOwnerLoss, Order, Resume};
use crate::protocol::entry::{Fact, RunFact};
use crate::protocol::refusal::Code;
use crate::session::attempt::{Attempt, LiveAttempt, LossCause};
use crate::session::command::RunCommand;
use crate::session::context::SessionContext;
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::plan::{Plan, RecordContext};
use crate::session::run_end::cancel_orphan;
use crate::session::run_gather;
use crate::session::run_permit::{Permits, next_turn};
use crate::session::state::RunPhase;
use crate::session::text::AttemptText;
use std::time::Duration;

/// The message for a turn that may not be repeated.
const OWNER_LOST_MESSAGE: &str = "the node that ran this turn was lost";

/// Starts the next turn, or continues one that a lost owner had started.
pub(super) fn begin_next_turn(context: &SessionContext, attempt: &mut Attempt, permits: &mut Permits, plan: &mut Plan) {
    let Some(run_id) = next_turn(context, attempt) else { return };
    let is_begun = context.state.running.is_some();
    if is_begun && context.is_cancelling(&run_id) {
        return cancel_orphan(context, &run_id, plan);
    }
    let is_early = || run_gather::starts_at(context, &run_id).is_some();
    let is_held_up = !is_begun && (is_agent_leaving(context, &run_id) || is_early());
    if is_held_up || !permits.check_permit(context, &run_id) || !permits.check_content(context, &run_id, plan) {
        return;
    }
    let gathered = run_gather::gathered_inputs(context, &run_id);
    if !gathered.iter().all(|run_id| permits.check_content(context, run_id, plan)) {
        return;
    }
    if is_begun {
        take_over(context, attempt, &run_id, LossCause::Owner, plan);
    } else {
        run_gather::record_gathered(context, &run_id, plan);
        start_attempt(context, &run_id, LossCause::Owner, plan);
    }
}

/// Continues a turn that another owner, or an earlier one here, had started, or whose agent has lost its connection;
/// or ends the turn.
fn take_over(context: &SessionContext, attempt: &mut Attempt, run_id: &RunId, what: LossCause, plan: &mut Plan) {
    let Some(run) = context.state.runs.get(run_id).filter(|_| context.inputs.contains_key(run_id)) else {
        return;
    };
    if matches!(run.phase, RunPhase::Cancelling { .. }) {
        return cancel_orphan(context, run_id, plan);
    }
    let lost = match context.agent_policy(run).on_owner_loss {
        OnOwnerLoss::Retry => false,
        OnOwnerLoss::RetryIfSilent => run.spoke,
        OnOwnerLoss::Fail => true,
        OnOwnerLoss::Resume => run.spoke && run.resume.is_none(),
    };
    let tries = run.owner_count();
    let failed = if lost && !planted(Mutant::AlwaysRetry) {
        Some(match what {
            LossCause::Owner | LossCause::Turn => (Code::OwnerLost, OWNER_LOST_MESSAGE),
            LossCause::Agent => (Code::AgentUnavailable, "the connection to the agent was lost"),
        })
    } else if tries >= limits::TURN_ATTEMPTS_MAX && !planted(Mutant::NoPoison) {
        Some(match what {
            LossCause::Owner | LossCause::Turn => {
                (Code::PoisonTurn, "the turn was given up: each node that ran it was lost")
            }
            LossCause::Agent => {
                (Code::AgentUnavailable, "the turn was given up: the agent's connection was lost in each attempt")
            }
        })
    } else if context.state.run_deadline(run_id, run, context.now.store) <= context.now.store {
        Some((Code::AgentTimeout, "the run exceeded its time limit"))
    } else {
        None
    };
    if let Some((code, why)) = failed {
        return plan.run(RunCommand::End(run_id.clone(), Ending::failed(code, why)));
    }
    if tries < 2 {
        resume_or_restart(context, run_id, what, plan);
    } else {
        *attempt = Attempt::Delayed { at: context.now.mono + limits::TURN_ATTEMPT_WAIT, cause: what };
    }
}

/// Returns whether the turn has to wait because its agent is being removed.
fn is_agent_leaving(context: &SessionContext, run_id: &RunId) -> bool {
    let agent = context.run_agent(run_id);
    agent.is_some_and(|agent| context.state.is_leaving(agent)) && !planted(Mutant::LeaverAsked)
}

/// Returns whether another owner can resume the current attempt.
fn is_resumable(context: &SessionContext, run_id: &RunId) -> bool {
    let run = context.state.runs.get(run_id).filter(|run| run.resume.is_some());
    run.is_some_and(|run| context.agent_policy(run).on_owner_loss == OnOwnerLoss::Resume)
}

/// Resumes the attempt if possible, otherwise starts another.
pub(super) fn resume_or_restart(context: &SessionContext, run_id: &RunId, what: LossCause, plan: &mut Plan) {
    if is_resumable(context, run_id) && !planted(Mutant::ResumeRestarts) {
        resume_attempt(context, run_id, what, plan);
    } else {
        start_attempt(context, run_id, what, plan);
    }
}

/// Records an attempt, then orders it, so that a turn that crashes its process is counted too.
fn start_attempt(context: &SessionContext, run_id: &RunId, after: LossCause, plan: &mut Plan) {
    let Some(run) = context.state.runs.get(run_id).filter(|_| context.inputs.contains_key(run_id)) else {
        return;
    };
    let Some(agent_id) = run.agent.clone() else { return };
    let attempt = run.attempt + 1;
    let request_id = run.request_id.clone();
    let policy = context.agent_policy(run);
    let resumable = policy.on_owner_loss == OnOwnerLoss::Resume;
    let fact = if run.attempt == 0 {
        let deadline_ms = context.now.store.after(policy.run);
        Fact::Run(RunFact::Started { agent_id, attempt, request_id, deadline_ms, resumable })
    } else {
        plan.counts.restarts += 1;
        Fact::Run(RunFact::Restarted { agent_id, attempt, reason: after.reason(), resumable })
    };
    plan.record(context, fact, RecordContext::run(run_id));
    plan.run(RunCommand::Order { run_id: run_id.clone(), resume: None });
}

/// Records that an attempt is resumed, then asks its agent for the part that is not recorded.
fn resume_attempt(context: &SessionContext, run_id: &RunId, after: LossCause, plan: &mut Plan) {
    let Some(run) = context.state.runs.get(run_id) else { return };
    let (Some(agent_id), Some(resume)) = (run.agent.clone(), &run.resume) else { return };
    let from = Resume { after: resume.mark.clone(), saved: run.saved };
    let attempt = run.attempt;
    let reason = after.reason();
    plan.counts.resumed += 1;
    plan.record(context, Fact::Run(RunFact::Resumed { agent_id, attempt, reason }), RecordContext::run(run_id));
    plan.run(RunCommand::Order { run_id: run_id.clone(), resume: Some(from) });
}

/// Orders the attempt that the last fact records.
pub(super) fn order_attempt(
    context: &SessionContext,
    attempt: &mut Attempt,
    run_id: RunId,
    resume: Option<Resume>,
    plan: &mut Plan,
) {
    let (Some(run), Some(taken)) = (context.state.runs.get(&run_id), context.inputs.get(&run_id)) else { return };
    let policy = context.agent_policy(run);
    let input = &taken.input;
    let Some(agent_id) = run.agent.clone() else { return };
    let run_due = context.now.mono_at(context.state.run_deadline(&run_id, run, context.now.store), policy.run);
    let mut live = LiveAttempt::new(&run_id, run.attempt, plan.tail(context), &policy, run_due);
    if let (Some(from), Some(known)) = (&resume, &run.resume) {
        live.text = AttemptText::recorded(run.saved, known.hash.clone());
        live.states = known.states;
        live.repeat_bytes = Some(run.saved.saturating_sub(from.text_offset()));
    }
    let (message, origin) = run_gather::prompt(context, &run_id, input);
    let invoke = Invoke {
        key: context.key.clone(),
        attempt: run.attempt,
        epoch: context.token.epoch,
        agent_id,
        user: input.user.clone(),
        message,
        history: input.history.clone(),
        messages_url: None,
        origin,
        traceparent: input.traceparent.clone(),
        handover: context.state.handovers.context_for(&run_id),
        actions: context.state.actions.context_for(&run_id),
        system_prompt: None,
        run_token: None,
        resume,
        run_id,
    };
    *attempt = Attempt::Live(Box::new(live));
    if planted(Mutant::OrderEarly) {
        plan.send(Output::Order(Order::Invoke(invoke)));
    } else {
        plan.send_after(Output::Order(Order::Invoke(invoke)));
    }
}

/// Handles the answer of an agent that does not know the attempt to be resumed: text that was shown cannot be
/// continued.
pub(super) fn handle_unknown_attempt(context: &SessionContext, attempt: &mut Attempt, run_id: &RunId, plan: &mut Plan) {
    if context.is_draining {
        // The next owner will find out.
        *attempt = Attempt::None;
        return;
    }
    let Some(run) = context.state.runs.get(run_id) else { return };
    if !run.spoke && run.owner_count() < limits::TURN_ATTEMPTS_MAX {
        *attempt = Attempt::None;
        return start_attempt(context, run_id, LossCause::Owner, plan);
    }
    let code = Code::OwnerLost;
    let message = format!("{OWNER_LOST_MESSAGE}, and the agent does not know the run any more");
    plan.run(RunCommand::End(run_id.clone(), Ending::failed(code, message)));
}

/// Handles the loss of the agent's connection during the attempt: the turn is treated as if its owner was lost. Shown
/// text is recorded first, since no other node has it.
pub(super) fn handle_agent_lost(context: &SessionContext, live: &mut LiveAttempt, why: String, plan: &mut Plan) {
    let run_id = live.run_id.clone();
    if !context.state.runs.contains_key(&run_id) {
        return plan.run(RunCommand::End(run_id, Ending::from(AgentFailure::Lost(why))));
    }
    live.show_text(context.now, plan);
    live.save_text(context, plan);
    plan.run(RunCommand::ContinueLost(run_id));
}

/// Continues a turn whose agent has lost its connection, once its text is recorded.
pub(super) fn continue_lost(context: &SessionContext, attempt: &mut Attempt, run_id: &RunId, plan: &mut Plan) {
    *attempt = Attempt::None;
    // While the node drains, the next owner will find out.
    if !context.is_draining {
        take_over(context, attempt, run_id, LossCause::Agent, plan);
    }
}

/// Handles an error response of the agent. A busy agent that says when to ask again is asked again at that time, if
/// its turn may be repeated and has the time left; the agent had sent nothing in this attempt.
pub(super) fn handle_error_response(
    context: &SessionContext,
    attempt: &mut Attempt,
    run_id: &RunId,
    answer: Box<ErrorResponse>,
    plan: &mut Plan,
) {
    let wait = answer.retry_after_ms.filter(|_| answer.is_busy).map(Duration::from_millis);
    let Some(wait) = wait.filter(|wait| may_retry(context, run_id, *wait)) else {
        return plan.run(RunCommand::End(run_id.clone(), Ending::from(AgentFailure::Answered(answer))));
    };
    *attempt = Attempt::None;
    // While the node drains, the next owner will find out.
    if !context.is_draining {
        let wait = if planted(Mutant::BusyAskedAtOnce) { Duration::ZERO } else { wait };
        *attempt = Attempt::Delayed { at: context.now.mono + wait, cause: LossCause::Turn };
    }
}

fn may_retry(context: &SessionContext, run_id: &RunId, wait: Duration) -> bool {
    context.state.runs.get(run_id).is_some_and(|run| {
        let repeatable = context.agent_policy(run).on_owner_loss == OnOwnerLoss::Retry;
        repeatable
            && run.owner_count() < limits::TURN_ATTEMPTS_MAX
            && context.now.store.after(wait) < context.state.run_deadline(run_id, run, context.now.store)
    })
}

/// Leaves a resumable attempt to the next owner at once; other attempts may end here.
pub(super) fn hand_over(context: &SessionContext, attempt: &mut Attempt, plan: &mut Plan) {
    attempt.drop_delayed();
    let resumable = |live: &LiveAttempt| live.cancel_due.is_none() && is_resumable(context, &live.run_id);
    if attempt.live().is_some_and(resumable) {
        suspend(context, attempt, plan);
    }
}

/// Records the text of the attempt, and leaves the attempt to the next owner.
pub(super) fn suspend(context: &SessionContext, attempt: &mut Attempt, plan: &mut Plan) {
    let Some(live) = attempt.live_mut() else { return };
    live.show_text(context.now, plan);
    live.save_text(context, plan);
    let run_id = live.run_id.clone();
    let number = live.attempt;
    let fact = Fact::Run(RunFact::Suspended { attempt: number, reason: "drain".to_owned() });
    plan.record(context, fact, RecordContext::run(&run_id));
    let drop = Output::Order(Order::Drop { run_id, attempt: number });
    if live.is_ordered {
        plan.send(drop);
    } else {
        plan.send_at(live.start_seq, drop);
    }
    plan.run(RunCommand::Leave);
}
