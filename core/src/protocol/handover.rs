//! Handovers: an agent asks that another one answer from now on, and a person decides (scenario F).
use crate::id::{AgentId, EventId, RequestId, RunId};
use crate::private::Private;
use crate::protocol::agent::Mark;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// What an agent asks for during its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverWish {
    /// Who is to answer.
    pub to: AgentId,
    /// Why, for the person who decides.
    pub reason: Private<String>,
    /// What the other agent needs to know.
    pub summary: Private<String>,
}

/// An agent has asked, and a person is asked: `handover.requested`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverAsked {
    /// The transaction: the id of this fact, and on everything that follows from it (SR-T13).
    pub handover_id: EventId,
    /// Who asks.
    pub from: AgentId,
    /// Who is to answer.
    pub to: AgentId,
    /// Why, for the person who decides.
    pub reason: Private<String>,
    /// What the other agent needs to know.
    pub summary: Private<String>,
    /// When it is rejected if nobody has decided.
    pub deadline_ms: Millis,
    /// How far the attempt is recorded with it, where that can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
}

/// A person has agreed, and the other agent is a member: `handover.confirmed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverConfirmed {
    /// The transaction.
    pub handover_id: EventId,
    /// Who has asked.
    pub from: AgentId,
    /// Who answers.
    pub to: AgentId,
    /// Of the request that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// Nothing has changed: `handover.rejected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverRejected {
    /// The transaction.
    pub handover_id: EventId,
    /// Who has asked.
    pub from: AgentId,
    /// Who was to answer.
    pub to: AgentId,
    /// Why.
    pub why: Rejection,
    /// Of the request that decided, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// Why a handover came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// A person did not want it.
    Refused,
    /// Nobody has decided in time.
    Expired,
    /// There is no such agent, or it could not become a member.
    Unavailable,
    /// Who has asked has left.
    AgentLeft,
    /// The session closes.
    SessionClosed,
}

/// What the agent that was handed a session is told with its next turn, as `context.handover`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverContext {
    /// The transaction.
    pub handover_id: EventId,
    /// Who has handed over.
    pub from: AgentId,
    /// In which turn.
    pub run_id: RunId,
    /// Why.
    pub reason: Private<String>,
    /// What it thought worth knowing.
    pub summary: Private<String>,
    /// What it said in that turn: the end of it (SR-T9), at most
    /// [`HANDOVER_TEXT_BYTES_MAX`](crate::limits::HANDOVER_TEXT_BYTES_MAX) bytes.
    pub text: Private<String>,
    /// Something before that was left out.
    #[serde(default, rename = "truncated", skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

// === impl Rejection ===

impl Rejection {
    /// As on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Unavailable => "unavailable",
            Self::AgentLeft => "agent_left",
            Self::SessionClosed => "session_closed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: LN-SR13.
    #[test]
    fn a_reason_is_kept_as_it_is_written() {
        use Rejection::{AgentLeft, Expired, Refused, SessionClosed, Unavailable};
        for why in [Refused, Expired, Unavailable, AgentLeft, SessionClosed] {
            assert_eq!(serde_json::to_value(why).ok(), Some(why.as_str().into()));
        }
    }
}
