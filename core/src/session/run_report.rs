//! The running turn: the events that its agent reports, its text, and its timers (scenarios A and G).
use crate::id::{AgentEventId, RunId, Seq};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::agent::{AgentEvent, AgentFailure, Order, TextKind};
use crate::protocol::chunk::TextChunk;
use crate::protocol::entry::{Fact, RunFact, Scope};
use crate::protocol::json::Json;
use crate::protocol::refusal::Code;
use crate::session::attempt::{Attempt, LiveAttempt};
use crate::session::command::{ActionCommand, HandoverCommand, InputCommand, RunCommand};
use crate::session::context::SessionContext;
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::plan::{Plan, RecordContext};
use crate::session::state::RunPhase;
use crate::session::{run_end, run_start};
use std::sync::Arc;

/// Returns the failure for an agent whose repeated text differs from what it sent to the previous owner.
fn mismatched_resume() -> Ending {
    let why = "the agent was asked to resume and did not repeat its earlier events";
    Ending::from(AgentFailure::Broken(why.to_owned()))
}

/// Returns the attempt that a report belongs to, if it is the current one; every other report is late.
fn reported_attempt<'a>(attempt: &'a mut Attempt, run_id: &RunId, number: u32) -> Option<&'a mut LiveAttempt> {
    let live = attempt.live_mut().filter(|live| live.run_id == *run_id)?;
    (live.attempt == number || planted(Mutant::AttemptsMixed)).then_some(live)
}

/// Decides on a report of an agent.
pub(super) fn report(
    context: &SessionContext,
    attempt: &mut Attempt,
    (run_id, number): (&RunId, u32),
    event: AgentEvent,
    plan: &mut Plan,
) {
    let Some(live) = reported_attempt(attempt, run_id, number) else {
        plan.counts.late_reports += 1;
        return;
    };
    if live.cancel_due.is_some() && !planted(Mutant::LateOutputWins) {
        return report_while_cancelling(context, run_id, &event, plan);
    }
    if live.steers.is_finishing() && !matches!(event, AgentEvent::Steered { .. } | AgentEvent::Alive) {
        plan.counts.late_reports += 1;
        return;
    }
    (live.sign_due, live.steers.agent_reported) = (context.now.mono + live.silence, true);
    if event.data_bytes() > limits::FACT_DATA_BYTES_MAX {
        return plan.run(RunCommand::End(run_id.clone(), Ending::from(AgentFailure::TooLarge)));
    }
    let again = live.repeat_bytes;
    match event {
        AgentEvent::Acked => handle_ack(context, run_id, plan),
        AgentEvent::Delta { kind: TextKind::Text, text, id } => handle_text(context, live, &text, id, plan),
        AgentEvent::Delta { kind: TextKind::Reasoning, text, id } => handle_reasoning(live, &text, id, plan),
        AgentEvent::State { .. } if live.states >= limits::AGENT_STATES_MAX => plan.counts.late_reports += 1,
        AgentEvent::State { state, detail, id } => handle_state(context, live, (state, detail), id, plan),
        AgentEvent::Done { .. } if again.is_some_and(|bytes| bytes > 0) => {
            plan.run(RunCommand::End(run_id.clone(), mismatched_resume()));
        }
        AgentEvent::Done { stop, usage } => run_end::finish(context, attempt, stop, usage, plan),
        AgentEvent::Steered { message_id, outcome } => {
            plan.input(InputCommand::AckSteer { host: run_id.clone(), message_id, outcome });
        }
        AgentEvent::Handover { request, id } => {
            let Some(mark) = live.finish_request(context, id, plan) else { return };
            plan.handover(HandoverCommand::Request { run_id: run_id.clone(), request, mark });
        }
        AgentEvent::Action { request, id } => {
            let Some(mark) = live.finish_request(context, id, plan) else { return };
            let attempt = live.attempt;
            plan.action(ActionCommand::Request { run_id: run_id.clone(), attempt, request, mark });
        }
        AgentEvent::Subscribed(events) => live.subscribed = events,
        AgentEvent::Alive => {}
        AgentEvent::CancelAcked => plan.counts.late_reports += 1,
        AgentEvent::Failed(AgentFailure::NotKnown) if again.is_some() => {
            run_start::handle_unknown_attempt(context, attempt, run_id, plan);
        }
        AgentEvent::Failed(AgentFailure::Lost(why)) => run_start::handle_agent_lost(context, live, why, plan),
        AgentEvent::Failed(AgentFailure::Answered(answer)) => {
            run_start::handle_error_response(context, attempt, run_id, answer, plan);
        }
        AgentEvent::Failed(failure) => plan.run(RunCommand::End(run_id.clone(), Ending::from(failure))),
    }
}

/// Decides on a report while a cancel is in progress. Only CANCEL_ACK counts, or the end of the stream, which implies
/// it (SR-C7); a completion that crosses the cancel is too late (ST-12).
fn report_while_cancelling(context: &SessionContext, run_id: &RunId, event: &AgentEvent, plan: &mut Plan) {
    match event {
        AgentEvent::CancelAcked | AgentEvent::Done { .. } | AgentEvent::Failed(_) => {
            run_end::cancel_orphan(context, run_id, plan);
        }
        AgentEvent::Steered { message_id, outcome } => {
            let message_id = message_id.clone();
            plan.input(InputCommand::AckSteer { host: run_id.clone(), message_id, outcome: *outcome });
        }
        AgentEvent::Alive => {}
        AgentEvent::Acked
        | AgentEvent::Delta { .. }
        | AgentEvent::State { .. }
        | AgentEvent::Handover { .. }
        | AgentEvent::Subscribed(_)
        | AgentEvent::Action { .. } => plan.counts.late_reports += 1,
    }
}

fn handle_ack(context: &SessionContext, run_id: &RunId, plan: &mut Plan) {
    let Some(run) = context.routing_run(run_id) else { return };
    let (Some(agent_id), attempt) = (run.agent.clone(), run.attempt) else { return };
    plan.record(context, Fact::Run(RunFact::AgentStarted { agent_id, attempt }), RecordContext::agent(run_id));
}

/// Records a state of the agent. If events have ids, the text before it is recorded first, so that the log has the
/// events in their order.
fn handle_state(
    context: &SessionContext,
    live: &mut LiveAttempt,
    (state, detail): (String, Option<Json>),
    id: Option<AgentEventId>,
    plan: &mut Plan,
) {
    // The previous owner left out a state before text that is already recorded, too.
    let Some(mark) = live.finish_request(context, id, plan) else { return };
    live.states += 1;
    let mark = mark.filter(|_| !planted(Mutant::StateUnmarked));
    let fact = Fact::Run(RunFact::State { scope: Scope::Agent, state, detail, mark });
    plan.record(context, fact, RecordContext::agent(&live.run_id));
}

fn handle_text(
    context: &SessionContext,
    live: &mut LiveAttempt,
    piece: &Private<String>,
    id: Option<AgentEventId>,
    plan: &mut Plan,
) {
    let Some(piece) = live.skip_repeated(piece.reveal()) else {
        return plan.run(RunCommand::End(live.run_id.clone(), mismatched_resume()));
    };
    if piece.is_empty() {
        return live.advance_mark(id);
    }
    if context.routing_run(&live.run_id).is_some() {
        // A first piece of text implies the start, though INPUT_ACK is still expected (SR-G5).
        let scope = Scope::Run;
        let state = "RUNNING".to_owned();
        let fact = Fact::Run(RunFact::State { scope, state, detail: None, mark: None });
        plan.record(context, fact, RecordContext::agent(&live.run_id));
    }
    if live.text.len() + piece.len() as u64 > limits::TURN_TEXT_BYTES_MAX as u64 {
        return plan.run(RunCommand::End(live.run_id.clone(), Ending::from(AgentFailure::TooLarge)));
    }
    let show = live.text.push(context.now, piece);
    live.advance_mark(id);
    let first = live.record_before_show && live.text.len() == piece.len() as u64;
    if first || live.text.is_save_due() {
        live.save_text(context, plan);
    }
    if first {
        live.show_after = plan.tail(context);
    }
    if show {
        live.show_text(context.now, plan);
    }
}

fn handle_reasoning(live: &mut LiveAttempt, piece: &Private<String>, id: Option<AgentEventId>, plan: &mut Plan) {
    live.advance_mark(id);
    let offset = live.text.reasoning;
    live.text.reasoning += piece.reveal().len() as u64;
    let run_id = live.run_id.clone();
    let attempt = live.attempt;
    let kind = TextKind::Reasoning;
    let text = Private(Arc::from(piece.reveal()));
    plan.send_at(live.show_after, Output::Chunk(TextChunk { run_id, attempt, offset, kind, text }));
}

/// Lets the agent be read further once recorded text is durable.
pub(super) fn grant_credit(attempt: &mut Attempt, durable: Seq, plan: &mut Plan) {
    let Some(live) = attempt.live_mut() else { return };
    if let Some(upto) = live.text.mark_durable(durable) {
        let run_id = live.run_id.clone();
        let attempt = live.attempt;
        plan.send(Output::Order(Order::Credit { run_id, attempt, upto }));
    }
}

/// Decides on the timers of the attempt that have expired.
pub(super) fn handle_timeout(context: &SessionContext, attempt: &mut Attempt, plan: &mut Plan) {
    let now = context.now;
    match attempt {
        Attempt::None => {}
        Attempt::Delayed { at, .. } if *at > now.mono => {}
        Attempt::Delayed { cause, .. } => {
            let cause = *cause;
            *attempt = Attempt::None;
            if let Some(run_id) = &context.state.running {
                run_start::resume_or_restart(context, run_id, cause, plan);
            }
        }
        Attempt::Live(live) => {
            let save = live.text.save_at;
            if live.text.show_due().is_some_and(|at| at <= now.mono) {
                live.show_text(now, plan);
            }
            if save.is_some_and(|at| at <= now.mono) {
                live.save_text(context, plan);
            }
            check_timeouts(context, live, plan);
        }
    }
}

/// Pauses the silence timeout of the running attempt while the gateway has work of its run in progress: an action, a
/// handover that waits for a decision, text that is not durable yet, or a call of a model. The timeout starts again when
/// the last of these has ended. All of them have deadlines of their own. During a call of a model the time of the whole run
/// stands still, too.
pub(super) fn settle_clocks(context: &SessionContext, attempt: &mut Attempt) {
    let Some(live) = attempt.live_mut() else { return };
    let is_calling = context.state.model_calls.is_calling(&live.run_id) && !planted(Mutant::CallsCountAsSilence);
    let is_routing = context.routing_run(&live.run_id).is_some();
    // Before INPUT_ACK no other work of this attempt is in progress.
    let is_awaiting = is_calling || !is_routing && has_work(context, live);
    if live.is_silence_paused && !is_awaiting {
        let wait = if is_routing { live.input_ack } else { live.silence };
        live.restart_silence(context.now.mono, wait);
    }
    live.is_silence_paused = is_awaiting;
    if live.is_run_paused
        && !is_calling
        && let Some(run) = context.state.runs.get(&live.run_id)
    {
        live.run_due = context.now.mono_at(run.deadline, context.agent_policy(run).run);
    }
    live.is_run_paused = is_calling;
}

/// Returns whether the run waits for work that the gateway has in progress.
fn has_work(context: &SessionContext, live: &LiveAttempt) -> bool {
    let handover = context.state.handovers.open.as_ref().is_some_and(|open| open.run_id == live.run_id);
    let action = context.state.actions.open.values().any(|action| action.run_id == live.run_id);
    handover || action || live.text.has_pending()
}

/// Ends the run if a timeout of the running attempt has expired.
fn check_timeouts(context: &SessionContext, live: &LiveAttempt, plan: &mut Plan) {
    let now = context.now;
    let failed = |code, why: &str| Ending::failed(code, why);
    let ending = match live.cancel_due {
        None if live.steers.is_finishing() => return,
        Some(at) if at > now.mono => return,
        Some(_) => {
            let phase = context.state.runs.get(&live.run_id).map(|run| run.phase.clone());
            let Some(RunPhase::Cancelling { reason, .. }) = phase else { return };
            Ending::Cancelled { reason, forced: true, answers: None }
        }
        None if live.run_end().is_some_and(|at| at <= now.mono) => {
            failed(Code::AgentTimeout, "the run exceeded its time limit")
        }
        None if live.silence_due().is_none_or(|at| at > now.mono) => return,
        None if context.routing_run(&live.run_id).is_some() => {
            failed(Code::RouteTimeout, "the agent did not acknowledge the input in time")
        }
        None => failed(Code::AgentTimeout, "the agent timed out: no event within its silence limit"),
    };
    plan.run(RunCommand::End(live.run_id.clone(), ending));
}
