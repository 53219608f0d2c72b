//! Checks G3 and SR-T11: in the log, each next change of a session's members must be valid.
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{AgentId, EventId};
use turnway_core::protocol::entry::{Entry, Fact, MemberFact};
use turnway_core::time::Millis;

/// Member changes of one session so far.
#[derive(Debug, Default)]
pub(crate) struct MemberHistory {
    /// Open changes: the agent, and whether it joins.
    open: BTreeMap<EventId, (AgentId, bool)>,
    /// Time by which each change must be done.
    deadlines: BTreeMap<EventId, Millis>,
    ended: BTreeSet<EventId>,
    /// Time of the last fact.
    last: Millis,
}

impl MemberHistory {
    /// Returns a change that is still open, if any.
    pub(super) fn unsettled(&self) -> Option<&AgentId> {
        self.open.values().map(|(agent, _)| agent).next()
    }

    /// Checks that an agent which is being removed gets no new run.
    pub(super) fn asks(&self, agent: &AgentId) {
        let leaves = self.open.values().any(|(who, comes)| who == agent && !comes);
        assert!(!leaves, "SR-D5: who is to leave is asked nothing new: {agent}");
    }

    /// Checks the next fact. `speaks`: agent of the open run.
    pub(super) fn take(&mut self, entry: &Entry, speaks: Option<&AgentId>) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "everything else is no change of members")]
        match &entry.fact {
            Fact::Member(MemberFact::Adding(asked) | MemberFact::Removing(asked)) => {
                let comes = matches!(entry.fact, Fact::Member(MemberFact::Adding(_)));
                assert_eq!(asked.tx_id, entry.id, "SR-T13: a change has the name of its first fact");
                assert!(!self.ended.contains(&asked.tx_id), "G3: a change begins once");
                let other = self.open.values().find(|(agent, _)| *agent == asked.agent_id);
                assert!(other.is_none(), "G3: one change of a member at a time: {}", asked.agent_id);
                self.open.insert(asked.tx_id, (asked.agent_id.clone(), comes));
                self.deadlines.insert(asked.tx_id, asked.deadline_ms);
            }
            Fact::Member(MemberFact::Added(done)) => {
                if let Some((agent, comes)) = self.open.remove(&done.tx_id) {
                    assert!(comes && agent == done.agent_id, "G3: who comes is who was to come: {agent}");
                }
                self.in_time(done.tx_id, entry.time);
                self.ends(done.tx_id);
            }
            Fact::Member(MemberFact::Removed(done)) => {
                let open = self.open.remove(&done.tx_id);
                let (agent, comes) = open.expect("SR-D12: nobody leaves who was not to leave");
                assert!(!comes && agent == done.agent_id, "G3: who leaves is who was to leave: {agent}");
                assert_ne!(speaks, Some(&agent), "SR-T11: who speaks is stopped before it has left");
                self.in_time(done.tx_id, entry.time);
                self.ends(done.tx_id);
            }
            Fact::Member(MemberFact::AddFailed(failed) | MemberFact::RemoveFailed(failed)) => {
                self.open.remove(&failed.tx_id);
                self.ends(failed.tx_id);
            }
            _ => {}
        }
        self.last = entry.time;
        let chain = self.ended.iter().chain(self.open.keys());
        let named = chain.into_iter().any(|tx| *entry.correlation_id == *tx.to_string());
        let of_members = entry.fact.name().starts_with("agent.add") || entry.fact.name().starts_with("agent.rem");
        assert!(named || !of_members, "SR-T13: every fact of a change names it: {}", entry.fact.name());
    }

    fn in_time(&self, tx_id: EventId, at: Millis) {
        // The time of a fact is raised to that of the previous fact if the writer's clock is behind; then the time
        // proves nothing.
        let late = at > self.last && self.deadlines.get(&tx_id).is_some_and(|deadline| *deadline <= at);
        assert!(!late, "SR-D8: what is not done in time has failed");
    }

    fn ends(&mut self, tx_id: EventId) {
        assert!(self.ended.insert(tx_id), "G3: a change ends once");
    }
}
