//! Facts of handovers between agents. Called through [`super::Fact`].
use super::family::{FactKind, fact_family};
use crate::protocol::handover::{HandoverConfirmed, HandoverRejected, HandoverRequested};
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about handovers between agents.
    pub enum HandoverFact {
        /// An agent requests that another agent takes over, and a person is asked to decide (SR-F1, SR-F2).
        "handover.requested" -> "handover_prompt" [starts_transaction] => Requested(HandoverRequested),
        /// The handover is confirmed: the other agent is active from here on (SR-F5).
        "handover.confirmed" -> "event HANDOVER_CONFIRMED" => Confirmed(HandoverConfirmed),
        /// The handover is rejected, and nothing has changed (SR-F9).
        "handover.rejected" -> "event HANDOVER_REJECTED" => Rejected(HandoverRejected),
    }
}

impl HandoverFact {
    /// Returns the bytes of content, in addition to the fixed weight of a fact.
    pub(super) fn content_bytes(&self) -> usize {
        match self {
            Self::Requested(requested) => requested.reason.reveal().len() + requested.summary.reveal().len(),
            Self::Confirmed(_) | Self::Rejected(_) => 0,
        }
    }
}
