//! Rendering of lists of deliveries.
use super::reply_frame;
use crate::channel::json::delivery::DeliveryListPayload;
use crate::channel::json::frame::{MessageFrame, to_json};
use crate::channel::notification::DeliveryListReply;
use turnway_core::time::Millis;

/// Renders the answer to `list_deliveries`.
pub(super) fn render_delivery_list(ts: Millis, reply: &DeliveryListReply) -> String {
    let session_id = Some(&reply.session);
    let frame = reply_frame(ts, "deliveries", &reply.request_id, DeliveryListPayload::from(reply));
    MessageFrame { session_id, ..frame }.text(reply.weight())
}

/// Returns the fields of the answer as a JSON object, for HTTP.
pub fn delivery_list_object(reply: &DeliveryListReply) -> String {
    to_json(&DeliveryListPayload::from(reply), reply.weight())
}
