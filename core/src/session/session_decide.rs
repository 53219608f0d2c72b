//! The control lane: open, close, cancel (scenarios C and H) and labels. Entries of other families become commands to those
//! families. Writes to `ControlLane`, never to `State`.
use crate::id::{AgentId, InboxPosition, RunId};
use crate::protocol::entry::{Fact, SessionFact};
use crate::protocol::input::{ControlEntry, ControlRequest};
use crate::protocol::refusal::Code;
use crate::session::command::{
    BindingFactCommand, DeliveryFactCommand, HandoverCommand, MemberCommand, ModelCommand, RunCommand, SessionCommand,
};
use crate::session::context::SessionContext;
use crate::session::control_lane::ControlLane;
use crate::session::outbox::Output;
use crate::session::plan::{Plan, RecordContext};
use crate::session::state::SessionPhase;
use std::sync::Arc;

/// Decides on a command about the session itself.
pub(super) fn decide(context: &SessionContext, lane: &mut ControlLane, command: SessionCommand, plan: &mut Plan) {
    match command {
        SessionCommand::RunControls => run_controls(context, lane, plan),
    }
}

/// Handles the entries of the control lane, in order. Only an open or close after a close waits, until that close is
/// finished.
pub(super) fn run_controls(context: &SessionContext, lane: &mut ControlLane, plan: &mut Plan) {
    let Some((position, control)) = lane.waiting.pop_front() else { return };
    match &control.what {
        ControlRequest::Open { .. } | ControlRequest::Close if lane.close.is_some() => {
            lane.waiting.push_front((position, control));
            return;
        }
        ControlRequest::Open { agents, active } => {
            handle_open(context, (position, &control), agents.clone(), active.clone(), plan);
        }
        ControlRequest::Close => handle_close(context, lane, position, control, plan),
        ControlRequest::Switch { .. } | ControlRequest::Invite { .. } | ControlRequest::Remove { .. } => {
            plan.member(MemberCommand::Take((position, control)));
        }
        ControlRequest::Handover { .. } => {
            // The deadline may have passed, or the session may be closing.
            plan.handover(HandoverCommand::Settle);
            plan.handover(HandoverCommand::Take((position, control)));
        }
        ControlRequest::Cancel { run_id: Some(run_id) } => {
            let run_id = run_id.clone();
            handle_cancel(context, lane, (position, control), run_id, plan);
        }
        ControlRequest::Cancel { run_id: None } => {
            let open = context.state.running.clone().or_else(|| context.state.waiting.first().cloned());
            match open {
                Some(run_id) => {
                    plan.run(RunCommand::Cancel { run_id, reason: "user", by: Some((position, control)) });
                }
                None => plan.answer_with_notice(context, "NO_ACTIVE_SPEAKING", position, &control),
            }
        }
        ControlRequest::Label { label } => {
            let request_id = control.request_id.clone();
            let fact = Fact::Session(SessionFact::Labelled { label: label.clone(), request_id });
            plan.record(context, fact, RecordContext { answers: Some(position), ..RecordContext::default() });
            plan.answer_with_fact(&control);
        }
        ControlRequest::RecordBinding { .. } | ControlRequest::RecordBindingEnd { .. } => {
            plan.binding(BindingFactCommand::Take((position, control)));
        }
        ControlRequest::StartModelCall { .. } | ControlRequest::EndModelCall { .. } => {
            plan.model(ModelCommand::Take((position, control)));
        }
        ControlRequest::SettleDelivery { .. }
        | ControlRequest::SendMessage { .. }
        | ControlRequest::CreateConversation { .. } => {
            plan.delivery(DeliveryFactCommand::Take((position, control)));
        }
    }
    // The next entry is decided once this one is performed.
    if !lane.waiting.is_empty() {
        plan.session(SessionCommand::RunControls);
    }
}

fn handle_open(
    context: &SessionContext,
    (position, control): (InboxPosition, &ControlEntry),
    mut agents: Vec<AgentId>,
    active: Option<AgentId>,
    plan: &mut Plan,
) {
    if context.is_open() {
        return plan.answer_without_fact(position, control);
    }
    if agents.is_empty() {
        agents.clone_from(&context.state.agents);
    }
    if agents.is_empty() {
        agents = context.directory.default_members(active.as_ref());
    }
    let first = active.filter(|active| agents.contains(active)).or_else(|| agents.first().cloned());
    let Some(active_agent) = first else {
        return plan.answer_with_notice(context, Code::SessionOpenFailed.as_str(), position, control);
    };
    let user = context.session_user(&control.user);
    let request_id = control.request_id.clone();
    let fact = Fact::Session(SessionFact::Opened { user, agents, active_agent, request_id });
    let about = RecordContext { answers: Some(position), closed: Some(false), ..RecordContext::default() };
    plan.record(context, fact, about);
    plan.answer_with_fact(control);
}

fn handle_close(
    context: &SessionContext,
    lane: &mut ControlLane,
    position: InboxPosition,
    control: Arc<ControlEntry>,
    plan: &mut Plan,
) {
    match context.state.phase {
        SessionPhase::Closed => return plan.answer_without_fact(position, &control),
        SessionPhase::Closing => {}
        SessionPhase::New | SessionPhase::Open => {
            let request_id = control.request_id.clone();
            plan.record(context, Fact::Session(SessionFact::Closing { request_id }), RecordContext::default());
        }
    }
    lane.close = Some((position, control));
    for run_id in context.state.waiting.iter().chain(&context.state.running) {
        plan.run(RunCommand::Stop(run_id.clone()));
    }
}

/// Finishes a close once no turn, change of members or handover is open; the close's entry stays in the lane until
/// then, so that the close survives its owner (SR-H2).
pub(super) fn finish_close(context: &SessionContext, lane: &mut ControlLane, plan: &mut Plan) {
    let changes = !context.state.changes.is_empty() || context.state.handovers.open.is_some();
    let open = context.state.has_open_turn() || changes;
    if context.state.phase != SessionPhase::Closing || open {
        return;
    }
    let Some((position, control)) = lane.close.take() else { return };
    let request_id = control.request_id.clone();
    let about = RecordContext { answers: Some(position), closed: Some(true), ..RecordContext::default() };
    plan.record(context, Fact::Session(SessionFact::Closed { request_id }), about);
    plan.answer_with_fact(&control);
}

fn handle_cancel(
    context: &SessionContext,
    lane: &mut ControlLane,
    entry: (InboxPosition, Arc<ControlEntry>),
    run_id: RunId,
    plan: &mut Plan,
) {
    if context.state.runs.contains_key(&run_id) && context.inputs.contains_key(&run_id) {
        return plan.run(RunCommand::Cancel { run_id, reason: "user", by: Some(entry) });
    }
    // The turn has ended, or its input is in the inbox behind the last one read: the lanes have no common order.
    lane.early_cancels.insert(run_id, entry);
    plan.send(Output::ReadInbox);
}

/// Answers the cancels of turns that are not in the inbox, which was read up to its end.
pub(super) fn answer_early_cancels(context: &SessionContext, lane: &mut ControlLane, plan: &mut Plan) {
    // The store may have lost the input of a turn that is in the log: that turn is cancelled as soon as its client,
    // which alone can, sends the input again.
    let is_kept = |run_id: &RunId| context.state.runs.contains_key(run_id);
    for (_, (position, control)) in lane.early_cancels.extract_if(.., |run_id, _| !is_kept(run_id)) {
        plan.answer_without_fact(position, &control);
    }
}
