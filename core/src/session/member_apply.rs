//! Applies the facts of members to the state. Called by `apply`.
use crate::protocol::entry::MemberFact;
use crate::session::handover_state::PendingJoin;
use crate::session::member_state::{MemberStep, PendingMemberChange, REMOVAL_TRIGGER};
use crate::session::state::State;

/// Applies a fact of a member.
pub(super) fn apply(state: &mut State, fact: &MemberFact) {
    match fact {
        MemberFact::Switched { to, trigger, .. } => {
            state.active = Some(to.clone());
            if trigger != REMOVAL_TRIGGER {
                state.clear_removed_active();
            }
            state.handovers.mark_switched();
        }
        MemberFact::Adding(request) => {
            let step = MemberStep::Adding { activate: request.activate };
            state.changes.insert(request.agent_id.clone(), PendingMemberChange::new(request, step));
            if let Some(id) = request.handover_id {
                let joining = PendingJoin { tx_id: request.tx_id, request_id: request.request_id.clone() };
                state.handovers.wait_for_member(id, joining);
            }
        }
        MemberFact::Added(done) => {
            state.end_change(&done.agent_id, done.tx_id);
            state.insert_member(state.agents.len(), &done.agent_id, done.member);
        }
        MemberFact::Removing(request) => {
            let agent = &request.agent_id;
            let Some((index, member)) = state.remove_member(agent) else { return };
            let active = state.active.as_ref() == Some(agent);
            let step = MemberStep::Removing { index: u32::try_from(index).unwrap_or(u32::MAX), active, member };
            state.changes.insert(agent.clone(), PendingMemberChange::new(request, step));
        }
        MemberFact::Removed(done) => {
            state.end_change(&done.agent_id, done.tx_id);
            state.handovers.forget_member(&done.agent_id);
        }
        MemberFact::AddFailed(failed) | MemberFact::RemoveFailed(failed) => {
            // The member stays, as if the removal was never requested (RX-9).
            let step = state.end_change(&failed.agent_id, failed.tx_id);
            if let Some(MemberStep::Removing { index, active, member }) = step {
                let index = usize::try_from(index).unwrap_or(usize::MAX);
                state.insert_member(index, &failed.agent_id, member);
                if active {
                    state.active = Some(failed.agent_id.clone());
                }
            }
        }
    }
}
