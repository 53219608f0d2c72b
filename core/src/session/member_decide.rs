//! Decisions on members: scenarios B, D and E as transactions that end exactly once, whatever is lost on the way.
use crate::id::{AgentId, EventId, InboxPosition, RequestId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::entry::{Admission, Fact, InputFact, MemberFact};
use crate::protocol::input::{ControlEntry, ControlRequest};
use crate::protocol::member::{
    Member, MemberChangeFailed, MemberChangeRequested, MemberChanged, SessionTask, SessionTaskResult,
};
use crate::protocol::refusal::Code;
use crate::session::ending::Ending;
use crate::session::member_state::{MemberStep, PendingMemberChange, REMOVAL_TRIGGER};
use crate::session::outbox::Output;
use crate::session::runtime::{FactSource, RecordContext, SessionRuntime};
use crate::session::state::State;
use crate::time::{Deadline, Mono, Now};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The message for a change whose deadline has passed.
const TIMEOUT_MESSAGE: &str = "the change of members timed out";

/// This owner's part of the open changes, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct MemberChangeProgress {
    /// The control entries that requested the changes: they stay in the lane until the end, so that a change survives
    /// its owner.
    controls: BTreeMap<AgentId, (InboxPosition, Arc<ControlEntry>)>,
    /// Tasks that were sent.
    sent_tasks: BTreeSet<EventId>,
    /// Deadlines by this owner's clock: read once, since the store's clock may move.
    deadlines: BTreeMap<EventId, Mono>,
}

impl MemberChangeProgress {
    pub(super) fn poll_timeout(&self) -> Option<Deadline> {
        self.deadlines.values().min().map(|at| Deadline { at: *at, label: "members" })
    }

    fn forget(&mut self, tx_id: EventId) {
        self.sent_tasks.remove(&tx_id);
        self.deadlines.remove(&tx_id);
    }
}

/// A request about a member.
struct MemberRequest<'a> {
    place: InboxPosition,
    control: &'a Arc<ControlEntry>,
    agent: &'a AgentId,
    reason: Option<&'a str>,
}

impl SessionRuntime {
    /// Handles a control entry about members.
    pub(super) fn handle_member_request(&mut self, now: Now, place: InboxPosition, control: &Arc<ControlEntry>) {
        match &control.what {
            ControlRequest::Switch { agent_id, reason } => {
                self.handle_switch(now, &MemberRequest { place, control, agent: agent_id, reason: reason.as_deref() });
            }
            ControlRequest::Invite { agent_id, reason, activate } => {
                let request = MemberRequest { place, control, agent: agent_id, reason: reason.as_deref() };
                self.handle_invite(now, &request, *activate);
            }
            ControlRequest::Remove { agent_id, reason } => {
                self.handle_remove(now, &MemberRequest { place, control, agent: agent_id, reason: reason.as_deref() });
            }
            ControlRequest::Open { .. }
            | ControlRequest::Close
            | ControlRequest::Cancel { .. }
            | ControlRequest::Handover { .. } => {}
        }
    }

    fn handle_switch(&mut self, now: Now, request: &MemberRequest<'_>) {
        let place = request.place;
        let control = request.control;
        if !self.is_open() {
            return self.answer_with_notice(now, Code::SessionClosed.as_str(), place, control);
        }
        if !self.state.agents.contains(request.agent) {
            return self.answer_with_notice(now, Code::AgentNotInSession.as_str(), place, control);
        }
        if self.state.active.as_ref() == Some(request.agent) {
            return self.answer_without_fact(place, control);
        }
        let reason = request.reason.unwrap_or("user").to_owned();
        let about = RecordContext { answers: Some(place), user: Some(&control.user), ..RecordContext::default() };
        let request_id = control.request_id.clone();
        self.record_switch(now, request.agent, (reason, "switch_agent"), request_id, about);
        self.answer_with_fact(control);
    }

    /// Records that another member is active from now on (SR-B6, SR-B7).
    pub(super) fn record_switch(
        &mut self,
        now: Now,
        to: &AgentId,
        (reason, trigger): (String, &str),
        request_id: Option<RequestId>,
        about: RecordContext<'_>,
    ) {
        let Some(from) = self.state.active.clone() else { return };
        let trigger = trigger.to_owned();
        self.record(
            now,
            Fact::Member(MemberFact::Switched { from, to: to.clone(), reason, trigger, request_id }),
            about,
        );
    }

    /// Returns whether the same request is already open, repeated by another owner or because the lane was read
    /// again.
    fn reattach_request(&mut self, request: &MemberRequest<'_>) -> bool {
        let under_way = self.state.changes.get(request.agent);
        let again = under_way.is_some_and(|change| {
            let adding = matches!(change.step, MemberStep::Adding { .. });
            change.request_id == request.control.request_id
                && adding == matches!(request.control.what, ControlRequest::Invite { .. })
        });
        if again && !self.changes.controls.contains_key(request.agent) {
            self.changes.controls.insert(request.agent.clone(), (request.place, Arc::clone(request.control)));
            return true;
        }
        false
    }

    fn handle_invite(&mut self, now: Now, request: &MemberRequest<'_>, activate: bool) {
        let full = |state: &State| {
            let full = state.agents.len() + state.changes.len() >= limits::SESSION_AGENTS_MAX;
            full.then_some("the session already has the maximum number of agents")
        };
        if !self.check_change(now, request, Code::AddAgentFailed, full) {
            return;
        }
        if let Some(member) = self.state.member(request.agent) {
            // The agent is already a member, and the requester is told so.
            let id = self.event_id(now);
            let done = self.change_done(id, request, member);
            self.record(
                now,
                Fact::Member(MemberFact::Added(done)),
                RecordContext { answers: Some(request.place), ..RecordContext::tx(id) },
            );
            return self.answer_with_fact(request.control);
        }
        self.begin_change(now, request, activate, |fact| Fact::Member(MemberFact::Adding(fact)));
    }

    fn handle_remove(&mut self, now: Now, request: &MemberRequest<'_>) {
        let needed = |state: &State| {
            if !state.agents.contains(request.agent) {
                return Some("the agent is not a member of this session");
            }
            (state.agents.len() == 1).then_some("the last agent of a session cannot be removed")
        };
        if self.check_change(now, request, Code::RemoveAgentFailed, needed) {
            self.begin_change(now, request, false, |fact| Fact::Member(MemberFact::Removing(fact)));
        }
    }

    /// Returns whether the request is new and can be tried; otherwise records the reason why not.
    fn check_change(
        &mut self,
        now: Now,
        request: &MemberRequest<'_>,
        code: Code,
        why_not: impl FnOnce(&State) -> Option<&'static str>,
    ) -> bool {
        if self.reattach_request(request) {
            return false;
        }
        let why = if !self.is_open() {
            Some("the session is closed")
        } else if self.state.changes.contains_key(request.agent) {
            Some("the agent is already being added or removed")
        } else {
            why_not(&self.state)
        };
        let Some(why) = why else { return true };
        let tx_id = self.event_id(now);
        let agent_id = request.agent.clone();
        let message = why.to_owned();
        let request_id = request.control.request_id.clone();
        let failed = MemberChangeFailed { tx_id, agent_id, code, message, request_id };
        self.record_change_failed(now, failed, Some((request.place, Arc::clone(request.control))));
        false
    }

    fn begin_change(
        &mut self,
        now: Now,
        request: &MemberRequest<'_>,
        activate: bool,
        fact: fn(MemberChangeRequested) -> Fact,
    ) {
        let id = self.event_id(now);
        let requested = change_request(now, id, request, activate);
        let about =
            RecordContext { user: Some(&request.control.user), source: FactSource::User, ..RecordContext::tx(id) };
        self.record(now, fact(requested), about);
        self.changes.controls.insert(request.agent.clone(), (request.place, Arc::clone(request.control)));
    }

    /// Records that a change has failed, and answers the requester.
    fn record_change_failed(
        &mut self,
        now: Now,
        failed: MemberChangeFailed,
        answers: Option<(InboxPosition, Arc<ControlEntry>)>,
    ) {
        let about =
            RecordContext { answers: answers.as_ref().map(|(place, _)| *place), ..RecordContext::tx(failed.tx_id) };
        let adding = failed.code == Code::AddAgentFailed;
        let fact = if adding {
            Fact::Member(MemberFact::AddFailed(failed))
        } else {
            Fact::Member(MemberFact::RemoveFailed(failed))
        };
        self.record(now, fact, about);
        if let Some((_, control)) = answers {
            self.answer_with_fact(&control);
        }
    }

    fn change_done(&self, tx_id: EventId, request: &MemberRequest<'_>, member: Member) -> MemberChanged {
        let request_id = request.control.request_id.clone();
        let agent_id = request.agent.clone();
        let reason = request.reason.map(str::to_owned);
        MemberChanged { tx_id, agent_id, member, reason, restored: false, request_id }
    }

    /// Performs the follow-ups for members after any change: stops leaving agents, sends tasks, fails expired
    /// changes, and ensures an active member.
    pub(super) fn settle_members(&mut self, now: Now) {
        self.ensure_active_member(now);
        self.reassign_waiting_turns(now);
        if self.state.changes.is_empty() {
            return;
        }
        for (agent, change) in self.state.changes.clone() {
            let never = Duration::from_secs(if planted(Mutant::ChangeNeverFails) { 1 << 30 } else { 0 });
            let due = now.mono_at(change.deadline, limits::MEMBER_CHANGE_TIMEOUT) + never;
            if *self.changes.deadlines.entry(change.tx_id).or_insert(due) <= now.mono {
                self.fail_change(now, &agent, &change, TIMEOUT_MESSAGE);
            } else if !self.stop_before_removal(now, &agent, &change) && self.changes.sent_tasks.insert(change.tx_id) {
                let keep = match change.step {
                    MemberStep::Removing { member, .. } => Some(member),
                    MemberStep::Adding { .. } => None,
                };
                let task = SessionTask { tx_id: change.tx_id, agent_id: agent, record_to_keep: keep };
                self.outbox.push_after(self.state.tail.seq, Output::SessionTask(task));
            }
        }
    }

    /// Cancels the running turn of an agent that is being removed (SR-D2); returns whether that turn is still open.
    fn stop_before_removal(&mut self, now: Now, agent: &AgentId, change: &PendingMemberChange) -> bool {
        if !matches!(change.step, MemberStep::Removing { .. }) || planted(Mutant::RemovalHasty) {
            return false;
        }
        let running = self.state.running.clone().filter(|run_id| self.run_agent(run_id) == Some(agent));
        let Some(run_id) = running else { return false };
        if self.inputs.contains_key(&run_id) && !self.is_cancelling(&run_id) {
            self.cancel_turn(now, &run_id, "agent_removed", None);
        }
        self.state.running.as_ref() == Some(&run_id)
    }

    fn run_agent(&self, run_id: &RunId) -> Option<&AgentId> {
        self.state.runs.get(run_id)?.agent.as_ref()
    }

    /// Makes the first remaining member active if the active agent is no longer a member (SR-D6).
    fn ensure_active_member(&mut self, now: Now) {
        let active = self.state.active.as_ref();
        if !self.is_open() || active.is_none_or(|active| self.state.agents.contains(active)) {
            return;
        }
        let change = active.and_then(|active| self.state.changes.get(active));
        let chain = change.map(|change| change.tx_id);
        let request_id = None;
        let Some(fallback) = self.state.agents.first().cloned() else { return };
        let about = chain.map_or_else(RecordContext::default, RecordContext::tx);
        self.record_switch(now, &fallback, ("removed".to_owned(), REMOVAL_TRIGGER), request_id, about);
    }

    /// Handles waiting turns whose agent has left: a turn that addressed the agent fails, any other turn goes to the
    /// active agent.
    fn reassign_waiting_turns(&mut self, now: Now) {
        while let Some((run_id, place)) = self.first_without_agent() {
            let addressed = self.inputs.get(&run_id).is_some_and(|open| open.input.agent_id.is_some());
            let agent = self.state.active.clone().filter(|_| !addressed);
            if let Some(agent_id) = agent.filter(|agent| self.state.agents.contains(agent)) {
                let ahead = place + usize::from(self.state.running.is_some());
                let position = u32::try_from(ahead).ok().filter(|ahead| *ahead > 0);
                let strategy = if ahead == 0 { Admission::Run } else { Admission::Queued };
                let fact = Fact::Input(InputFact::Admitted {
                    agent_id,
                    strategy,
                    position,
                    host_run_id: None,
                    replaces: None,
                });
                self.record(now, fact, RecordContext::run(&run_id));
            } else {
                let code = Code::AgentNotInSession;
                let message = "the agent has left this session";
                self.end_turn(now, &run_id, Ending::failed(code, message));
            }
        }
    }

    /// Returns the first waiting turn whose agent has left.
    fn first_without_agent(&self) -> Option<(RunId, usize)> {
        let state = &self.state;
        let alone = |run_id: &RunId| {
            let agent = state.runs.get(run_id).and_then(|run| run.agent.as_ref());
            agent.is_some_and(|agent| !state.agents.contains(agent) && !state.is_leaving(agent))
        };
        let place = state.waiting.iter().position(|run_id| alone(run_id) && self.inputs.contains_key(run_id));
        let place = place.filter(|_| self.is_open())?;
        Some((state.waiting.get(place)?.clone(), place))
    }

    /// Handles the outcome of a task.
    pub(super) fn handle_task_result(&mut self, now: Now, tx_id: EventId, receipt: SessionTaskResult) {
        let found = self.state.changes.iter().find(|(_, change)| change.tx_id == tx_id);
        let Some((agent, change)) = found.map(|(agent, change)| (agent.clone(), change.clone())) else {
            return;
        };
        let late = change.deadline <= now.store && !planted(Mutant::ChangeNeverFails);
        let kept = match receipt {
            SessionTaskResult::Done(_) if late => {
                return self.fail_change(now, &agent, &change, TIMEOUT_MESSAGE);
            }
            SessionTaskResult::Failed(why) => return self.fail_change(now, &agent, &change, &why),
            SessionTaskResult::Done(kept) => kept,
        };
        let answers = self.changes.controls.remove(&agent);
        let about = || RecordContext { answers: answers.as_ref().map(|(place, _)| *place), ..RecordContext::tx(tx_id) };
        let done = |member, restored| MemberChanged {
            tx_id,
            agent_id: agent.clone(),
            member,
            reason: change.reason.clone(),
            restored,
            request_id: change.request_id.clone(),
        };
        match change.step {
            MemberStep::Adding { activate } => {
                let member = kept.unwrap_or(Member { since_ms: now.store, ..Member::default() });
                self.record(now, Fact::Member(MemberFact::Added(done(member, kept.is_some()))), about());
                if activate && self.state.active.as_ref() != Some(&agent) {
                    let about = RecordContext::tx(tx_id);
                    self.record_switch(now, &agent, ("invited".to_owned(), "invite_agent"), None, about);
                }
            }
            MemberStep::Removing { member, .. } => {
                self.record(now, Fact::Member(MemberFact::Removed(done(member, false))), about());
            }
        }
        self.changes.forget(tx_id);
        if let Some((_, control)) = answers {
            self.answer_with_fact(&control);
        }
    }

    /// Records that a change has failed; after a failed removal everything is as before (RX-9).
    fn fail_change(&mut self, now: Now, agent: &AgentId, change: &PendingMemberChange, why: &str) {
        let (adding, was_active) = match change.step {
            MemberStep::Adding { .. } => (true, false),
            MemberStep::Removing { active, .. } => (false, active),
        };
        let code = if adding { Code::AddAgentFailed } else { Code::RemoveAgentFailed };
        let tx_id = change.tx_id;
        let agent_id = agent.clone();
        let message = why.to_owned();
        if was_active && self.is_open() {
            // Before the fact that restores the member: a reader that sees only the first of both sees a switch.
            self.record_switch(now, agent, ("rollback".to_owned(), REMOVAL_TRIGGER), None, RecordContext::tx(tx_id));
        }
        let failed = MemberChangeFailed { tx_id, agent_id, code, message, request_id: change.request_id.clone() };
        let answers = self.changes.controls.remove(agent);
        self.changes.forget(tx_id);
        self.record_change_failed(now, failed, answers);
    }
}

fn change_request(now: Now, tx_id: EventId, request: &MemberRequest<'_>, activate: bool) -> MemberChangeRequested {
    MemberChangeRequested {
        tx_id,
        agent_id: request.agent.clone(),
        user: request.control.user.clone(),
        reason: request.reason.map(str::to_owned),
        activate,
        deadline_ms: now.store.after(limits::MEMBER_CHANGE_TIMEOUT),
        request_id: request.control.request_id.clone(),
        handover_id: None,
    }
}
