//! The end of a turn, and its cancel: records the unrecorded text, then the terminal fact; the input is removed from
//! the inbox in the same step (G3).
use crate::id::{InboxPosition, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::{Order, StopReason};
use crate::protocol::entry::{Fact, RunFact};
use crate::protocol::json::Json;
use crate::protocol::refusal::Code;
use crate::session::attempt::Attempt;
use crate::session::command::{ClosedTurn, PlacedControl, RunCommand};
use crate::session::context::SessionContext;
use crate::session::ending::Ending;
use crate::session::outbox::{EndedInput, Output};
use crate::session::plan::{FactSource, Plan, RecordContext};
use crate::session::state::RunPhase;
use crate::session::text_hash::TextHash;
use crate::time::Mono;

/// Decides on the end of a turn. The terminal fact is decided once the turn's text is recorded.
pub(super) fn end(context: &SessionContext, attempt: &mut Attempt, run_id: RunId, ending: Ending, plan: &mut Plan) {
    if !context.inputs.contains_key(&run_id) {
        return;
    }
    if let Some(live) = attempt.live_mut().filter(|live| live.run_id == run_id) {
        live.show_text(context.now, plan);
        if !planted(Mutant::TailUnsaved) {
            live.save_text(context, plan);
        }
    }
    plan.run(RunCommand::RecordEnd(run_id, ending));
}

/// Records the end of a turn.
pub(super) fn record_end(context: &SessionContext, attempt: &Attempt, run_id: RunId, ending: Ending, plan: &mut Plan) {
    let Some(open_input) = context.inputs.get(&run_id) else { return };
    let Some(run) = context.state.runs.get(&run_id) else { return };
    let ends = Some(EndedInput {
        position: open_input.position,
        run_id: run_id.clone(),
        taken: open_input.taken_at,
        strategy: ending.applied_strategy(open_input.input.strategy),
    });
    let is_live = attempt.live_run(&run_id).is_some();
    let was_running = is_live || context.state.running.as_ref() == Some(&run_id);
    let number = run.attempt;
    let (source, is_completed) = match &ending {
        Ending::Completed { .. } => (FactSource::Agent, true),
        Ending::Failed { .. } | Ending::Cancelled { .. } | Ending::Steered { .. } => (FactSource::Gateway, false),
    };
    let stop = run.agent.clone().filter(|_| run.resume.is_some() && ending.may_still_run(is_live));
    if let (true, Some(agent_id)) = (is_completed, run.agent.clone()) {
        let fact = Fact::Run(RunFact::AgentDone { agent_id, attempt: number });
        plan.record(context, fact, RecordContext::agent(&run_id));
    }
    let (fact, answers) = terminal_fact(attempt, ending, number, run.saved);
    plan.record(context, fact, RecordContext { source, ends, answers, ..RecordContext::run(&run_id) });
    plan.forget_input(&run_id);
    plan.drop_steer(&run_id);
    plan.run(RunCommand::Close(ClosedTurn { run_id, attempt: number, is_completed, was_running, stop }));
}

fn terminal_fact(attempt: &Attempt, ending: Ending, number: u32, text_bytes: u64) -> (Fact, Option<InboxPosition>) {
    match ending {
        Ending::Completed { stop: stop_reason, usage } => {
            let live = attempt.live();
            let text_sha256 = live.map_or_else(String::new, |live| live.text.sha256());
            let text_bytes = live.map_or(text_bytes, |live| live.text.len());
            let host_run_id = None;
            let attempt = number;
            (Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, text_sha256, usage, host_run_id }), None)
        }
        Ending::Failed { code, message, agent_code, retry_after_ms, agent_body } => {
            let fact = Fact::Run(RunFact::Failed {
                attempt: number,
                code,
                message,
                agent_code,
                retry_after_ms,
                agent_body,
                text_bytes,
            });
            (fact, None)
        }
        Ending::Cancelled { reason, forced, answers } => {
            (Fact::Run(RunFact::Cancelled { attempt: number, reason, forced, text_bytes }), answers)
        }
        Ending::Steered { host } => {
            let attempt = number;
            let stop_reason = StopReason::Steered;
            let text_sha256 = TextHash::default().hex();
            let usage = None;
            let host_run_id = Some(host);
            (Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, text_sha256, usage, host_run_id }), None)
        }
    }
}

/// Sends the orders that stop the attempt of a turn whose end is recorded.
pub(super) fn stop_attempt(context: &SessionContext, attempt: &mut Attempt, turn: ClosedTurn, plan: &mut Plan) {
    let ClosedTurn { run_id, attempt: number, is_completed, was_running, stop } = turn;
    if let Some(live) = attempt.live_run(&run_id).filter(|_| !is_completed) {
        let drop = Output::Order(Order::Drop { run_id: run_id.clone(), attempt: number });
        if live.is_ordered {
            plan.send(drop);
        } else {
            // The drop must not precede the order itself, which still waits for its fact.
            plan.send_at(live.start_seq, drop);
        }
    }
    if let Some(agent_id) = stop {
        // The stop waits for the fact: before the fact is durable another owner may still resume the attempt.
        let tenant = context.key.tenant.clone();
        let epoch = context.token.epoch;
        plan.send_after(Output::Order(Order::Stop { tenant, agent_id, run_id, attempt: number, epoch }));
    }
    if was_running {
        *attempt = Attempt::None;
    }
}

/// Stops a turn of a closing session: the running turn is cancelled, a waiting turn ends at once.
pub(super) fn stop(context: &SessionContext, attempt: &mut Attempt, run_id: RunId, plan: &mut Plan) {
    if context.state.running.as_ref() == Some(&run_id) {
        return cancel(context, attempt, run_id, "session_close", None, plan);
    }
    let ending = Ending::failed(Code::SessionClosed, "the session was closed");
    plan.run(RunCommand::End(run_id, ending));
}

/// Cancels a turn in any phase (RX-6). Repeating the cancel changes nothing (ST-11).
pub(super) fn cancel(
    context: &SessionContext,
    attempt: &mut Attempt,
    run_id: RunId,
    reason: &str,
    by: Option<PlacedControl>,
    plan: &mut Plan,
) {
    let answers = by.as_ref().map(|(position, _)| *position);
    let running = context.state.running.as_ref() == Some(&run_id);
    if running && context.is_cancelling(&run_id) {
        if let Some((position, control)) = by {
            plan.answer_without_fact(position, &control);
        }
        return;
    }
    let spared = planted(Mutant::CancelSkipsQueued) && !running && context.state.waiting.contains(&run_id);
    if running && attempt.live().is_some() {
        let wait = context.run_agent(&run_id).map(|agent| context.directory.policy(agent).cancel_ack);
        let wait = wait.unwrap_or_default();
        let deadline_ms = context.now.store.after(wait);
        let request_id = by.as_ref().and_then(|(_, control)| control.request_id.clone());
        let fact = Fact::Run(RunFact::Cancelling { reason: reason.to_owned(), deadline_ms, request_id });
        plan.record(context, fact, RecordContext { answers, ..RecordContext::run(&run_id) });
        let number = context.state.runs.get(&run_id).map_or(0, |run| run.attempt);
        let epoch = context.ordering_epoch(&run_id, number);
        let tenant = context.key.tenant.clone();
        plan.send_after(Output::Order(Order::Cancel { tenant, run_id, attempt: number, epoch }));
        attempt.start_cancel(context.now, wait);
    } else if !spared {
        let ending = Ending::Cancelled { reason: reason.to_owned(), forced: false, answers };
        plan.run(RunCommand::End(run_id, ending));
    }
    if let Some((_, control)) = by {
        plan.answer_with_fact(&control);
    }
}

/// Ends a cancelling turn whose owner was lost, since its agent's connection is lost too.
pub(super) fn cancel_orphan(context: &SessionContext, run_id: &RunId, plan: &mut Plan) {
    let phase = context.state.runs.get(run_id).map(|run| run.phase.clone());
    let Some(RunPhase::Cancelling { reason, .. }) = phase else { return };
    plan.run(RunCommand::End(run_id.clone(), Ending::Cancelled { reason, forced: false, answers: None }));
}

/// Handles the end of the agent's answer. Inputs that were sent and not answered may be part of the answer: the run
/// waits for the agent's answers to them, so that an input that was taken is not asked again (ST-9).
pub(super) fn finish(
    context: &SessionContext,
    attempt: &mut Attempt,
    stop: StopReason,
    usage: Option<Json>,
    plan: &mut Plan,
) {
    if let Some(live) = attempt.live_mut() {
        live.steers.outcome = Some((stop, usage));
        let least = context.now.mono + limits::STEER_ACK_AFTER_END_MIN;
        live.steers.sent.values_mut().for_each(|due| *due = (*due).max(least));
    }
    if planted(Mutant::SteerUnawaited) {
        return finish_now(attempt, plan);
    }
    finish_if_answered(context, attempt, plan);
}

/// Ends a run whose agent has finished, once no answer is awaited any more.
pub(super) fn finish_if_answered(context: &SessionContext, attempt: &mut Attempt, plan: &mut Plan) {
    let Some(live) = attempt.live().filter(|live| live.steers.is_finishing()) else { return };
    let unanswered = |run_id: &RunId| {
        let run = context.state.runs.get(run_id);
        run.and_then(|run| run.steered.as_ref()).is_some_and(|steered| steered.outcome.is_none())
    };
    let awaited = |(run_id, due): (&RunId, &Mono)| *due > context.now.mono && unanswered(run_id);
    if !live.steers.sent.iter().any(awaited) {
        finish_now(attempt, plan);
    }
}

fn finish_now(attempt: &mut Attempt, plan: &mut Plan) {
    let Some(live) = attempt.live_mut() else { return };
    if let Some((stop, usage)) = live.steers.outcome.take() {
        plan.run(RunCommand::End(live.run_id.clone(), Ending::Completed { stop, usage }));
    }
}
