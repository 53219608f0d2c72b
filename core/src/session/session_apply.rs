//! Applies the facts of the session itself to the state. Called by `apply`.
use crate::protocol::entry::SessionFact;
use crate::session::action_state::Actions;
use crate::session::state::{SessionPhase, State};
use crate::time::Millis;

/// Applies a fact of the session.
pub(super) fn apply(state: &mut State, time: Millis, fact: &SessionFact) {
    match fact {
        SessionFact::Opened { user, agents, active_agent, .. } => {
            state.phase = SessionPhase::Open;
            state.user = Some(user.clone());
            state.set_members(time, agents);
            state.active = Some(active_agent.clone());
        }
        SessionFact::Closing { .. } => state.phase = SessionPhase::Closing,
        SessionFact::Closed { .. } => {
            state.phase = SessionPhase::Closed;
            state.handovers.given = None;
            state.actions = Actions::default();
        }
        SessionFact::Notice { .. } | SessionFact::Labelled { .. } => {}
    }
}
