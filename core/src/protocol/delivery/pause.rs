//! Pauses of accounts: after the platform has put a part elsewhere, or by an operator's request, the gateway sends nothing
//! for an account until an operator resumes it.
use crate::id::{AccountId, ChannelName, DeliveryId, SessionId};
use crate::protocol::conversation::ConversationRef;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// The pause of an account: its adapter is given no parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountPause {
    pub reason: PauseReason,
    pub since: Millis,
    /// The part that caused it, with the reason `misplaced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misplaced: Option<Box<MisplacedPart>>,
}

/// The reason for a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseReason {
    /// The platform has put a part into another conversation than it was sent to.
    Misplaced,
    /// An operator asked for it.
    Operator,
}

/// A part that the platform has put into the wrong place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MisplacedPart {
    pub session_id: SessionId,
    pub delivery_id: DeliveryId,
    pub part: u32,
    /// The conversation that the part was sent to.
    pub conversation: ConversationRef,
    /// The conversation that has it.
    pub place: ConversationRef,
}

/// A paused account of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedAccount {
    pub channel: ChannelName,
    pub account_id: AccountId,
    #[serde(flatten)]
    pub pause: AccountPause,
}

// === impl PauseReason ===

impl PauseReason {
    /// All reasons, for the schema.
    pub const ALL: [Self; 2] = [Self::Misplaced, Self::Operator];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Misplaced => "misplaced",
            Self::Operator => "operator",
        }
    }
}
