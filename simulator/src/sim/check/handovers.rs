//! Checks SR-T12 and SR-F3: in the log, a handover is requested, decided once, followed by the switch, and passed
//! to the agent.
use super::ledger::StoreRecord;
use std::collections::BTreeSet;
use turnway_core::id::{AgentId, EventId, RunId};
use turnway_core::protocol::agent::Invoke;
use turnway_core::protocol::entry::{Entry, Fact, HandoverFact, InputFact, MemberFact, RunFact, SessionFact};
use turnway_core::time::Millis;

/// Handovers of one session so far.
#[derive(Debug, Default)]
pub(crate) struct HandoverHistory {
    /// Handover without a decision: id, from, to, deadline.
    open: Option<(EventId, AgentId, AgentId, Millis)>,
    ended: BTreeSet<EventId>,
    /// Handovers confirmed by a user, by the control entries that the store accepted.
    agreed: BTreeSet<EventId>,
    /// Confirmed handover whose switch must follow.
    due: Option<(EventId, AgentId)>,
    /// Confirmed handover that the agent must still be told of; with the run that tells it.
    given: Option<(EventId, AgentId, Option<RunId>)>,
    active: Option<AgentId>,
}

impl HandoverHistory {
    /// Returns a handover that is not decided yet.
    pub(super) fn undecided(&self) -> Option<EventId> {
        self.open.as_ref().map(|(id, ..)| *id)
    }

    /// Records a user's confirmation.
    pub(super) fn agree(&mut self, id: EventId) {
        self.agreed.insert(id);
    }

    fn ends(&mut self, id: EventId) -> (EventId, AgentId, AgentId, Millis) {
        let open = self.open.take().unwrap_or_else(|| panic!("SR-T12: what ends was asked for: {id}"));
        assert_eq!(open.0, id, "SR-T12: one handover at a time");
        assert!(self.ended.insert(id), "SR-T12: a handover ends once: {id}");
        open
    }

    pub(super) fn take(&mut self, entry: &Entry, rewinds: bool) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "nothing else is part of a handover")]
        match &entry.fact {
            Fact::Session(SessionFact::Opened { active_agent, .. }) => self.active = Some(active_agent.clone()),
            Fact::Session(SessionFact::Closed { .. }) => {
                assert!(self.open.is_none(), "SR-H2: nothing is undecided in a closed session");
                (self.given, self.due) = (None, None);
            }
            Fact::Handover(HandoverFact::Requested(asked)) => {
                assert_eq!(asked.handover_id, entry.id, "SR-T13: a handover has the name of its first fact");
                assert!(self.open.is_none(), "SR-T12: one handover at a time");
                let from = asked.from.clone();
                let to = asked.to.clone();
                self.open = Some((asked.handover_id, from, to, asked.deadline_ms));
            }
            Fact::Handover(HandoverFact::Confirmed(done)) => {
                let (id, from, to, _) = self.ends(done.handover_id);
                assert_eq!((&from, &to), (&done.from, &done.to), "SR-T12: who asked, and for whom: {id}");
                assert!(rewinds || self.agreed.contains(&id), "SR-F3: nothing is confirmed unasked: {id}");
                self.due = (self.active.as_ref() != Some(&to)).then(|| (id, to.clone()));
                self.given = Some((id, to, None));
            }
            Fact::Handover(HandoverFact::Rejected(ended)) => {
                let (_, from, to, _) = self.ends(ended.handover_id);
                assert_eq!((&from, &to), (&ended.from, &ended.to), "SR-T12: who asked, and for whom");
            }
            Fact::Member(MemberFact::Switched { to, trigger, .. }) => {
                let due = self.due.take().filter(|_| trigger == "handover");
                assert_eq!(
                    due.as_ref().map(|(_, to)| to),
                    (trigger == "handover").then_some(to),
                    "SR-F3: a handover switches once it is confirmed"
                );
                self.active = Some(to.clone());
            }
            Fact::Input(InputFact::Admitted { .. }) => {
                assert!(self.due.is_none(), "SR-F7: the switch is the next thing after the consent");
            }
            Fact::Member(MemberFact::Removed(done)) => drop(self.given.take_if(|(_, to, _)| *to == done.agent_id)),
            Fact::Run(RunFact::Started { agent_id, .. }) => {
                if let Some((_, to, told)) = &mut self.given
                    && to == agent_id
                {
                    *told = entry.run_id.clone();
                }
            }
            Fact::Run(RunFact::Done { .. }) => {
                drop(self.given.take_if(|(_, _, told)| told.is_some() && *told == entry.run_id));
            }
            Fact::Run(RunFact::Failed { .. } | RunFact::Cancelled { .. }) => {
                if let Some((_, _, told)) = &mut self.given
                    && *told == entry.run_id
                {
                    *told = None;
                }
            }
            _ => {}
        }
    }
}

impl StoreRecord {
    /// Checks that an agent is told of its handover, and of no other. (SR-F6)
    pub(crate) fn told(&self, invoke: &Invoke) {
        let Some(chronicle) = self.chronicles.get(&invoke.key) else { return };
        let open = chronicle.stories.get(&invoke.run_id).is_some_and(|turn| turn.ended.is_none());
        let open = open && !chronicle.rewinds;
        let given = chronicle.handed.given.as_ref();
        let given = given.filter(|(_, _, told)| told.as_ref() == Some(&invoke.run_id)).map(|(id, ..)| *id);
        let told = invoke.handover.as_ref().map(|handover| handover.handover_id);
        // Another handover may have been confirmed while this turn began.
        let newer = chronicle.handed.given.as_ref().is_some_and(|(id, ..)| told.is_some_and(|told| told < *id));
        assert!(told == given || newer || !open, "SR-F6: an agent is told of its handover: {} {told:?}", invoke.run_id);
    }
}
