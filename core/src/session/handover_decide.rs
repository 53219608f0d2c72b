//! Decisions on handovers (scenario F): an agent requests one, a person decides, and only a confirmation makes the
//! other agent active.
use crate::id::{AgentId, EventId, RequestId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::EventMark;
use crate::protocol::entry::{Fact, HandoverFact, MemberFact};
use crate::protocol::handover::{
    HandoverConfirmed, HandoverRejected, HandoverRejection, HandoverRequest, HandoverRequested,
};
use crate::protocol::input::{ControlEntry, ControlRequest};
use crate::protocol::member::MemberChangeRequested;
use crate::session::command::{HandoverCommand, PlacedControl};
use crate::session::context::SessionContext;
use crate::session::handover_state::Handover;
use crate::session::plan::{FactSource, Plan, RecordContext};
use crate::time::{Deadline, Mono};
use std::time::Duration;

/// The trigger of a switch that a handover causes.
const HANDOVER: &str = "handover";

/// This owner's part of the open handover, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct HandoverProgress {
    /// Decisions that are answered once the agent is a member, or could not be added; the entries stay in the lane
    /// until then.
    decisions: Vec<PlacedControl>,
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

/// Decides on a command about handovers.
pub(super) fn decide(
    context: &SessionContext,
    progress: &mut HandoverProgress,
    command: HandoverCommand,
    plan: &mut Plan,
) {
    match command {
        HandoverCommand::Request { run_id, request, mark } => {
            handle_request(context, &run_id, *request, mark, plan);
        }
        HandoverCommand::Take(entry) => handle_decision(context, progress, entry, plan),
        HandoverCommand::Settle => settle(context, progress, plan),
        HandoverCommand::Confirm(request_id) => confirm(context, progress, request_id, plan),
        HandoverCommand::Activate => activate_confirmed(context, plan),
    }
}

/// Handles an agent's request for a handover. A request that is not permitted, or not now, is dropped and counted: no
/// answer to the agent exists.
fn handle_request(
    context: &SessionContext,
    run_id: &RunId,
    request: HandoverRequest,
    mark: Option<EventMark>,
    plan: &mut Plan,
) {
    let from = context.run_agent(run_id).cloned();
    let Some(from) = from.filter(|from| may_request(context, run_id, from, &request.to)) else {
        plan.counts.late_reports += 1;
        return;
    };
    let HandoverRequest { to, reason, summary } = request;
    let handover_id = plan.event_id(context);
    let deadline_ms = context.now.store.after(context.directory.policy(&from).handover);
    let requested = HandoverRequested { handover_id, from, to, reason, summary, deadline_ms, mark };
    let about = RecordContext { tx: Some(handover_id), ..RecordContext::agent(run_id) };
    plan.record(context, Fact::Handover(HandoverFact::Requested(requested)), about);
    if planted(Mutant::HandoverUnasked) {
        plan.handover(HandoverCommand::Confirm(None));
    }
}

/// Returns whether a handover may be requested: one at a time, to another agent than the active one, and a limited
/// number for each run.
fn may_request(context: &SessionContext, run_id: &RunId, from: &AgentId, to: &AgentId) -> bool {
    let handovers = &context.state.handovers;
    context.is_open()
        && handovers.open.is_none()
        && to != from
        && context.state.active.as_ref() != Some(to)
        && handovers.request_count(run_id) < limits::RUN_HANDOVERS_MAX
}

/// Handles a person's decision. The first decision counts; later ones are answered by the edge with the outcome.
fn handle_decision(
    context: &SessionContext,
    progress: &mut HandoverProgress,
    (position, control): PlacedControl,
    plan: &mut Plan,
) {
    let ControlRequest::Handover { handover_id: id, confirm: confirms } = control.what else { return };
    let Some(open) = context.state.handovers.open.as_ref().filter(|open| open.id == id) else {
        return plan.answer_without_fact(position, &control);
    };
    let to = &open.to;
    let state = &context.state;
    let request_id = control.request_id.clone();
    if !progress.decisions.iter().any(|(decided, _)| *decided == position) {
        progress.decisions.push((position, control.clone()));
    }
    if open.joining.is_some() {
        // The decision is answered once the change of members is over; it was repeated by another owner, or by
        // another person.
    } else if !confirms {
        reject(context, progress, HandoverRejection::Refused, request_id, plan);
    } else if state.agents.contains(to) {
        confirm(context, progress, request_id, plan);
    } else if state.changes.contains_key(to) || state.agents.len() + state.changes.len() >= limits::SESSION_AGENTS_MAX {
        reject(context, progress, HandoverRejection::Unavailable, request_id, plan);
    } else {
        invite(context, id, to.clone(), &control, plan);
    }
}

/// Requests that the agent becomes a member before the handover is confirmed.
fn invite(context: &SessionContext, id: EventId, agent_id: AgentId, control: &ControlEntry, plan: &mut Plan) {
    let tx_id = plan.event_id(context);
    let requested = MemberChangeRequested {
        tx_id,
        agent_id,
        user: control.user.clone(),
        reason: Some(HANDOVER.to_owned()),
        activate: false,
        deadline_ms: context.now.store.after(limits::MEMBER_CHANGE_TIMEOUT),
        request_id: control.request_id.clone(),
        handover_id: Some(id),
    };
    let about = RecordContext { source: FactSource::User(control.user.clone()), ..RecordContext::tx(tx_id) };
    plan.record(context, Fact::Member(MemberFact::Adding(requested)), about);
}

/// Decides on the follow-ups for handovers after any change.
pub(super) fn settle(context: &SessionContext, progress: &mut HandoverProgress, plan: &mut Plan) {
    activate_confirmed(context, plan);
    let state = &context.state;
    let Some(open) = &state.handovers.open else {
        progress.deadline = None;
        return;
    };
    let never = Duration::from_secs(if planted(Mutant::HandoverNeverExpires) { 1 << 30 } else { 0 });
    let most = context.directory.policy(&open.from).handover;
    let due = context.now.mono_at(open.deadline, most) + never;
    let (_, due) = *progress.deadline.get_or_insert((open.id, due));
    let joined =
        open.joining.as_ref().filter(|joining| !state.changes.values().any(|change| change.tx_id == joining.tx_id));
    let request_id = joined.and_then(|joining| joining.request_id.clone());
    if !context.is_open() {
        reject(context, progress, HandoverRejection::SessionClosed, request_id, plan);
    } else if !state.agents.contains(&open.from) {
        reject(context, progress, HandoverRejection::AgentLeft, request_id, plan);
    } else if !context.directory.agents.contains_key(&open.to) {
        reject(context, progress, HandoverRejection::Unavailable, request_id, plan);
    } else if joined.is_some() && state.agents.contains(&open.to) {
        confirm(context, progress, request_id, plan);
    } else if joined.is_some() {
        reject(context, progress, HandoverRejection::Unavailable, request_id, plan);
    } else if open.joining.is_some() {
        // The change of members has a deadline of its own.
        progress.deadline = None;
    } else if due <= context.now.mono {
        reject(context, progress, HandoverRejection::Expired, None, plan);
    }
}

fn confirm(context: &SessionContext, progress: &mut HandoverProgress, request_id: Option<RequestId>, plan: &mut Plan) {
    let Some(open) = &context.state.handovers.open else { return };
    let handover_id = open.id;
    let from = open.from.clone();
    let to = open.to.clone();
    let done = HandoverConfirmed { handover_id, from, to, request_id };
    end(context, progress, handover_id, Fact::Handover(HandoverFact::Confirmed(done)), plan);
    plan.handover(HandoverCommand::Activate);
}

fn reject(
    context: &SessionContext,
    progress: &mut HandoverProgress,
    why: HandoverRejection,
    request_id: Option<RequestId>,
    plan: &mut Plan,
) {
    let Some(open) = &context.state.handovers.open else { return };
    let handover_id = open.id;
    let from = open.from.clone();
    let to = open.to.clone();
    let rejected = HandoverRejected { handover_id, from, to, why, request_id };
    end(context, progress, handover_id, Fact::Handover(HandoverFact::Rejected(rejected)), plan);
}

/// Ends the handover, and answers all decisions.
fn end(context: &SessionContext, progress: &mut HandoverProgress, id: EventId, fact: Fact, plan: &mut Plan) {
    let mut decisions = std::mem::take(&mut progress.decisions).into_iter();
    let first = decisions.next();
    let answers = first.as_ref().map(|(position, _)| *position);
    plan.record(context, fact, RecordContext { answers, ..RecordContext::tx(id) });
    progress.deadline = None;
    if let Some((_, control)) = first {
        plan.answer_with_fact(&control);
    }
    for (position, control) in decisions {
        plan.answer_without_fact(position, &control);
    }
}

/// Makes the agent of a confirmed handover active. This is a separate fact, which a lost owner may not have recorded.
pub(super) fn activate_confirmed(context: &SessionContext, plan: &mut Plan) {
    let state = &context.state;
    let given = state.handovers.given.as_ref().filter(|given| !given.switched && context.is_open());
    let Some(given) = given else { return };
    if state.agents.contains(&given.to) && state.active.as_ref() != Some(&given.to) {
        let why = (HANDOVER.to_owned(), HANDOVER);
        plan.record_switch(context, &given.to, why, None, RecordContext::tx(given.id));
    }
}
