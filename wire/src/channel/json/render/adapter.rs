//! Rendering of messages to adapters.
use super::reply_frame;
use crate::channel::adapter::{AdapterState, DeliverMessage, IgnoreReason, InboundReceipt, PreparedFiles};
use crate::channel::json::frame::MessageFrame;
use serde::Serialize;
use turnway_core::id::{DeliveryId, MessageId};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{
    Button, DeliveryKind, FileReference, PauseReason, Reaction, name_file_references, take_file_references,
};
use turnway_core::time::Millis;

#[derive(Serialize)]
struct DeliverPayload<'a> {
    delivery_id: &'a DeliveryId,
    attempt: u32,
    part: u32,
    parts: u32,
    conversation: &'a ConversationRef,
    kind: DeliveryKind,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<&'a MessageId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    buttons: Option<&'a [Button]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<FileReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetPayload<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reaction: Option<&'a Reaction>,
    key: String,
    deadline_ts: Millis,
}

/// The message that a change is about: one of the gateway, or one that somebody wrote.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum TargetPayload<'a> {
    ExternalId(&'a MessageId),
    MessageId(&'a MessageId),
}

#[derive(Serialize)]
struct CreateConversationPayload<'a> {
    delivery_id: &'a DeliveryId,
    attempt: u32,
    /// The conversation that is to contain the new one.
    parent: &'a ConversationRef,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<&'a MessageId>,
    key: String,
    deadline_ts: Millis,
}

#[derive(Serialize)]
struct InboundAcceptedPayload {
    disposition: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    duplicate: bool,
}

#[derive(Serialize)]
struct FilesPreparedPayload<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ts: Option<Millis>,
}

#[derive(Serialize)]
struct AdapterStatePayload<'a> {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_node_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<PausePayload<'a>>,
}

/// The pause of the adapter's account, without what only operators may know.
#[derive(Serialize)]
struct PausePayload<'a> {
    reason: PauseReason,
    since: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_id: Option<&'a DeliveryId>,
}

/// Renders the order to send a part.
pub(super) fn render_deliver(ts: Millis, message: &DeliverMessage) -> String {
    let DeliverMessage { order, attempt, takes_files, file_token } = message;
    if order.kind == DeliveryKind::Conversation {
        return render_create_conversation(ts, message);
    }
    let (text, attachments) = if *takes_files && order.kind.is_message() {
        take_file_references(&order.key.session, order.text.reveal())
    } else {
        (name_file_references(&order.key.session, order.text.reveal()), Vec::new())
    };
    let file_token = file_token.as_ref().filter(|_| !attachments.is_empty());
    let reaction = order.change.as_ref().and_then(|change| change.reaction.as_ref());
    let body = DeliverPayload {
        delivery_id: &order.delivery_id,
        attempt: *attempt,
        part: order.part,
        parts: order.parts,
        conversation: &order.conversation,
        kind: order.kind,
        text: &text,
        reply_to: order.reply_to.as_ref(),
        attachments,
        file_token: file_token.map(|token| token.reveal()),
        buttons: order.buttons.as_ref().map(|set| set.buttons.as_slice()),
        target: order.target().map(if reaction.is_some() {
            TargetPayload::MessageId
        } else {
            TargetPayload::ExternalId
        }),
        reaction,
        key: order.dedupe_key(),
        deadline_ts: order.deadline,
    };
    reply_frame(ts, "deliver", &None, body).text(512 + order.text.reveal().len())
}

/// Renders the order to make a conversation.
fn render_create_conversation(ts: Millis, message: &DeliverMessage) -> String {
    let DeliverMessage { order, attempt, .. } = message;
    let body = CreateConversationPayload {
        delivery_id: &order.delivery_id,
        attempt: *attempt,
        parent: &order.conversation,
        name: order.text.reveal(),
        reply_to: order.reply_to.as_ref(),
        key: order.dedupe_key(),
        deadline_ts: order.deadline,
    };
    reply_frame(ts, "create_conversation", &None, body).text(512 + order.text.reveal().len())
}

/// Renders the answer to an inbound event.
pub(super) fn render_inbound_accepted(ts: Millis, receipt: &InboundReceipt) -> String {
    let InboundReceipt { request_id, disposition, reason, session, run_id, duplicate } = receipt;
    let reason = reason.map(IgnoreReason::as_str);
    let body = InboundAcceptedPayload { disposition: disposition.as_str(), reason, duplicate: *duplicate };
    let frame = reply_frame(ts, "inbound_accepted", request_id, body);
    MessageFrame { session_id: session.as_ref(), run_id: run_id.as_ref(), ..frame }.text(320)
}

/// Renders the right to add files to a session.
pub(super) fn render_files_prepared(ts: Millis, files: &PreparedFiles) -> String {
    let PreparedFiles { request_id, key, token, .. } = files;
    let body = FilesPreparedPayload {
        file_token: token.as_ref().map(|token| token.text.reveal()),
        expires_ts: token.as_ref().map(|token| token.ends),
    };
    let frame = reply_frame(ts, "files_prepared", request_id, body);
    MessageFrame { session_id: Some(&key.session), ..frame }.text(512)
}

/// Renders the state of an adapter's connection.
pub(super) fn render_adapter_state(ts: Millis, state: &AdapterState) -> String {
    let AdapterState { is_active, holder, since, pause } = state;
    let paused = pause.as_deref().map(|pause| PausePayload {
        reason: pause.reason,
        since: pause.since,
        delivery_id: pause.misplaced.as_deref().map(|part| &part.delivery_id),
    });
    let body = AdapterStatePayload {
        state: if *is_active { "active" } else { "standby" },
        holder_node_id: holder.map(|node| node.to_string()),
        since: *since,
        paused,
    };
    reply_frame(ts, "adapter_state", &None, body).text(256)
}
