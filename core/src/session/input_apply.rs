//! Applies the facts of inputs to the state. Called by `apply`.
use crate::id::RunId;
use crate::planted::{Planted, planted};
use crate::protocol::entry::{Entry, InputFact};
use crate::session::state::{Run, State};

/// Applies a fact of an input.
pub(super) fn apply(state: &mut State, run_id: &RunId, entry: &Entry, fact: &InputFact) {
    match fact {
        InputFact::UserMessage { message_id, request_id, user, origin, .. } => {
            if let Some(origin) = origin {
                state.deliveries.add_origin(run_id, origin);
                if let Some(decision) = &origin.decision {
                    state.deliveries.record_decision(decision);
                }
                if origin.task.is_none() {
                    state.deliveries.lift_suppression(&origin.conversation);
                }
            }
            if origin.is_none() || planted(Planted::MirrorTakesAnswers) {
                state.deliveries.begin_mirrored(run_id);
            }
            let origin = (user.clone(), message_id.clone(), request_id.clone());
            let run = Run::new_waiting(state.tail.seq, entry.id, origin);
            state.runs.insert(run_id.clone(), Box::new(run));
        }
        InputFact::Admitted { agent_id, strategy, position, host_run_id, replaces } => {
            match replaces {
                Some(_) => state.place_replacement(run_id, position.unwrap_or_default()),
                None => state.place_admitted(run_id, *strategy, host_run_id.as_ref()),
            }
            if let Some(run) = state.runs.get_mut(run_id) {
                run.agent = Some(agent_id.clone());
            }
        }
        InputFact::Gathered { host_run_id } => state.gather(run_id, host_run_id),
        InputFact::SteerAcked { outcome, .. } => {
            if let Some(steered) = state.runs.get_mut(run_id).and_then(|run| run.steered.as_mut()) {
                steered.outcome = Some(*outcome);
            }
        }
    }
}
