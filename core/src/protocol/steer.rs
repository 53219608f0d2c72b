//! Interjections: an input that is handed to an agent while it answers another one (ST-7, ST-8).
use crate::id::{AgentId, Epoch, MessageId, RunId, SessionKey, UserId};
use crate::protocol::action::ActionsContext;
use crate::protocol::input::Message;
use serde::{Deserialize, Serialize};

/// What an agent makes of an interjection (ST-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SteerOutcome {
    /// It has become part of what the agent is doing, and ends with it.
    Accepted,
    /// The agent has it and will say which of the others it is; nothing is decided by it.
    Pending,
    /// The agent leaves it: it becomes the next turn.
    Refused,
}

impl SteerOutcome {
    /// As on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Pending => "pending",
            Self::Refused => "refused",
        }
    }

    /// As an agent writes it.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Accepted, Self::Pending, Self::Refused].into_iter().find(|outcome| outcome.as_str() == text)
    }

    /// Whether nothing follows it.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Accepted | Self::Refused => true,
            Self::Pending => false,
        }
    }
}

/// An interjection as an agent is told it. Said again by each owner and in each attempt; the message's name is what
/// tells a repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steer {
    /// Which session.
    pub key: SessionKey,
    /// The run that is to take it.
    pub run_id: RunId,
    /// Which attempt at that.
    pub attempt: u32,
    /// The ownership that ordered the attempt: comes back with the report.
    pub epoch: Epoch,
    /// Whom.
    pub agent_id: AgentId,
    /// The turn that the input opens if it is not taken.
    pub turn_id: RunId,
    /// Who asks.
    pub user: UserId,
    /// The input's name.
    pub message_id: MessageId,
    /// What.
    pub message: Message,
    /// What is under way for it.
    pub actions: Option<Box<ActionsContext>>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: ST-8.
    #[test]
    fn an_outcome_is_read_as_it_is_written() {
        for outcome in [SteerOutcome::Accepted, SteerOutcome::Pending, SteerOutcome::Refused] {
            assert_eq!(SteerOutcome::parse(outcome.as_str()), Some(outcome));
            assert_eq!(outcome.is_final(), outcome != SteerOutcome::Pending);
        }
        assert_eq!(SteerOutcome::parse("ACCEPTED"), None);
    }
}
