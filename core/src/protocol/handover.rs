//! Handovers: an agent requests that another agent takes over the session, and a person decides (scenario F).
use crate::id::{AgentId, EventId, RequestId, RunId};
use crate::private::Private;
use crate::protocol::agent::EventMark;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// A request of an agent for a handover, during its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverRequest {
    /// The agent that is to take over.
    pub to: AgentId,
    /// For the person who decides.
    pub reason: Private<String>,
    /// Information for the other agent.
    pub summary: Private<String>,
}

/// The fact that an agent has requested a handover, and a person is asked: `handover.requested`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverRequested {
    /// The transaction: the id of this fact, repeated in every fact that follows from it (SR-T13).
    pub handover_id: EventId,
    /// The requesting agent.
    pub from: AgentId,
    /// The agent that is to take over.
    pub to: AgentId,
    /// For the person who decides.
    pub reason: Private<String>,
    /// Information for the other agent.
    pub summary: Private<String>,
    /// The time at which the handover is rejected without a decision.
    pub deadline_ms: Millis,
    /// The attempt's recorded position including this fact, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<EventMark>,
}

/// The fact that a person has agreed and the other agent is a member: `handover.confirmed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverConfirmed {
    pub handover_id: EventId,
    pub from: AgentId,
    /// The agent that has taken over.
    pub to: AgentId,
    /// Id of the request that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// The fact that a handover was rejected and nothing has changed: `handover.rejected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverRejected {
    pub handover_id: EventId,
    pub from: AgentId,
    /// The agent that was to take over.
    pub to: AgentId,
    pub why: HandoverRejection,
    /// Id of the request that decided, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// The reason for a rejected handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoverRejection {
    /// A person refused.
    Refused,
    /// Nobody decided in time.
    Expired,
    /// The agent does not exist, or could not become a member.
    Unavailable,
    /// The requesting agent has left.
    AgentLeft,
    /// The session closes.
    SessionClosed,
}

/// Information for the agent that has taken over, sent with its next turn as `context.handover`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverContext {
    pub handover_id: EventId,
    /// The agent that handed the session over.
    pub from: AgentId,
    /// The turn in which the handover was requested.
    pub run_id: RunId,
    pub reason: Private<String>,
    /// The summary by the previous agent.
    pub summary: Private<String>,
    /// The end of the previous agent's answer in that turn (SR-T9), at most
    /// [`HANDOVER_TEXT_BYTES_MAX`](crate::limits::HANDOVER_TEXT_BYTES_MAX) bytes.
    pub text: Private<String>,
    /// True if the beginning of the answer was left out.
    #[serde(default, rename = "truncated", skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

// === impl HandoverRejection ===

impl HandoverRejection {
    /// Returns the name on the wire.
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
    fn rejection_serialises_as_its_name() {
        use HandoverRejection::{AgentLeft, Expired, Refused, SessionClosed, Unavailable};
        for why in [Refused, Expired, Unavailable, AgentLeft, SessionClosed] {
            assert_eq!(serde_json::to_value(why).ok(), Some(why.as_str().into()));
        }
    }
}
