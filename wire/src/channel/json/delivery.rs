//! Requests about deliveries as JSON, over any transport, and deliveries in answers.
use crate::channel::command::{LinkCommand, SendCommand};
use crate::channel::json::conversation::{CONVERSATION, parse_optional};
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::{Malformed, MalformedReason};
use crate::channel::json::strict;
use crate::channel::notification::{AcceptedSend, DeliveryListEntry, DeliveryListReply};
use serde::Serialize;
use turnway_core::id::{DeliveryId, MessageId, RequestId, SessionId};
use turnway_core::limits::DELIVERY_TEXT_BYTES_MAX;
use turnway_core::private::Private;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{DeliveryFailure, DeliveryKind};
use turnway_core::protocol::input::ControlRequest;
use turnway_core::session::DeliveryPhase;
use turnway_core::time::Millis;

/// A delivery that is not sent, as lists show it.
#[derive(Serialize)]
struct DeliveryPayload<'a> {
    delivery_id: &'a DeliveryId,
    kind: DeliveryKind,
    conversation: &'a ConversationRef,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<&'a MessageId>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<DeliveryFailure>,
    part: u32,
    parts: u32,
    attempts: u32,
    requested_ts: Millis,
    text: &'a str,
}

/// The deliveries of a session that are not sent.
#[derive(Serialize)]
pub struct DeliveryListPayload<'a> {
    deliveries: Vec<DeliveryPayload<'a>>,
}

/// Parses the body of an HTTP request to settle a delivery; its fields are those of `settle_delivery`.
pub fn parse_settlement_body(text: &str) -> Result<LinkCommand, Malformed> {
    let command = strict::object(text).and_then(|mut fields| parse_settlement(None, &mut fields));
    command.map_err(|reason| Malformed { request_id: None, reason })
}

/// Parses the fields of `settle_delivery`.
pub(super) fn parse_settlement(
    request_id: Option<RequestId>,
    fields: &mut Fields,
) -> Result<LinkCommand, MalformedReason> {
    let session = required(fields::name(fields, "session_id", SessionId::parse)?, "session_id")?;
    let delivery_id = required(fields::name(fields, "delivery_id", DeliveryId::parse)?, "delivery_id")?;
    let again = fields::is_first_of(fields, "decision", ["retry", "drop"])?;
    Ok(LinkCommand::Control { request_id, session, request: ControlRequest::SettleDelivery { delivery_id, again } })
}

/// Parses the body of `POST /v1/sessions/{session_id}/messages`, a `send_message` whose type and session are given by the
/// request's path. If the body repeats the session, it must be the same.
pub fn parse_send_body(text: &str, session: &SessionId) -> Result<SendCommand, Malformed> {
    let malformed = |request_id, reason| Malformed { request_id, reason };
    let mut fields = strict::object(text).map_err(|reason| malformed(None, reason))?;
    let request_id =
        fields::name(&mut fields, "request_id", RequestId::parse).map_err(|reason| malformed(None, reason))?;
    parse_send(request_id.clone(), Some(session), &mut fields).map_err(|reason| malformed(request_id, reason))
}

/// Parses the fields of `send_message`.
pub(super) fn parse_send(
    request_id: Option<RequestId>,
    of_path: Option<&SessionId>,
    fields: &mut Fields,
) -> Result<SendCommand, MalformedReason> {
    let named = fields::name(fields, "session_id", SessionId::parse)?;
    if of_path.is_some() && named.is_some() && named.as_ref() != of_path {
        return Err(MalformedReason::InvalidField("session_id"));
    }
    let session = required(of_path.cloned().or(named), "session_id")?;
    let message_id = fields::name(fields, "message_id", MessageId::parse)?;
    let conversation = parse_optional(fields, CONVERSATION)?;
    let text = required(fields::text(fields, "text")?, "text")?;
    if text.trim().is_empty() || text.len() > DELIVERY_TEXT_BYTES_MAX {
        return Err(MalformedReason::InvalidField("text"));
    }
    Ok(SendCommand { request_id, session, message_id, conversation, text: Private(text) })
}

/// The data of a `message_accepted`.
#[derive(Serialize)]
pub(super) struct MessageAcceptedPayload<'a> {
    message_id: &'a MessageId,
    delivery_id: &'a DeliveryId,
}

impl<'a> From<&'a AcceptedSend> for MessageAcceptedPayload<'a> {
    fn from(accepted: &'a AcceptedSend) -> Self {
        Self { message_id: &accepted.message_id, delivery_id: &accepted.delivery_id }
    }
}

// === impl DeliveryListPayload ===

impl<'a> From<&'a DeliveryListReply> for DeliveryListPayload<'a> {
    fn from(reply: &'a DeliveryListReply) -> Self {
        Self { deliveries: reply.deliveries.iter().map(DeliveryPayload::from).collect() }
    }
}

// === impl DeliveryPayload ===

impl<'a> From<&'a DeliveryListEntry> for DeliveryPayload<'a> {
    fn from(DeliveryListEntry { delivery_id, delivery }: &'a DeliveryListEntry) -> Self {
        let (state, reason) = match delivery.phase {
            DeliveryPhase::Pending | DeliveryPhase::Made => ("pending", None),
            DeliveryPhase::Held => ("held", None),
            DeliveryPhase::Failed(reason) => ("failed", Some(reason)),
        };
        Self {
            delivery_id,
            kind: delivery.kind,
            conversation: &delivery.conversation,
            reply_to: delivery.reply_to.as_ref(),
            state,
            reason,
            part: delivery.next_part(),
            parts: delivery.part_count(),
            attempts: delivery.attempts + 1,
            requested_ts: delivery.requested_at,
            text: delivery.next_text(),
        }
    }
}
