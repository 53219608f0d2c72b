//! Decisions on what an agent does with messages of conversations: actions that the gateway carries out. Called by
//! `action_decide`.
use crate::id::{DeliveryId, EventId, MessageId, RunId, ToolName};
use crate::limits;
use crate::planted::{Planted, planted};
use crate::private::Private;
use crate::protocol::delivery::{
    ButtonDisplay, ButtonSet, DeliveryKind, DeliveryRequested, InputOrigin, MessageChange, Reaction, split_text,
};
use crate::protocol::json::Json;
use crate::protocol::message_action::{DELETE_TOOL, EDIT_TOOL};
use crate::session::context::SessionContext;
use crate::session::delivery_state::{Deliveries, RecentDelivery};
use crate::session::delivery_unasked::unasked;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::Arc;

/// The level of facts since which sessions know their latest answers, and their buttons.
const MESSAGE_LEVEL: u32 = 4;

/// A stable code and a description of the reason for which an action is refused.
pub(super) type MessageRefusal = (&'static str, &'static str);

const UPGRADING: MessageRefusal = ("not_supported", "a node of an earlier release is running");
const NO_CONVERSATION: MessageRefusal = ("no_conversation", "the turn did not come from a conversation of a platform");

/// The arguments of the tool that edits an answer.
#[derive(Deserialize)]
struct EditArgs {
    #[serde(flatten)]
    answer: AnswerName,
    text: Private<String>,
}

/// The name of an answer: one of its run and its delivery.
#[derive(Deserialize)]
struct AnswerName {
    run_id: Option<RunId>,
    delivery_id: Option<DeliveryId>,
}

/// The arguments of the tool that reacts to a message.
#[derive(Deserialize)]
struct ReactArgs {
    /// The run whose message is meant; absent: the running one.
    run_id: Option<RunId>,
    #[serde(flatten)]
    reaction: Reaction,
}

/// Checks the buttons that an agent wants below its answer. Returns the result of the action, which says how they are shown.
pub(super) fn check_buttons(context: &SessionContext, run_id: &RunId, args: &Json) -> Result<Json, MessageRefusal> {
    if context.fact_level < MESSAGE_LEVEL {
        return Err(UPGRADING);
    }
    let set: ButtonSet = serde_json::from_value(args.0.clone()).map_err(|_| {
        ("invalid_buttons", "the arguments need `buttons`, a list of `id`, `label` and perhaps `style`")
    })?;
    set.check().map_err(|why| ("invalid_buttons", why))?;
    let Some(open) = context.state.deliveries.origins.get(run_id) else {
        return Err(NO_CONVERSATION);
    };
    let display = ButtonDisplay::of_level(open.origin.buttons);
    if display == ButtonDisplay::Rejected {
        return Err(("not_supported", "the adapter of the conversation takes no buttons"));
    }
    Ok(Json(json!({"shown": display.as_str()})))
}

/// Checks the change of a message that an agent wants. Returns the delivery that makes the change. Only messages of the
/// conversation that the running turn came from can be changed, and no agent names one by the platform's id.
pub(super) fn check_change(
    context: &SessionContext,
    (run_id, action_id): (&RunId, EventId),
    tool: &ToolName,
    args: &Json,
) -> Result<DeliveryRequested, MessageRefusal> {
    if context.fact_level < MESSAGE_LEVEL {
        return Err(UPGRADING);
    }
    let asked = context.state.actions.message_change_count(run_id);
    if asked >= limits::RUN_MESSAGE_CHANGES_MAX && !planted(Planted::RunChangesUnbounded) {
        return Err(("too_many", "the run has changed as many messages as it may"));
    }
    let deliveries = &context.state.deliveries;
    // The conversation of a task is not that of the message which led to the task.
    let origin = deliveries.origins.get(run_id).map(|open| &open.origin).filter(|origin| origin.task.is_none());
    let origin = origin.ok_or(NO_CONVERSATION)?;
    let requested = match tool.as_str() {
        EDIT_TOOL => {
            edit(deliveries, origin, parse(args, "the arguments need `text`, and `run_id` or `delivery_id`")?)?
        }
        DELETE_TOOL => deletion(deliveries, origin, &parse(args, "the arguments need `run_id` or `delivery_id`")?)?,
        _ => {
            let args = parse(args, "the arguments need `emoji`, and may have `remove` and `run_id`")?;
            reaction(deliveries, (run_id, origin), args)?
        }
    };
    let place = &requested.conversation;
    let name = action_id.to_string();
    let names = [place.account_id.as_str(), place.conversation_id.as_str(), name.as_str()];
    let delivery_id = DeliveryId::derive(&context.key.tenant, run_id, requested.kind.as_str(), &names);
    Ok(DeliveryRequested { delivery_id, about_run: Some(run_id.clone()), ..requested })
}

/// Returns the result of an action whose delivery is requested.
pub(super) fn change_result(delivery_id: &DeliveryId) -> Json {
    Json(json!({"delivery_id": delivery_id, "status": "requested"}))
}

fn parse<T: DeserializeOwned>(args: &Json, why: &'static str) -> Result<T, MessageRefusal> {
    serde_json::from_value(args.0.clone()).map_err(|_| ("invalid_arguments", why))
}

fn edit(deliveries: &Deliveries, origin: &InputOrigin, args: EditArgs) -> Result<DeliveryRequested, MessageRefusal> {
    let EditArgs { answer, text } = args;
    let answer = find_answer(deliveries, origin, &answer)?;
    if answer.parts != 1 {
        return Err(("several_parts", "the answer was sent as several messages, which can only be deleted"));
    }
    if text.reveal().trim().is_empty() {
        return Err(("invalid_arguments", "`text` is empty"));
    }
    let limit = answer.text_limit;
    let mut parts = split_text(text.reveal(), limit.max as usize, limit.unit);
    match parts.pop().filter(|_| parts.is_empty()) {
        Some(part) => Ok(change_of(DeliveryKind::Edit, answer, vec![Private(part)])),
        None => Err(("too_long", "the text does not fit into one message of the conversation")),
    }
}

fn deletion(
    deliveries: &Deliveries,
    origin: &InputOrigin,
    name: &AnswerName,
) -> Result<DeliveryRequested, MessageRefusal> {
    let answer = find_answer(deliveries, origin, name)?;
    Ok(change_of(DeliveryKind::Delete, answer, vec![Private::default(); answer.external_ids.len()]))
}

fn reaction(
    deliveries: &Deliveries,
    (run_id, origin): (&RunId, &InputOrigin),
    args: ReactArgs,
) -> Result<DeliveryRequested, MessageRefusal> {
    let ReactArgs { run_id: named, reaction } = args;
    if !reaction.is_valid() {
        return Err(("invalid_arguments", "`emoji` is no word of at most 64 bytes"));
    }
    let named = named.as_ref().unwrap_or(run_id);
    let place = &origin.conversation;
    let open = deliveries.origins.get(named).map(|open| &open.origin);
    let open = open.filter(|open| open.task.is_none() && open.conversation.is_same_place(place));
    let answers = deliveries.recent.iter().rev();
    let mut answers = answers.filter(|it| it.about_run == *named && it.conversation.is_same_place(place));
    let message = open.map(|open| &open.message_id).or_else(|| answers.find_map(|it| it.reply_to.as_ref()));
    let message = message.ok_or(("no_such_message", "no message of this conversation has led to this run"))?;
    let change = MessageChange { targets: vec![message.clone()], reaction: Some(reaction) };
    let bare = unasked(DeliveryKind::Reaction, DeliveryId::first(), place, vec![Private::default()]);
    Ok(DeliveryRequested { change: Some(Arc::new(change)), ..bare })
}

/// Returns the answer that an agent names, if the conversation has all messages of it.
fn find_answer<'a>(
    deliveries: &'a Deliveries,
    origin: &InputOrigin,
    name: &AnswerName,
) -> Result<&'a RecentDelivery, MessageRefusal> {
    if name.run_id.is_some() == name.delivery_id.is_some() {
        return Err(("invalid_arguments", "the answer is named by one of `run_id` and `delivery_id`"));
    }
    let is_its = |answer: &&RecentDelivery| {
        let is_there = answer.conversation.is_same_place(&origin.conversation);
        let is_named = Some(&answer.about_run) == name.run_id.as_ref()
            || Some(&answer.delivery_id) == name.delivery_id.as_ref()
            || planted(Planted::EditOfNewestAnswer);
        is_named && (is_there || planted(Planted::ChangeInOtherPlace))
    };
    let answer = deliveries.recent.iter().rev().find(is_its);
    let answer = answer.filter(|answer| !deliveries.is_being_deleted(answer));
    let answer = answer.ok_or(("no_such_delivery", "the conversation has no such answer of this session"))?;
    if answer.is_sent() { Ok(answer) } else { Err(("not_sent", "the platform does not have the whole answer")) }
}

/// Returns the request of a change of all messages of an answer.
fn change_of(kind: DeliveryKind, answer: &RecentDelivery, parts: Vec<Private<String>>) -> DeliveryRequested {
    let targets: Vec<MessageId> = answer.external_ids.clone();
    let change = Some(Arc::new(MessageChange { targets, reaction: None }));
    let bare = unasked(kind, DeliveryId::first(), &answer.conversation, parts);
    DeliveryRequested { generation: answer.generation, change, ..bare }
}
