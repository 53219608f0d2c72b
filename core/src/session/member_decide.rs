//! Decisions on members: scenarios B, D and E as transactions that end exactly once, whatever is lost on the way.
use crate::id::{AgentId, EventId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::entry::{Fact, MemberFact};
use crate::protocol::input::ControlRequest;
use crate::protocol::member::{
    Member, MemberChangeFailed, MemberChangeRequested, MemberChanged, SessionTask, SessionTaskResult,
};
use crate::protocol::refusal::Code;
use crate::session::command::{MemberCommand, PlacedControl, RunCommand};
use crate::session::context::SessionContext;
use crate::session::member_state::{MemberStep, PendingMemberChange, REMOVAL_TRIGGER};
use crate::session::outbox::Output;
use crate::session::plan::{FactSource, Plan, RecordContext};
use crate::session::state::State;
use crate::time::{Deadline, Mono};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The message for a change whose deadline has passed.
const TIMEOUT_MESSAGE: &str = "the change of members timed out";

/// This owner's part of the open changes, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct MemberChangeProgress {
    /// The control entries that requested the changes: they stay in the lane until the end, so that a change survives
    /// its owner.
    controls: BTreeMap<AgentId, PlacedControl>,
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
    entry: &'a PlacedControl,
    agent: &'a AgentId,
    reason: Option<&'a str>,
}

/// Decides on a command about members.
pub(super) fn decide(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    command: MemberCommand,
    plan: &mut Plan,
) {
    match command {
        MemberCommand::Take(entry) => handle_request(context, progress, &entry, plan),
        MemberCommand::SettleChange(agent) => settle_change(context, progress, &agent, plan),
        MemberCommand::SendTask(agent) => send_task(context, progress, agent, plan),
    }
}

/// Handles a control entry about members; `session_decide` gives no other entries.
fn handle_request(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    entry: &PlacedControl,
    plan: &mut Plan,
) {
    let request = |agent, reason| MemberRequest { entry, agent, reason };
    if let ControlRequest::Switch { agent_id, reason } = &entry.1.what {
        handle_switch(context, &request(agent_id, reason.as_deref()), plan);
    }
    if let ControlRequest::Invite { agent_id, reason, activate } = &entry.1.what {
        handle_invite(context, progress, &request(agent_id, reason.as_deref()), *activate, plan);
    }
    if let ControlRequest::Remove { agent_id, reason } = &entry.1.what {
        handle_remove(context, progress, &request(agent_id, reason.as_deref()), plan);
    }
}

fn handle_switch(context: &SessionContext, request: &MemberRequest<'_>, plan: &mut Plan) {
    let (position, control) = request.entry;
    let position = *position;
    if !context.is_open() {
        return plan.answer_with_notice(context, Code::SessionClosed.as_str(), position, control);
    }
    if !context.state.agents.contains(request.agent) {
        return plan.answer_with_notice(context, Code::AgentNotInSession.as_str(), position, control);
    }
    if context.state.active.as_ref() == Some(request.agent) {
        return plan.answer_without_fact(position, control);
    }
    let reason = request.reason.unwrap_or("user").to_owned();
    let about = RecordContext { answers: Some(position), ..RecordContext::default() };
    let request_id = control.request_id.clone();
    plan.record_switch(context, request.agent, (reason, "switch_agent"), request_id, about);
    plan.answer_with_fact(control);
}

/// Returns whether the same request is already open, repeated by another owner or because the lane was read again.
fn reattach_request(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    request: &MemberRequest<'_>,
) -> bool {
    let under_way = context.state.changes.get(request.agent);
    let again = under_way.is_some_and(|change| {
        let adding = matches!(change.step, MemberStep::Adding { .. });
        change.request_id == request.entry.1.request_id
            && adding == matches!(request.entry.1.what, ControlRequest::Invite { .. })
    });
    if again && !progress.controls.contains_key(request.agent) {
        progress.controls.insert(request.agent.clone(), request.entry.clone());
        return true;
    }
    false
}

fn handle_invite(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    request: &MemberRequest<'_>,
    activate: bool,
    plan: &mut Plan,
) {
    let full = |state: &State| {
        let full = state.agents.len() + state.changes.len() >= limits::SESSION_AGENTS_MAX;
        full.then_some("the session already has the maximum number of agents")
    };
    if !check_change(context, progress, request, (Code::AddAgentFailed, full), plan) {
        return;
    }
    if let Some(member) = context.state.member(request.agent) {
        // The agent is already a member, and the requester is told so.
        let (position, control) = request.entry;
        let tx_id = plan.event_id(context);
        let done = MemberChanged {
            tx_id,
            agent_id: request.agent.clone(),
            member,
            reason: request.reason.map(str::to_owned),
            restored: false,
            request_id: control.request_id.clone(),
        };
        let about = RecordContext { answers: Some(*position), ..RecordContext::tx(tx_id) };
        plan.record(context, Fact::Member(MemberFact::Added(done)), about);
        return plan.answer_with_fact(control);
    }
    begin_change(context, progress, request, (activate, MemberFact::Adding), plan);
}

fn handle_remove(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    request: &MemberRequest<'_>,
    plan: &mut Plan,
) {
    let needed = |state: &State| {
        if !state.agents.contains(request.agent) {
            return Some("the agent is not a member of this session");
        }
        (state.agents.len() == 1).then_some("the last agent of a session cannot be removed")
    };
    if check_change(context, progress, request, (Code::RemoveAgentFailed, needed), plan) {
        begin_change(context, progress, request, (false, MemberFact::Removing), plan);
    }
}

/// Returns whether the request is new and can be tried; otherwise records the reason why not.
fn check_change(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    request: &MemberRequest<'_>,
    (code, why_not): (Code, impl FnOnce(&State) -> Option<&'static str>),
    plan: &mut Plan,
) -> bool {
    if reattach_request(context, progress, request) {
        return false;
    }
    let why = if !context.is_open() {
        Some("the session is closed")
    } else if context.state.changes.contains_key(request.agent) {
        Some("the agent is already being added or removed")
    } else {
        why_not(&context.state)
    };
    let Some(why) = why else { return true };
    let tx_id = plan.event_id(context);
    let agent_id = request.agent.clone();
    let message = why.to_owned();
    let request_id = request.entry.1.request_id.clone();
    let failed = MemberChangeFailed { tx_id, agent_id, code, message, request_id };
    record_change_failed(context, failed, Some(request.entry), plan);
    false
}

fn begin_change(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    request: &MemberRequest<'_>,
    (activate, fact): (bool, fn(MemberChangeRequested) -> MemberFact),
    plan: &mut Plan,
) {
    let tx_id = plan.event_id(context);
    let control = &request.entry.1;
    let requested = MemberChangeRequested {
        tx_id,
        agent_id: request.agent.clone(),
        user: control.user.clone(),
        reason: request.reason.map(str::to_owned),
        activate,
        deadline_ms: context.now.store.after(limits::MEMBER_CHANGE_TIMEOUT),
        request_id: control.request_id.clone(),
        handover_id: None,
    };
    let about = RecordContext { source: FactSource::User(control.user.clone()), ..RecordContext::tx(tx_id) };
    plan.record(context, Fact::Member(fact(requested)), about);
    progress.controls.insert(request.agent.clone(), request.entry.clone());
}

/// Records that a change has failed, and answers the requester.
fn record_change_failed(
    context: &SessionContext,
    failed: MemberChangeFailed,
    answers: Option<&PlacedControl>,
    plan: &mut Plan,
) {
    let about = RecordContext { answers: answers.map(|(position, _)| *position), ..RecordContext::tx(failed.tx_id) };
    let adding = failed.code == Code::AddAgentFailed;
    let fact = if adding { MemberFact::AddFailed(failed) } else { MemberFact::RemoveFailed(failed) };
    plan.record(context, Fact::Member(fact), about);
    if let Some((_, control)) = answers {
        plan.answer_with_fact(control);
    }
}

/// Decides on every change of members, one after the other.
pub(super) fn settle_all(context: &SessionContext, plan: &mut Plan) {
    for agent in context.state.changes.keys() {
        plan.member(MemberCommand::SettleChange(agent.clone()));
    }
}

/// Decides on the follow-ups for one change of members: fails an expired change, stops a leaving agent, or sends the
/// task.
fn settle_change(context: &SessionContext, progress: &mut MemberChangeProgress, agent: &AgentId, plan: &mut Plan) {
    let Some(change) = context.state.changes.get(agent) else { return };
    let never = Duration::from_secs(if planted(Mutant::ChangeNeverFails) { 1 << 30 } else { 0 });
    let due = context.now.mono_at(change.deadline, limits::MEMBER_CHANGE_TIMEOUT) + never;
    if *progress.deadlines.entry(change.tx_id).or_insert(due) <= context.now.mono {
        return fail_change(context, progress, agent, TIMEOUT_MESSAGE, plan);
    }
    // The running turn of an agent that is being removed is cancelled first (SR-D2).
    if let Some(run_id) = turn_to_stop(context, agent, change)
        && context.inputs.contains_key(run_id)
        && !context.is_cancelling(run_id)
    {
        plan.run(RunCommand::Cancel { run_id: run_id.clone(), reason: "agent_removed", by: None });
    }
    plan.member(MemberCommand::SendTask(agent.clone()));
}

/// Returns the running turn of an agent that is being removed.
fn turn_to_stop<'a>(context: &'a SessionContext, agent: &AgentId, change: &PendingMemberChange) -> Option<&'a RunId> {
    if !matches!(change.step, MemberStep::Removing { .. }) || planted(Mutant::RemovalHasty) {
        return None;
    }
    context.state.running.as_ref().filter(|run_id| context.run_agent(run_id) == Some(agent))
}

/// Sends the task of a change, once, and not while the turn of a leaving agent runs.
fn send_task(context: &SessionContext, progress: &mut MemberChangeProgress, agent_id: AgentId, plan: &mut Plan) {
    let Some(change) = context.state.changes.get(&agent_id) else { return };
    if turn_to_stop(context, &agent_id, change).is_some() || !progress.sent_tasks.insert(change.tx_id) {
        return;
    }
    let record_to_keep = match change.step {
        MemberStep::Removing { member, .. } => Some(member),
        MemberStep::Adding { .. } => None,
    };
    plan.send_after(Output::SessionTask(SessionTask { tx_id: change.tx_id, agent_id, record_to_keep }));
}

/// Makes the first remaining member active if the active agent is no longer a member (SR-D6).
pub(super) fn ensure_active_member(context: &SessionContext, plan: &mut Plan) {
    let state = &context.state;
    let active = state.active.as_ref();
    if !context.is_open() || active.is_none_or(|active| state.agents.contains(active)) {
        return;
    }
    let change = active.and_then(|active| state.changes.get(active));
    let chain = change.map(|change| change.tx_id);
    let Some(fallback) = state.agents.first() else { return };
    let about = chain.map_or_else(RecordContext::default, RecordContext::tx);
    plan.record_switch(context, fallback, ("removed".to_owned(), REMOVAL_TRIGGER), None, about);
}

/// Handles the outcome of a task.
pub(super) fn handle_task_result(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    tx_id: EventId,
    receipt: SessionTaskResult,
    plan: &mut Plan,
) {
    let found = context.state.changes.iter().find(|(_, change)| change.tx_id == tx_id);
    let Some((agent, change)) = found else { return };
    let late = change.deadline <= context.now.store && !planted(Mutant::ChangeNeverFails);
    let kept = match receipt {
        SessionTaskResult::Done(_) if late => {
            return fail_change(context, progress, agent, TIMEOUT_MESSAGE, plan);
        }
        SessionTaskResult::Failed(why) => return fail_change(context, progress, agent, &why, plan),
        SessionTaskResult::Done(kept) => kept,
    };
    let answers = progress.controls.remove(agent);
    let about = RecordContext { answers: answers.as_ref().map(|(position, _)| *position), ..RecordContext::tx(tx_id) };
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
            let member = kept.unwrap_or(Member { since_ms: context.now.store, ..Member::default() });
            plan.record(context, Fact::Member(MemberFact::Added(done(member, kept.is_some()))), about);
            if activate && context.state.active.as_ref() != Some(agent) {
                let why = ("invited".to_owned(), "invite_agent");
                plan.record_switch(context, agent, why, None, RecordContext::tx(tx_id));
            }
        }
        MemberStep::Removing { member, .. } => {
            plan.record(context, Fact::Member(MemberFact::Removed(done(member, false))), about);
        }
    }
    progress.forget(tx_id);
    if let Some((_, control)) = answers {
        plan.answer_with_fact(&control);
    }
}

/// Records that a change has failed; after a failed removal everything is as before (RX-9).
fn fail_change(
    context: &SessionContext,
    progress: &mut MemberChangeProgress,
    agent: &AgentId,
    why: &str,
    plan: &mut Plan,
) {
    let Some(change) = context.state.changes.get(agent) else { return };
    let (code, was_active) = match change.step {
        MemberStep::Adding { .. } => (Code::AddAgentFailed, false),
        MemberStep::Removing { active, .. } => (Code::RemoveAgentFailed, active),
    };
    let tx_id = change.tx_id;
    let agent_id = agent.clone();
    let message = why.to_owned();
    if was_active && context.is_open() {
        // Before the fact that restores the member: a reader that sees only the first of both sees a switch.
        let why = ("rollback".to_owned(), REMOVAL_TRIGGER);
        plan.record_switch(context, agent, why, None, RecordContext::tx(tx_id));
    }
    let failed = MemberChangeFailed { tx_id, agent_id, code, message, request_id: change.request_id.clone() };
    let answers = progress.controls.remove(agent);
    progress.forget(tx_id);
    record_change_failed(context, failed, answers.as_ref(), plan);
}
