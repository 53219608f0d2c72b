//! Describes deliveries and decisions on them, for the OpenAPI document. These types are never instantiated; a test
//! against the running server checks that they match.
#![expect(dead_code, reason = "shapes are only told, never made")]
use super::bindings::ConversationSchema;
use super::words::{DeliveryFailureSchema, DeliveryKindSchema};
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
#[schema(as = Deliveries)]
pub(in crate::http) struct DeliveryListSchema {
    deliveries: Vec<DeliverySchema>,
}

/// A message to a conversation that is not sent
#[derive(Serialize, ToSchema)]
#[schema(as = Delivery)]
struct DeliverySchema {
    delivery_id: String,
    kind: DeliveryKindSchema,
    conversation: ConversationSchema,
    /// The platform's message that it answers
    reply_to: Option<String>,
    state: DeliveryStateSchema,
    /// The reason of `failed`
    reason: Option<DeliveryFailureSchema>,
    /// The part that is sent next, from 1
    part: u32,
    parts: u32,
    /// Recorded attempts at this part, the first one included
    attempts: u32,
    /// Milliseconds since 1970
    requested_ts: u64,
    /// The text of this part
    text: String,
}

/// `held`: nobody knows whether the part was sent
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DeliveryState)]
enum DeliveryStateSchema {
    Pending,
    Held,
    Failed,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Settlement)]
pub(in crate::http) struct SettlementSchema {
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1")]
    session_id: String,
    #[schema(pattern = "^[a-z2-7]{26}$", example = "abcdefghijklmnopqrstuvwxyz")]
    delivery_id: String,
    decision: SettlementDecisionSchema,
}

/// `retry`: send the part again, which then may appear twice
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SettlementDecision)]
enum SettlementDecisionSchema {
    Retry,
    Drop,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SettledDelivery)]
pub(in crate::http) struct SettledDeliverySchema {
    session_id: String,
}
