//! Steering: an input that is handed to an agent while the agent answers another one (ST-7, ST-8).
use crate::id::{AgentId, Epoch, MessageId, RunId, SessionKey, UserId};
use crate::protocol::action::ActionsContext;
use crate::protocol::input::Message;
use serde::{Deserialize, Serialize};

/// An agent's answer to an input that it was handed while running (ST-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SteerOutcome {
    /// The input is part of the agent's current work, and ends with it.
    Accepted,
    /// The agent has the input and will send one of the other answers later; nothing is decided yet.
    Pending,
    /// The agent does not take the input, which becomes the next turn.
    Refused,
}

impl SteerOutcome {
    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Pending => "pending",
            Self::Refused => "refused",
        }
    }

    /// Parses the name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Accepted, Self::Pending, Self::Refused].into_iter().find(|outcome| outcome.as_str() == text)
    }

    /// Returns whether the answer is final.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Accepted | Self::Refused => true,
            Self::Pending => false,
        }
    }
}

/// An input for a running agent. Each owner and each attempt sends it again; the agent recognises a repeat by the
/// message id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steer {
    pub key: SessionKey,
    /// The run that is to take the input.
    pub run_id: RunId,
    /// The attempt of that run.
    pub attempt: u32,
    /// The ownership that ordered the attempt; repeated in the report.
    pub epoch: Epoch,
    /// The receiving agent.
    pub agent_id: AgentId,
    /// The turn that the input opens if it is not taken.
    pub turn_id: RunId,
    pub user: UserId,
    pub message_id: MessageId,
    pub message: Message,
    /// Open and ended actions of the agent.
    pub actions: Option<Box<ActionsContext>>,
    pub traceparent: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: ST-8.
    #[test]
    fn steer_outcome_round_trips() {
        for outcome in [SteerOutcome::Accepted, SteerOutcome::Pending, SteerOutcome::Refused] {
            assert_eq!(SteerOutcome::parse(outcome.as_str()), Some(outcome));
            assert_eq!(outcome.is_final(), outcome != SteerOutcome::Pending);
        }
        assert_eq!(SteerOutcome::parse("ACCEPTED"), None);
    }
}
