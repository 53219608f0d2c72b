//! Facts of deliveries to conversations. Called through [`super::Fact`].
use super::family::{FactKind, fact_family};
use crate::protocol::delivery::{
    DeliveryAttempted, DeliveryFailed, DeliveryHeld, DeliveryRedriven, DeliveryRefused, DeliveryRequested, DeliverySent,
};
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about deliveries.
    pub enum DeliveryFact {
        /// A message is to be sent to a conversation. The first attempt begins with this fact.
        "delivery.requested" -> "" [since(3)] => Requested(DeliveryRequested),
        /// A further attempt begins.
        "delivery.attempted" -> "" [since(3)] => Attempted(DeliveryAttempted),
        /// The platform has a part; with the last one the delivery has ended.
        "delivery.sent" -> "event DELIVERY_SENT" [since(3), plain, annotates("undelivered")] => Sent(DeliverySent),
        /// The delivery waits for an operator's decision.
        "delivery.held" -> "event DELIVERY_HELD" [since(3), plain, annotates("undelivered")] => Held(DeliveryHeld),
        /// The delivery has ended, not sent or not whole.
        "delivery.failed" -> "event DELIVERY_FAILED" [since(3), plain, annotates("undelivered")] => Failed(DeliveryFailed),
        /// The completion of a task is sent nowhere: the router refused to choose a place.
        "delivery.refused" -> "event DELIVERY_REFUSED" [since(3), plain] => Refused(DeliveryRefused),
        /// A held or failed delivery is tried again.
        "delivery.redriven" -> "event DELIVERY_REDRIVEN" [since(3), plain, annotates("undelivered")] => Redriven(DeliveryRedriven),
    }
}

impl DeliveryFact {
    /// Returns the bytes of content, in addition to the fixed weight of a fact.
    pub(super) fn content_bytes(&self) -> usize {
        match self {
            Self::Requested(requested) => {
                let buttons = requested.buttons.as_ref().map_or(0, |buttons| buttons.bytes());
                let change = requested.change.as_ref().map_or(0, |change| change.bytes());
                let binding = requested.binding.as_ref().map_or(0, |binding| binding.bytes());
                buttons + change + binding + requested.parts.iter().map(|part| part.reveal().len()).sum::<usize>()
            }
            Self::Attempted(_)
            | Self::Sent(_)
            | Self::Held(_)
            | Self::Failed(_)
            | Self::Refused(_)
            | Self::Redriven(_) => 0,
        }
    }
}
