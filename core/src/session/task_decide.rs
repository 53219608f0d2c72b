//! Decisions on tasks, which are actions that the gateway executes: the platform makes a conversation, by a delivery of the
//! session, and the node then opens, binds and runs the session of the task. Called by `action_decide`.
use crate::id::{DeliveryId, EventId, RunId, RunnerId};
use crate::limits;
use crate::planted::{Planted, planted};
use crate::private::Private;
use crate::protocol::action::ToolInvoked;
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::{DeliveryKind, DeliveryRequested};
use crate::protocol::entry::{ActionFact, DeliveryFact, Fact};
use crate::protocol::json::Json;
use crate::protocol::task::{TASK_RUNNER, TaskArgs, TaskOrder, TaskStart};
use crate::session::action_state::Action;
use crate::session::context::SessionContext;
use crate::session::delivery_state::DeliveryPhase;
use crate::session::delivery_unasked::unasked;
use crate::session::outbox::Output;
use crate::session::plan::{FactSource, Plan, RecordContext};

/// A stable code and a description of the reason for which a task is not begun.
pub(super) type TaskRefusal = (&'static str, &'static str);

/// Returns the arguments of a task as they are recorded: with the message that led to it, which the agent cannot choose.
pub(super) fn check_task(context: &SessionContext, run_id: &RunId, args: &Json) -> Result<TaskArgs, TaskRefusal> {
    let args: TaskArgs = serde_json::from_value(args.0.clone()).map_err(|_| {
        (
            "invalid_arguments",
            "the arguments need `agent` and `message`, and may have `title`, `show` and `wake_parent`",
        )
    })?;
    if args.message.trim().is_empty() {
        return Err(("invalid_arguments", "`message` is empty"));
    }
    let origin = context.state.deliveries.origins.get(run_id).map(|open| open.origin.clone());
    let Some(origin) = origin else {
        return Err(("no_conversation", "the turn did not come from a conversation of a platform"));
    };
    if !context.directory.channels.settings(&origin.conversation.channel).spawn_subagent_sessions {
        return Err(("spawn_disabled", "the operator has not set `spawn_subagent_sessions` for this channel"));
    }
    if !context.directory.agents.contains_key(&args.agent) {
        return Err(("unknown_agent", "this gateway has no such agent"));
    }
    if origin.task.map_or(0, |task| task.depth) >= limits::TASK_DEPTH_MAX && !planted(Planted::TaskDepthUnbounded) {
        return Err(("too_deep", "too many tasks were given in tasks"));
    }
    let forged = args.requester.clone().filter(|_| planted(Planted::TaskRequesterForged));
    Ok(TaskArgs { requester: forged.or(Some(Box::new(origin))), conversation: None, ..args })
}

/// Returns the arguments of a refused call, without what only the gateway writes.
pub(super) fn refused_args(mut args: Json) -> Json {
    if let Some(fields) = args.0.as_object_mut() {
        fields.remove("requester");
        fields.remove("conversation");
    }
    args
}

/// Returns the arguments of a task in the form in which facts have them.
pub(super) fn recorded_args(args: &TaskArgs) -> Json {
    // Names, texts and numbers always serialise.
    Json(serde_json::to_value(args).unwrap_or_default())
}

/// Requests the conversation of a task that was just recorded.
pub(super) fn request_conversation(
    context: &SessionContext,
    action_id: EventId,
    plan: &mut Plan,
) -> Option<(DeliveryId, ConversationRef)> {
    let action = context.state.actions.open.get(&action_id)?;
    let args = parse_args(action)?;
    let requester = args.requester.as_deref()?;
    let delivery_id = delivery_of(context, action_id, action, &requester.conversation);
    let name = vec![Private(args.conversation_name())];
    let requested = DeliveryRequested {
        reply_to: requester.task.is_none().then(|| requester.message_id.clone()),
        about_run: Some(action.run_id.clone()),
        ..unasked(DeliveryKind::Conversation, delivery_id.clone(), &requester.conversation, name)
    };
    let about = RecordContext { tx: Some(action_id), ..RecordContext::run(&action.run_id) };
    plan.record(context, Fact::Delivery(DeliveryFact::Requested(requested)), about);
    Some((delivery_id, requester.conversation.clone()))
}

/// Begins the task whose conversation the platform has made.
pub(super) fn start(context: &SessionContext, delivery_id: &DeliveryId, place: &ConversationRef, plan: &mut Plan) {
    let Some((action_id, action)) = awaiting(context, delivery_id) else { return };
    let Some(args) = parse_args(action) else { return };
    let parent = args.requester.as_ref().map(|requester| requester.conversation.conversation_id.clone());
    let conversation = ConversationRef { parent_conversation_id: parent, ..place.clone() };
    let args = TaskArgs { conversation: Some(conversation), ..args };
    let Ok(runner_id) = RunnerId::parse(TASK_RUNNER) else { return };
    let invoked = ToolInvoked { action_id, tool: action.tool.clone(), args: recorded_args(&args), runner_id };
    let about =
        RecordContext { action: Some(action_id), source: FactSource::Runner, ..RecordContext::run(&action.run_id) };
    plan.record(context, Fact::Action(ActionFact::Invoked(invoked)), about);
    plan.send_after(Output::Task(TaskOrder::Start(start_of(context, action_id, action, args))));
}

/// Returns the order that continues a task of an earlier owner; `None` while its conversation is being made.
pub(super) fn continue_order(context: &SessionContext, action_id: EventId, action: &Action) -> Option<Output> {
    let args = begun_args(action)?;
    Some(Output::Task(TaskOrder::Start(start_of(context, action_id, action, args))))
}

/// Returns the order that cancels a task; `None` if it has not begun.
pub(super) fn cancel_order(context: &SessionContext, action_id: EventId, action: &Action) -> Option<Output> {
    let is_kept = planted(Planted::TaskOutlivesCancel);
    let args = begun_args(action).filter(|_| !is_kept)?;
    Some(Output::Task(TaskOrder::Cancel(start_of(context, action_id, action, args))))
}

fn start_of(context: &SessionContext, action_id: EventId, action: &Action, args: TaskArgs) -> Box<TaskStart> {
    Box::new(TaskStart { key: context.key.clone(), action_id, args, is_reported: action.progress_count > 0 })
}

/// Returns the reason why the conversation of a task will not be made; `None` while it may be, or was.
pub(super) fn creation_failure(context: &SessionContext, action_id: EventId, action: &Action) -> Option<&'static str> {
    let id = pending_creation(context, action_id, action)?;
    match context.state.deliveries.open.get(&id).map(|delivery| delivery.phase) {
        None => Some("it was given up"),
        Some(DeliveryPhase::Failed(reason)) => Some(reason.as_str()),
        Some(DeliveryPhase::Pending | DeliveryPhase::Made | DeliveryPhase::Held) => None,
    }
}

/// Returns the task that waits for the conversation that this delivery makes.
pub(super) fn awaiting<'a>(context: &'a SessionContext, delivery_id: &DeliveryId) -> Option<(EventId, &'a Action)> {
    let mut open = context.state.actions.open.iter().map(|(action_id, action)| (*action_id, action));
    open.find(|(action_id, action)| pending_creation(context, *action_id, action).as_ref() == Some(delivery_id))
}

/// Returns the delivery that makes the conversation of a task, if the platform has not made it. Asked after every input of
/// a session with open actions, so arguments are read only while a conversation is awaited.
pub(super) fn pending_creation(context: &SessionContext, action_id: EventId, action: &Action) -> Option<DeliveryId> {
    if action.runner.is_some() {
        return None;
    }
    let requester = parse_args(action)?.requester?;
    Some(delivery_of(context, action_id, action, &requester.conversation))
}

fn delivery_of(context: &SessionContext, action_id: EventId, action: &Action, parent: &ConversationRef) -> DeliveryId {
    let name = action_id.to_string();
    let names = [parent.account_id.as_str(), parent.conversation_id.as_str(), name.as_str()];
    DeliveryId::derive(&context.key.tenant, &action.run_id, DeliveryKind::Conversation.as_str(), &names)
}

/// Returns the arguments of a task that has its conversation.
fn begun_args(action: &Action) -> Option<TaskArgs> {
    parse_args(action).filter(|args| args.conversation.is_some() && action.runner.is_some())
}

fn parse_args(action: &Action) -> Option<TaskArgs> {
    if action.is_task() { serde_json::from_str(action.args.reveal()).ok() } else { None }
}
