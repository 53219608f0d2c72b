//! Applies the facts of calls of models to the state. Called by `apply`.
use crate::protocol::entry::{Entry, ModelFact};
use crate::session::model_state::OpenModelCall;
use crate::session::state::State;

/// Applies a fact of a call.
pub(super) fn apply(state: &mut State, entry: &Entry, fact: &ModelFact) {
    match fact {
        ModelFact::Started(started) => {
            let Some(run_id) = entry.run_id.clone() else { return };
            let is_run_open = state.runs.contains_key(&run_id);
            let call = OpenModelCall {
                run_id,
                agent: started.agent_id.clone(),
                model: started.model.clone(),
                began: entry.time,
                deadline: started.deadline_ms,
            };
            state.model_calls.begin(started.call_id, call, is_run_open);
        }
        ModelFact::Ended(ended) => {
            let Some((run_id, stood_still)) = state.model_calls.end(&ended.end.call_id, entry.time) else { return };
            if let Some(run) = state.runs.get_mut(&run_id) {
                run.deadline = run.deadline.after(stood_still);
            }
        }
    }
}
