//! Decisions on handovers (scenario F): an agent requests one, a person decides, and only a confirmation makes the
//! other agent active.
use crate::id::{AgentId, EventId, Place, RequestId, RunId, SaidId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::entry::Fact;
use crate::protocol::handover::{
    HandoverAsked, HandoverConfirmed, HandoverRejected, HandoverWish, Rejection,
};
use crate::protocol::input::Control;
use crate::protocol::member::ChangeAsked;
use crate::session::attempt::Attempt;
use crate::session::handover::Handover;
use crate::session::runtime::{About, SessionRuntime, Source};
use crate::time::{Deadline, Mono, Now};
use std::sync::Arc;
use std::time::Duration;

/// The trigger of a switch that a handover causes.
const HANDOVER: &str = "handover";

/// This owner's part of the open handover, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct Handing {
    /// Decisions that are answered once the agent is a member, or could not be added; the entries stay in the lane
    /// until then.
    asked: Vec<(Place, Arc<Control>)>,
    /// Deadline by this owner's clock: read once, since the store's clock may move.
    due: Option<(EventId, Mono)>,
}

// === impl Handing ===

impl Handing {
    /// Returns the deadline of the `open` handover. An owner that has only read the handover in the log checks its
    /// deadline at once.
    pub(super) fn poll_timeout(&self, open: Option<&Handover>) -> Option<Deadline> {
        open.filter(|open| open.joining.is_none())?;
        let at = self.due.map_or(Mono(Duration::ZERO), |(_, at)| at);
        Some(Deadline { at, why: HANDOVER })
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.asked.is_empty()
    }
}

// === impl SessionRuntime ===

impl SessionRuntime {
    /// Handles an agent's request for a handover. A request that is not permitted, or not now, is dropped and
    /// counted: no answer to the agent exists.
    pub(super) fn handover_wished(
        &mut self,
        now: Now,
        run_id: &RunId,
        wish: HandoverWish,
        said: Option<SaidId>,
    ) {
        if said.is_some() {
            // As for a state: the log must have the agent's events in their order.
            self.save(now, run_id);
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.again.is_some_and(|bytes| bytes > 0) {
            return;
        }
        live.reach(said);
        let mark = live.mark.clone();
        let from = self.state.runs.get(run_id).and_then(|run| run.agent.clone());
        let Some(from) = from.filter(|from| self.may_ask(run_id, from, &wish.to)) else {
            self.counts.late_reports += 1;
            return;
        };
        let HandoverWish { to, reason, summary } = wish;
        let (handover_id, deadline_ms) =
            (self.event_id(now), now.store.after(self.directory.policy(&from).handover));
        let asked = HandoverAsked { handover_id, from, to, reason, summary, deadline_ms, mark };
        let about = About { tx: Some(handover_id), ..About::agent(run_id) };
        self.record(now, Fact::HandoverRequested(asked), about);
        if planted(Mutant::HandoverUnasked) {
            self.confirm(now, None);
        }
    }

    /// Returns whether a handover may be requested: one at a time, to another agent than the active one, and a
    /// limited number for each run.
    fn may_ask(&self, run_id: &RunId, from: &AgentId, to: &AgentId) -> bool {
        let handovers = &self.state.handovers;
        self.is_open()
            && handovers.open.is_none()
            && to != from
            && self.state.active.as_ref() != Some(to)
            && handovers.times(run_id) < limits::RUN_HANDOVERS_MAX
    }

    /// Handles a person's decision. The first decision counts; later ones are answered by the edge with the outcome.
    pub(super) fn handover_decided(
        &mut self,
        now: Now,
        place: Place,
        control: &Arc<Control>,
        (id, confirm): (EventId, bool),
    ) {
        // The deadline may have passed, or the session may be closing.
        self.settle_handover(now);
        let Some(open) = self.state.handovers.open.as_ref().filter(|open| open.id == id) else {
            return self.consume(place, control);
        };
        let (to, joining) = (open.to.clone(), open.joining.is_some());
        if !self.handing.asked.iter().any(|(asked, _)| *asked == place) {
            self.handing.asked.push((place, Arc::clone(control)));
        }
        let request_id = control.request_id.clone();
        if joining {
            // The decision is answered once the change of members is over; it was repeated by another owner, or by
            // another person.
        } else if !confirm {
            self.reject(now, Rejection::Refused, request_id);
        } else if self.state.agents.contains(&to) {
            self.confirm(now, request_id);
        } else if self.state.changes.contains_key(&to)
            || self.state.agents.len() + self.state.changes.len() >= limits::SESSION_AGENTS_MAX
        {
            self.reject(now, Rejection::Unavailable, request_id);
        } else {
            self.invite_for(now, id, to, control);
        }
    }

    /// Requests that the agent becomes a member before the handover is confirmed.
    fn invite_for(&mut self, now: Now, id: EventId, agent_id: AgentId, control: &Control) {
        let tx_id = self.event_id(now);
        let asked = ChangeAsked {
            tx_id,
            agent_id,
            user: control.user.clone(),
            reason: Some(HANDOVER.to_owned()),
            activate: false,
            deadline_ms: now.store.after(limits::MEMBER_CHANGE),
            request_id: control.request_id.clone(),
            handover_id: Some(id),
        };
        let about = About { user: Some(&control.user), source: Source::User, ..About::tx(tx_id) };
        self.record(now, Fact::AgentAdding(asked), about);
    }

    /// Performs the follow-ups for handovers after any change.
    pub(super) fn settle_handover(&mut self, now: Now) {
        self.hand_on(now);
        let Some(open) = &self.state.handovers.open else {
            self.handing.due = None;
            return;
        };
        let never = Duration::from_secs(if planted(Mutant::HandoverNeverExpires) { 1 << 30 } else { 0 });
        let most = self.directory.policy(&open.from).handover;
        let due = now.mono_at(open.deadline, most) + never;
        let (_, due) = *self.handing.due.get_or_insert((open.id, due));
        let joined = open
            .joining
            .as_ref()
            .filter(|joining| !self.state.changes.values().any(|change| change.tx_id == joining.tx_id));
        let request_id = joined.and_then(|joining| joining.request_id.clone());
        if !self.is_open() {
            self.reject(now, Rejection::SessionClosed, request_id);
        } else if !self.state.agents.contains(&open.from) {
            self.reject(now, Rejection::AgentLeft, request_id);
        } else if !self.directory.agents.contains_key(&open.to) {
            self.reject(now, Rejection::Unavailable, request_id);
        } else if joined.is_some() && self.state.agents.contains(&open.to) {
            self.confirm(now, request_id);
        } else if joined.is_some() {
            self.reject(now, Rejection::Unavailable, request_id);
        } else if open.joining.is_some() {
            // The change of members has a deadline of its own.
            self.handing.due = None;
        } else if due <= now.mono {
            self.reject(now, Rejection::Expired, None);
        }
    }

    fn confirm(&mut self, now: Now, request_id: Option<RequestId>) {
        let Some(open) = &self.state.handovers.open else { return };
        let (handover_id, from, to) = (open.id, open.from.clone(), open.to.clone());
        let done = HandoverConfirmed { handover_id, from, to, request_id };
        self.decide(now, handover_id, Fact::HandoverConfirmed(done));
        self.hand_on(now);
    }

    fn reject(&mut self, now: Now, why: Rejection, request_id: Option<RequestId>) {
        let Some(open) = &self.state.handovers.open else { return };
        let (handover_id, from, to) = (open.id, open.from.clone(), open.to.clone());
        let rejected = HandoverRejected { handover_id, from, to, why, request_id };
        self.decide(now, handover_id, Fact::HandoverRejected(rejected));
    }

    /// Ends the handover, and answers all decisions.
    fn decide(&mut self, now: Now, id: EventId, fact: Fact) {
        let mut asked = std::mem::take(&mut self.handing.asked).into_iter();
        let first = asked.next();
        let answers = first.as_ref().map(|(place, _)| *place);
        self.record(now, fact, About { answers, ..About::tx(id) });
        self.handing.due = None;
        if let Some((_, control)) = first {
            self.answered(&control);
        }
        for (place, control) in asked {
            self.consume(place, &control);
        }
    }

    /// Makes the agent of a confirmed handover active. This is a separate fact, which a lost owner may not have
    /// recorded.
    pub(super) fn hand_on(&mut self, now: Now) {
        let given = self.state.handovers.given.as_ref().filter(|given| !given.switched && self.is_open());
        let Some((id, to)) = given.map(|given| (given.id, given.to.clone())) else { return };
        if self.state.agents.contains(&to) && self.state.active.as_ref() != Some(&to) {
            self.switch(now, &to, (HANDOVER.to_owned(), HANDOVER), None, About::tx(id));
        }
    }
}
