//! Facts of inputs and their admission. Called through [`super::Fact`].
use super::Admission;
use super::family::{FactKind, fact_family};
use crate::id::{AgentId, MessageId, RequestId, RunId, UserId};
use crate::protocol::delivery::InputOrigin;
use crate::protocol::input::{Content, Message, Strategy};
use crate::protocol::json::Json;
use crate::protocol::steer::SteerOutcome;
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about inputs: the message, its admission, and the answer of an agent that it was handed to.
    pub enum InputFact {
        /// A user's message.
        "user.message" -> "message" => UserMessage {
            message_id: MessageId,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
            user: UserId,
            message: Message,
            /// SHA-256 of the earlier messages, hex; the messages themselves are sent to the agent only.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            history_sha256: Option<String>,
            /// The addressed agent, if any.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            agent_id: Option<AgentId>,
            /// The strategy that the client asked for.
            #[serde(default)]
            strategy: Strategy,
            /// Passed on unchanged.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            metadata: Option<Json>,
            /// The conversation that the message came from, if an adapter brought it.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            origin: Option<Box<InputOrigin>>,
        },
        /// The owner's decision on the input.
        "turn.admitted" -> "event TURN_ADMITTED" => Admitted {
            /// The agent that will answer.
            agent_id: AgentId,
            strategy: Admission,
            /// Number of inputs before this one, if it waits.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            position: Option<u32>,
            /// The run that the input is handed to.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            host_run_id: Option<RunId>,
            /// The run whose place the input takes: that run has ended, and its agent was never asked.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            replaces: Option<RunId>,
        },
        /// The input becomes part of an earlier one's turn, which starts now, and ends with that turn.
        "turn.gathered" -> "" [since(4)] => Gathered {
            /// The turn that takes the input along.
            host_run_id: RunId,
        },
        /// The answer of the running agent to an input that it was handed (ST-8).
        "agent.steer.acked" -> "event STEER_ACK" => SteerAcked {
            agent_id: AgentId,
            host_run_id: RunId,
            /// The attempt of the host run.
            attempt: u32,
            outcome: SteerOutcome,
        },
    }
}

impl InputFact {
    /// Returns the bytes of content, in addition to the fixed weight of a fact.
    pub(super) fn content_bytes(&self) -> usize {
        match self {
            Self::UserMessage { message, .. } => match &message.content {
                Content::Text(text) => text.len(),
                Content::Parts(parts) => parts.len() * 512,
            },
            Self::Admitted { .. } | Self::Gathered { .. } | Self::SteerAcked { .. } => 0,
        }
    }
}
