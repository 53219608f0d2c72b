//! Messages with agents: what an agent says ([`message`], [`action_request`]), what it is told ([`render`], [`context`]).
//! Agents over HTTP and agents that dial in say the same.
mod action_request;
pub mod context;
pub mod message;
pub mod render;
pub mod surrogates;

use message::AgentMessage;
use serde::{Deserialize, Serialize};

/// An event of an attempt, reported by its agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttemptEvent {
    /// The agent has received the input.
    Acked,
    /// The agent has stopped after a cancel.
    CancelAcked,
    /// A message that every agent may send, however it is connected. `Said` in frames of version 1.
    #[serde(rename = "Said")]
    Message(AgentMessage),
}

// === impl AttemptEvent ===

impl AttemptEvent {
    /// Returns whether the event is the last one of its attempt.
    pub fn is_last(&self) -> bool {
        match self {
            Self::CancelAcked | Self::Message(AgentMessage::Done { .. } | AgentMessage::Failed(_)) => true,
            Self::Acked
            | Self::Message(
                AgentMessage::Delta { .. }
                | AgentMessage::State { .. }
                | AgentMessage::Steered { .. }
                | AgentMessage::Handover { .. }
                | AgentMessage::Action { .. }
                | AgentMessage::Subscribe { .. }
                | AgentMessage::Unknown
                | AgentMessage::Alive,
            ) => false,
        }
    }
}
