//! Rendering of signals to adapters: typing, previews, and the removal of previews.
use super::reply_frame;
use crate::channel::adapter::PREVIEW_KIND;
use serde::Serialize;
use turnway_core::id::{DeliveryId, MessageId};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::name_file_references;
use turnway_core::protocol::signal::{ConversationSignal, SignalKind, preview_key};
use turnway_core::time::Millis;

#[derive(Serialize)]
struct TypingPayload<'a> {
    conversation: &'a ConversationRef,
    state: &'static str,
}

#[derive(Serialize)]
struct PreviewPayload<'a> {
    delivery_id: &'a DeliveryId,
    attempt: u32,
    part: u32,
    parts: u32,
    conversation: &'a ConversationRef,
    kind: &'static str,
    text: &'a str,
    reply_to: &'a MessageId,
    key: String,
    deadline_ts: Millis,
}

#[derive(Serialize)]
struct DeleteMessagePayload<'a> {
    conversation: &'a ConversationRef,
    key: String,
}

/// Renders a signal.
pub(super) fn render_signal(ts: Millis, signal: &ConversationSignal) -> String {
    let ConversationSignal { conversation, kind, key } = signal;
    match kind {
        SignalKind::Typing { is_on } => {
            let body = TypingPayload { conversation, state: if *is_on { "on" } else { "off" } };
            reply_frame(ts, "typing", &None, body).text(256)
        }
        SignalKind::Preview(preview) => {
            let body = PreviewPayload {
                delivery_id: &preview.preview_id,
                attempt: 1,
                part: 1,
                parts: 1,
                conversation,
                kind: PREVIEW_KIND,
                text: &name_file_references(&key.session, preview.text.reveal()),
                reply_to: &preview.reply_to,
                key: preview_key(&preview.preview_id),
                deadline_ts: preview.deadline,
            };
            reply_frame(ts, "deliver", &None, body).text(512 + preview.text.reveal().len())
        }
        SignalKind::RemovePreview { preview_id } => {
            let body = DeleteMessagePayload { conversation, key: preview_key(preview_id) };
            reply_frame(ts, "delete_message", &None, body).text(256)
        }
    }
}
