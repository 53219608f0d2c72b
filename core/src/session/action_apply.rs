//! Applies the facts of actions to the state. Called by `apply`.
use crate::private::Private;
use crate::protocol::entry::{ActionFact, Entry};
use crate::session::state::State;

/// Applies a fact of an action.
pub(super) fn apply(state: &mut State, entry: &Entry, fact: &ActionFact) {
    let actions = &mut state.actions;
    match fact {
        ActionFact::Requested(requested) => {
            let Some(run_id) = &entry.run_id else { return };
            actions.add(run_id, requested);
            if let Some(resume) = state.runs.get_mut(run_id).and_then(|run| run.resume.as_mut()) {
                resume.advance_mark(requested.mark.as_ref());
            }
        }
        ActionFact::Invoked(invoked) => {
            if let Some(action) = actions.open.get_mut(&invoked.action_id) {
                (action.runner, action.cause) = (Some(invoked.runner_id.clone()), entry.id);
                if action.is_task() {
                    // With the conversation, which the platform has made since the request.
                    action.args = Private(invoked.args.text());
                }
            }
        }
        ActionFact::ProcessSpawned(report) => {
            actions.open.get_mut(&report.action_id).into_iter().for_each(|action| action.spawned = true);
        }
        ActionFact::ProcessProgress(report) => {
            actions.open.get_mut(&report.action_id).into_iter().for_each(|action| action.progress_count += 1);
        }
        ActionFact::SystemEvent(report) => {
            actions.open.get_mut(&report.action_id).into_iter().for_each(|action| action.progress_count += 1);
        }
        ActionFact::Ended(ended) => {
            let action = actions.open.get(&ended.action_id).filter(|_| ended.ok);
            if let Some((run_id, set)) = action.and_then(|action| Some((&action.run_id, action.buttons()?))) {
                state.deliveries.set_buttons(run_id, set);
            }
            actions.end(ended, |run_id| state.runs.contains_key(run_id));
        }
        // The end of the action, which follows, removes it.
        ActionFact::ProcessExited(_) | ActionFact::ProcessCanceled(_) => {}
    }
}
