//! Decisions on handovers (scenario F): an agent requests one, a person decides, and only a confirmation makes the
//! other agent active.
use crate::id::{AgentEventId, AgentId, EventId, InboxPosition, RequestId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::entry::{Fact, HandoverFact, MemberFact};
use crate::protocol::handover::{
    HandoverConfirmed, HandoverRejected, HandoverRejection, HandoverRequest, HandoverRequested,
};
use crate::protocol::input::ControlEntry;
use crate::protocol::member::MemberChangeRequested;
use crate::session::attempt::Attempt;
use crate::session::handover_state::Handover;
use crate::session::runtime::{FactSource, RecordContext, SessionRuntime};
use crate::time::{Deadline, Mono, Now};
use std::sync::Arc;
use std::time::Duration;

/// The trigger of a switch that a handover causes.
const HANDOVER: &str = "handover";

/// This owner's part of the open handover, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct HandoverProgress {
    /// Decisions that are answered once the agent is a member, or could not be added; the entries stay in the lane
    /// until then.
    decisions: Vec<(InboxPosition, Arc<ControlEntry>)>,
    /// Deadline by this owner's clock: read once, since the store's clock may move.
    deadline: Option<(EventId, Mono)>,
}

// === impl HandoverProgress ===

impl HandoverProgress {
    /// Returns the deadline of the `open` handover. An owner that has only read the handover in the log checks its
    /// deadline at once.
    pub(super) fn poll_timeout(&self, open: Option<&Handover>) -> Option<Deadline> {
        open.filter(|open| open.joining.is_none())?;
        let at = self.deadline.map_or(Mono(Duration::ZERO), |(_, at)| at);
        Some(Deadline { at, label: HANDOVER })
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.decisions.is_empty()
    }
}

// === impl SessionRuntime ===

impl SessionRuntime {
    /// Handles an agent's request for a handover. A request that is not permitted, or not now, is dropped and
    /// counted: no answer to the agent exists.
    pub(super) fn handle_handover_request(
        &mut self,
        now: Now,
        run_id: &RunId,
        request: HandoverRequest,
        event_id: Option<AgentEventId>,
    ) {
        if event_id.is_some() {
            // As for a state: the log must have the agent's events in their order.
            self.checkpoint_text(now, run_id);
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.repeat_bytes.is_some_and(|bytes| bytes > 0) {
            return;
        }
        live.advance_mark(event_id);
        let mark = live.mark.clone();
        let from = self.state.runs.get(run_id).and_then(|run| run.agent.clone());
        let Some(from) = from.filter(|from| self.may_request_handover(run_id, from, &request.to)) else {
            self.counts.late_reports += 1;
            return;
        };
        let HandoverRequest { to, reason, summary } = request;
        let handover_id = self.event_id(now);
        let deadline_ms = now.store.after(self.directory.policy(&from).handover);
        let requested = HandoverRequested { handover_id, from, to, reason, summary, deadline_ms, mark };
        let about = RecordContext { tx: Some(handover_id), ..RecordContext::agent(run_id) };
        self.record(now, Fact::Handover(HandoverFact::Requested(requested)), about);
        if planted(Mutant::HandoverUnasked) {
            self.confirm_handover(now, None);
        }
    }

    /// Returns whether a handover may be requested: one at a time, to another agent than the active one, and a
    /// limited number for each run.
    fn may_request_handover(&self, run_id: &RunId, from: &AgentId, to: &AgentId) -> bool {
        let handovers = &self.state.handovers;
        self.is_open()
            && handovers.open.is_none()
            && to != from
            && self.state.active.as_ref() != Some(to)
            && handovers.request_count(run_id) < limits::RUN_HANDOVERS_MAX
    }

    /// Handles a person's decision. The first decision counts; later ones are answered by the edge with the outcome.
    pub(super) fn handle_handover_decision(
        &mut self,
        now: Now,
        place: InboxPosition,
        control: &Arc<ControlEntry>,
        (id, confirm): (EventId, bool),
    ) {
        // The deadline may have passed, or the session may be closing.
        self.settle_handover(now);
        let Some(open) = self.state.handovers.open.as_ref().filter(|open| open.id == id) else {
            return self.answer_without_fact(place, control);
        };
        let to = open.to.clone();
        let joining = open.joining.is_some();
        if !self.handover.decisions.iter().any(|(decided, _)| *decided == place) {
            self.handover.decisions.push((place, Arc::clone(control)));
        }
        let request_id = control.request_id.clone();
        if joining {
            // The decision is answered once the change of members is over; it was repeated by another owner, or by
            // another person.
        } else if !confirm {
            self.reject_handover(now, HandoverRejection::Refused, request_id);
        } else if self.state.agents.contains(&to) {
            self.confirm_handover(now, request_id);
        } else if self.state.changes.contains_key(&to)
            || self.state.agents.len() + self.state.changes.len() >= limits::SESSION_AGENTS_MAX
        {
            self.reject_handover(now, HandoverRejection::Unavailable, request_id);
        } else {
            self.invite_for_handover(now, id, to, control);
        }
    }

    /// Requests that the agent becomes a member before the handover is confirmed.
    fn invite_for_handover(&mut self, now: Now, id: EventId, agent_id: AgentId, control: &ControlEntry) {
        let tx_id = self.event_id(now);
        let requested = MemberChangeRequested {
            tx_id,
            agent_id,
            user: control.user.clone(),
            reason: Some(HANDOVER.to_owned()),
            activate: false,
            deadline_ms: now.store.after(limits::MEMBER_CHANGE_TIMEOUT),
            request_id: control.request_id.clone(),
            handover_id: Some(id),
        };
        let about = RecordContext { user: Some(&control.user), source: FactSource::User, ..RecordContext::tx(tx_id) };
        self.record(now, Fact::Member(MemberFact::Adding(requested)), about);
    }

    /// Performs the follow-ups for handovers after any change.
    pub(super) fn settle_handover(&mut self, now: Now) {
        self.activate_confirmed(now);
        let Some(open) = &self.state.handovers.open else {
            self.handover.deadline = None;
            return;
        };
        let never = Duration::from_secs(if planted(Mutant::HandoverNeverExpires) { 1 << 30 } else { 0 });
        let most = self.directory.policy(&open.from).handover;
        let due = now.mono_at(open.deadline, most) + never;
        let (_, due) = *self.handover.deadline.get_or_insert((open.id, due));
        let joined = open
            .joining
            .as_ref()
            .filter(|joining| !self.state.changes.values().any(|change| change.tx_id == joining.tx_id));
        let request_id = joined.and_then(|joining| joining.request_id.clone());
        if !self.is_open() {
            self.reject_handover(now, HandoverRejection::SessionClosed, request_id);
        } else if !self.state.agents.contains(&open.from) {
            self.reject_handover(now, HandoverRejection::AgentLeft, request_id);
        } else if !self.directory.agents.contains_key(&open.to) {
            self.reject_handover(now, HandoverRejection::Unavailable, request_id);
        } else if joined.is_some() && self.state.agents.contains(&open.to) {
            self.confirm_handover(now, request_id);
        } else if joined.is_some() {
            self.reject_handover(now, HandoverRejection::Unavailable, request_id);
        } else if open.joining.is_some() {
            // The change of members has a deadline of its own.
            self.handover.deadline = None;
        } else if due <= now.mono {
            self.reject_handover(now, HandoverRejection::Expired, None);
        }
    }

    fn confirm_handover(&mut self, now: Now, request_id: Option<RequestId>) {
        let Some(open) = &self.state.handovers.open else { return };
        let handover_id = open.id;
        let from = open.from.clone();
        let to = open.to.clone();
        let done = HandoverConfirmed { handover_id, from, to, request_id };
        self.end_handover(now, handover_id, Fact::Handover(HandoverFact::Confirmed(done)));
        self.activate_confirmed(now);
    }

    fn reject_handover(&mut self, now: Now, why: HandoverRejection, request_id: Option<RequestId>) {
        let Some(open) = &self.state.handovers.open else { return };
        let handover_id = open.id;
        let from = open.from.clone();
        let to = open.to.clone();
        let rejected = HandoverRejected { handover_id, from, to, why, request_id };
        self.end_handover(now, handover_id, Fact::Handover(HandoverFact::Rejected(rejected)));
    }

    /// Ends the handover, and answers all decisions.
    fn end_handover(&mut self, now: Now, id: EventId, fact: Fact) {
        let mut decisions = std::mem::take(&mut self.handover.decisions).into_iter();
        let first = decisions.next();
        let answers = first.as_ref().map(|(place, _)| *place);
        self.record(now, fact, RecordContext { answers, ..RecordContext::tx(id) });
        self.handover.deadline = None;
        if let Some((_, control)) = first {
            self.answer_with_fact(&control);
        }
        for (place, control) in decisions {
            self.answer_without_fact(place, &control);
        }
    }

    /// Makes the agent of a confirmed handover active. This is a separate fact, which a lost owner may not have
    /// recorded.
    pub(super) fn activate_confirmed(&mut self, now: Now) {
        let given = self.state.handovers.given.as_ref().filter(|given| !given.switched && self.is_open());
        let Some((id, to)) = given.map(|given| (given.id, given.to.clone())) else { return };
        if self.state.agents.contains(&to) && self.state.active.as_ref() != Some(&to) {
            self.record_switch(now, &to, (HANDOVER.to_owned(), HANDOVER), None, RecordContext::tx(id));
        }
    }
}
