//! Applies the facts of handovers to the state. Called by `apply`.
use crate::protocol::entry::{Entry, HandoverFact};
use crate::session::state::State;

/// Applies a fact of a handover.
pub(super) fn apply(state: &mut State, entry: &Entry, fact: &HandoverFact) {
    match fact {
        HandoverFact::Requested(requested) => {
            let Some(run_id) = &entry.run_id else { return };
            state.handovers.add(run_id, requested);
            if let Some(resume) = state.runs.get_mut(run_id).and_then(|run| run.resume.as_mut()) {
                resume.advance_mark(requested.mark.as_ref());
            }
        }
        HandoverFact::Confirmed(done) => {
            let switched = state.active.as_ref() == Some(&done.to);
            state.handovers.confirm(done.handover_id, switched);
        }
        HandoverFact::Rejected(ended) => state.handovers.reject(ended.handover_id, ended.why),
    }
}
