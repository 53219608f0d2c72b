//! Decisions on deliveries that answer no message of their conversation: the last word of a binding that has ended, the
//! answers of clients' turns that conversations mirror, texts and conversations that clients ask for, and changes of
//! messages that agents ask for. Called by `delivery_decide`.
use crate::id::{DeliveryId, EventId, InboxPosition, RunId};
use crate::planted::{Planted, planted};
use crate::private::Private;
use crate::protocol::binding::BindingEnd;
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::{
    ConversationCreation, DeliveryKind, DeliveryRequested, MessageSend, TextLimit, split_text,
};
use crate::protocol::entry::{DeliveryFact, Fact};
use crate::protocol::input::ControlEntry;
use crate::session::context::SessionContext;
use crate::session::delivery_decide::{self, DeliveryProgress};
use crate::session::delivery_state::MirrorBinding;
use crate::session::plan::{FactSource, Plan, RecordContext};
use std::sync::Arc;

/// The level of facts since which a delivery may be a farewell, and need be about no run.
const UNASKED_LEVEL: u32 = 4;

/// Requests the last word to a conversation whose binding ends, if its channel has one. Recorded before the end of the
/// binding, which settles the entry of the control lane: an owner that stops in between leaves both the entry and the
/// request to the next one, so the word is neither lost nor said twice. It is sent only after both facts are durable.
pub(super) fn request_farewell(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    ended: &BindingEnd,
    plan: &mut Plan,
) {
    let place = &ended.conversation;
    let Some(text) = context.directory.channels.settings(&place.channel).farewell else { return };
    let deliveries = &context.state.deliveries;
    let is_taken = !delivery_decide::is_suppressed(context, place) && !deliveries.is_full();
    if context.fact_level < UNASKED_LEVEL || !is_taken {
        return;
    }
    let kind = DeliveryKind::Farewell;
    let delivery_id = DeliveryId::derive_without_run(
        &context.key,
        &ended.binding_id.to_string(),
        kind.as_str(),
        &delivery_decide::names_of(place),
    );
    if deliveries.open.contains_key(&delivery_id) && !planted(Planted::FarewellRepeated) {
        return;
    }
    let requested = unasked(kind, delivery_id.clone(), place, split(&text));
    plan.record(context, Fact::Delivery(DeliveryFact::Requested(requested)), RecordContext::default());
    delivery_decide::start_or_fail(context, progress, (delivery_id, place), plan);
}

/// Requests the deliveries of an ended turn of a client to the conversations that mirror it. Each request is one fact; a
/// new owner makes those that are left.
pub(super) fn request_mirrors(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    run_id: &RunId,
    plan: &mut Plan,
) {
    let Some(turn) = context.state.deliveries.mirrored.get(run_id) else { return };
    let parts = split(&format!("{}{}", turn.answer.reveal(), delivery_decide::cut_notice(turn.cut_bytes)));
    let kind = DeliveryKind::Final;
    for MirrorBinding { conversation: place, generation } in turn.places.iter().flatten() {
        let delivery_id =
            DeliveryId::derive(&context.key.tenant, run_id, kind.as_str(), &delivery_decide::names_of(place));
        let requested = DeliveryRequested {
            about_run: Some(run_id.clone()),
            generation: Some(*generation),
            ..unasked(kind, delivery_id.clone(), place, parts.clone())
        };
        plan.record(context, Fact::Delivery(DeliveryFact::Requested(requested)), RecordContext::run(run_id));
        delivery_decide::start_or_fail(context, progress, (delivery_id, place), plan);
    }
}

/// Requests the delivery of a text that a client sends, to the place that the router chose when the text was accepted. If
/// its binding has ended since, no part of the text is sent.
pub(super) fn request_message(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    (position, control): (InboxPosition, &ControlEntry),
    send: &MessageSend,
    plan: &mut Plan,
) {
    let MessageSend { delivery_id, message_id: _, conversation, route, text } = send;
    let requested = DeliveryRequested {
        route: Some(*route),
        ..unasked(DeliveryKind::Notice, delivery_id.clone(), conversation, split(text.reveal()))
    };
    let source = FactSource::User(control.user.clone());
    let about = RecordContext { answers: Some(position), source, ..RecordContext::default() };
    plan.record(context, Fact::Delivery(DeliveryFact::Requested(requested)), about);
    delivery_decide::start_or_fail(context, progress, (delivery_id.clone(), conversation), plan);
    plan.answer_with_fact(control);
}

/// Requests a conversation that the platform is to make within another one, and that is then bound to the session.
pub(super) fn request_creation(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    (position, control): (InboxPosition, &ControlEntry),
    creation: &ConversationCreation,
    plan: &mut Plan,
) {
    let ConversationCreation { delivery_id, creation_id: _, parent, name, binding } = creation;
    let requested = DeliveryRequested {
        binding: Some(Arc::clone(binding)),
        ..unasked(DeliveryKind::Conversation, delivery_id.clone(), parent, vec![name.clone()])
    };
    let source = FactSource::User(control.user.clone());
    let about = RecordContext { answers: Some(position), source, ..RecordContext::default() };
    plan.record(context, Fact::Delivery(DeliveryFact::Requested(requested)), about);
    delivery_decide::start_or_fail(context, progress, (delivery_id.clone(), parent), plan);
    plan.answer_with_fact(control);
}

/// Requests the change of a message that an agent's action has asked for.
pub(super) fn request_change(
    context: &SessionContext,
    progress: &mut DeliveryProgress,
    action_id: EventId,
    requested: DeliveryRequested,
    plan: &mut Plan,
) {
    let delivery_id = requested.delivery_id.clone();
    let place = requested.conversation.clone();
    let about = RecordContext { tx: Some(action_id), run: requested.about_run.clone(), ..RecordContext::default() };
    plan.record(context, Fact::Delivery(DeliveryFact::Requested(requested)), about);
    delivery_decide::start_or_fail(context, progress, (delivery_id, &place), plan);
}

/// Returns the request of a delivery that answers no message, without a route and without a binding.
pub(super) fn unasked(
    kind: DeliveryKind,
    delivery_id: DeliveryId,
    place: &ConversationRef,
    parts: Vec<Private<String>>,
) -> DeliveryRequested {
    DeliveryRequested {
        delivery_id,
        kind,
        conversation: place.clone(),
        reply_to: None,
        about_run: None,
        route: None,
        generation: None,
        buttons: None,
        change: None,
        binding: None,
        text_limit: None,
        parts,
    }
}

/// Splits a text for a conversation whose adapter has named no limit to this session.
fn split(text: &str) -> Vec<Private<String>> {
    let limit = TextLimit::default();
    split_text(text, limit.max as usize, limit.unit).into_iter().map(Private).collect()
}
