//! Rendering of lists of deliveries.
use super::reply_frame;
use crate::channel::json::delivery::{DeliveryListPayload, MessageAcceptedPayload};
use crate::channel::json::frame::{MessageFrame, to_json};
use crate::channel::notification::{AcceptedSend, DeliveryListReply};
use turnway_core::time::Millis;

/// Renders the answer to `list_deliveries`.
pub(super) fn render_delivery_list(ts: Millis, reply: &DeliveryListReply) -> String {
    let session_id = Some(&reply.session);
    let frame = reply_frame(ts, "deliveries", &reply.request_id, DeliveryListPayload::from(reply));
    MessageFrame { session_id, ..frame }.text(reply.weight())
}

/// Renders the answer to `send_message`.
pub(super) fn render_message_accepted(ts: Millis, accepted: &AcceptedSend) -> String {
    let session_id = Some(&accepted.session);
    let body = MessageAcceptedPayload::from(accepted);
    MessageFrame { session_id, ..reply_frame(ts, "message_accepted", &accepted.request_id, body) }.text(256)
}

/// Returns the fields of the answer as a JSON object, for HTTP.
pub fn delivery_list_object(reply: &DeliveryListReply) -> String {
    to_json(&DeliveryListPayload::from(reply), reply.weight())
}
