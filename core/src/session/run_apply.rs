//! Applies the facts of runs to the state. Called by `apply`.
use crate::id::RunId;
use crate::private::Private;
use crate::protocol::entry::{Entry, RunFact, Scope};
use crate::session::delivery_state::OriginEnd;
use crate::session::state::{RunPhase, State};
use crate::shrink::Shrink;

/// Applies a fact of a run.
pub(super) fn apply(state: &mut State, run_id: &RunId, entry: &Entry, fact: &RunFact) {
    let seq = state.tail.seq;
    let run = state.runs.get_mut(run_id);
    match fact {
        RunFact::Started { agent_id, attempt, deadline_ms, resumable, .. } => {
            if let Some(run) = run {
                (run.deadline, run.cause) = (*deadline_ms, entry.id);
                run.begin_attempt(*attempt, seq, *resumable);
                state.waiting.retain(|waiting| waiting != run_id);
                state.running = Some(run_id.clone());
            }
            state.handovers.start_answer(run_id);
            state.handovers.tell_with(agent_id, run_id);
            state.actions.tell_with(agent_id, run_id);
        }
        RunFact::Restarted { attempt, resumable, .. } => {
            if let Some(run) = run {
                run.cause = entry.id;
                run.begin_attempt(*attempt, seq, *resumable);
            }
            state.reset_steers(run_id);
            // A further attempt starts its answer from the beginning.
            state.handovers.start_answer(run_id);
            state.deliveries.start_answer(run_id);
        }
        RunFact::Resumed { .. } => {
            run.into_iter().for_each(|run| (run.cause, run.resumed) = (entry.id, run.resumed + 1));
        }
        RunFact::AgentStarted { .. } | RunFact::State { scope: Scope::Run, .. } => {
            run.into_iter().for_each(|run| run.mark_running());
        }
        RunFact::TextDelta { offset, text, mark, .. } => {
            run.into_iter().for_each(|run| run.apply_text(*offset, text.reveal(), mark.as_ref()));
            state.handovers.append_answer(run_id, text.reveal());
            state.deliveries.append_answer(run_id, text.reveal());
        }
        RunFact::State { scope: Scope::Agent, mark, .. } => {
            run.into_iter().for_each(|run| run.apply_state(mark.as_ref()));
        }
        RunFact::AgentDone { .. } => {}
        RunFact::Suspended { .. } => run.into_iter().for_each(|run| run.excused += 1),
        RunFact::Cancelling { reason, deadline_ms, .. } => {
            let Some(run) = run else { return };
            run.phase = RunPhase::Cancelling { reason: reason.clone(), deadline: *deadline_ms };
        }
        RunFact::Done { host_run_id, .. } => {
            if host_run_id.is_none() {
                state.count_turn(run_id);
            }
            state.deliveries.end_origin(run_id, host_run_id.is_none().then_some(OriginEnd::Answered));
            end_run(state, run_id, true);
        }
        RunFact::Failed { message, .. } => {
            state.deliveries.end_origin(run_id, Some(OriginEnd::Failed { message: Private(message.clone()) }));
            end_run(state, run_id, false);
        }
        RunFact::Cancelled { .. } => {
            state.remove_gathered(run_id);
            state.deliveries.end_origin(run_id, None);
            end_run(state, run_id, false);
        }
    }
}

/// Removes an ended run.
fn end_run(state: &mut State, run_id: &RunId, done: bool) {
    state.runs.remove(run_id);
    state.runs.shrink_if_empty();
    state.waiting.retain(|waiting| waiting != run_id);
    state.running = state.running.take().filter(|running| running != run_id);
    state.handovers.finish_delivery(run_id, done);
    state.handovers.store_answer_tail(run_id);
    state.actions.finish_run(run_id, done);
    state.model_calls.finish_run(run_id, state.time);
}
