//! State of a session's members (scenarios B, D and E). `member_apply`, `session_apply` and `run_apply` change it.
use crate::id::{AgentId, EventId, RequestId, RunId};
use crate::protocol::member::{Member, MemberChangeRequested};
use crate::session::state::State;
use crate::shrink::Shrink;
use crate::time::Millis;

/// The trigger of a switch that a removal causes, and of the switch that reverts it.
pub(super) const REMOVAL_TRIGGER: &str = "remove_agent";

/// The kind of a change of members (SR-T11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberStep {
    /// The agent is being added.
    Adding {
        /// True if the agent also becomes active.
        activate: bool,
    },
    /// The agent is being removed, and gets no new inputs.
    Removing {
        /// The agent's index among the members before.
        index: u32,
        /// True if the agent was active, and no other agent was chosen since.
        active: bool,
        /// The agent's record.
        member: Member,
    },
}

/// An open change of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingMemberChange {
    /// The transaction (SR-T13).
    pub tx_id: EventId,
    pub step: MemberStep,
    /// In the words of the user that requested it.
    pub reason: Option<String>,
    pub request_id: Option<RequestId>,
    /// Time at which the change has failed at the latest.
    pub deadline: Millis,
}

impl PendingMemberChange {
    pub(super) fn new(request: &MemberChangeRequested, step: MemberStep) -> Self {
        Self {
            tx_id: request.tx_id,
            step,
            reason: request.reason.clone(),
            request_id: request.request_id.clone(),
            deadline: request.deadline_ms,
        }
    }
}

impl State {
    pub(super) fn set_members(&mut self, now: Millis, agents: &[AgentId]) {
        let known = |agent| self.member(agent).unwrap_or(Member { since_ms: now, ..Member::default() });
        self.members = agents.iter().map(known).collect();
        self.agents = agents.to_vec();
    }

    /// Returns the record of a member.
    pub fn member(&self, agent: &AgentId) -> Option<Member> {
        self.members.get(self.index_of(agent)?).copied()
    }

    fn index_of(&self, agent: &AgentId) -> Option<usize> {
        self.agents.iter().position(|member| member == agent)
    }

    pub(super) fn insert_member(&mut self, index: usize, agent: &AgentId, member: Member) {
        match self.index_of(agent).and_then(|index| self.members.get_mut(index)) {
            Some(known) => *known = member,
            None => {
                self.agents.insert(index.min(self.agents.len()), agent.clone());
                self.members.insert(index.min(self.members.len()), member);
            }
        }
    }

    pub(super) fn remove_member(&mut self, agent: &AgentId) -> Option<(usize, Member)> {
        let index = self.index_of(agent)?;
        self.agents.remove(index);
        (index < self.members.len()).then(|| (index, self.members.remove(index)))
    }

    /// Returns whether an agent is being removed: it is still in the state, but gets no new inputs.
    pub(super) fn is_leaving(&self, agent: &AgentId) -> bool {
        self.changes.get(agent).is_some_and(|change| matches!(change.step, MemberStep::Removing { .. }))
    }

    /// Counts a turn that its agent has completed.
    pub(super) fn count_turn(&mut self, run_id: &RunId) {
        let agent = self.runs.get(run_id).and_then(|run| run.agent.as_ref());
        let index = agent.and_then(|agent| self.index_of(agent));
        if let Some(member) = index.and_then(|index| self.members.get_mut(index)) {
            (member.turns, member.last_seq) = (member.turns + 1, self.tail.seq);
        }
    }

    /// Records that an agent was chosen as active: a failed removal does not revert that.
    pub(super) fn clear_removed_active(&mut self) {
        for change in self.changes.values_mut() {
            if let MemberStep::Removing { active, .. } = &mut change.step {
                *active = false;
            }
        }
    }

    pub(super) fn end_change(&mut self, agent: &AgentId, tx_id: EventId) -> Option<MemberStep> {
        self.changes.get(agent).filter(|change| change.tx_id == tx_id)?;
        let step = self.changes.remove(agent).map(|change| change.step);
        self.changes.shrink_if_empty();
        step
    }
}
