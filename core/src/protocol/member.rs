//! Members of a session: the facts about changes of members (scenarios D and E), and the record of a member.
use crate::id::{AgentId, EventId, RequestId, Seq, UserId};
use crate::protocol::refusal::Code;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// The record of one agent in a session. It is kept when the agent leaves, and restored when the agent returns
/// (SR-D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Time at which the agent first joined.
    pub since_ms: Millis,
    /// Turns that the agent has completed in this session.
    pub turns: u64,
    /// Position of the end of its last turn; 0 if there was none.
    pub last_seq: Seq,
}

/// The fact that adding or removing an agent was requested: `agent.adding`, `agent.removing`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChangeRequested {
    /// The transaction: the id of this fact, repeated in every fact that follows from it (SR-T13).
    pub tx_id: EventId,
    pub agent_id: AgentId,
    /// The user that requested the change.
    pub user: UserId,
    /// In the user's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if an added agent also becomes active: it answers inputs that address no agent (SR-E6).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub activate: bool,
    /// The time at which the change has failed at the latest.
    pub deadline_ms: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The handover that waits for an agent to be added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_id: Option<EventId>,
}

/// The fact that an agent was added or removed: `agent.added`, `agent.removed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChanged {
    pub tx_id: EventId,
    pub agent_id: AgentId,
    pub member: Member,
    /// In the words of the user that requested the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if an added agent was a member before and its record is restored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// The fact that a change of members failed and nothing has changed: `agent.add_failed`, `agent.remove_failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChangeFailed {
    pub tx_id: EventId,
    pub agent_id: AgentId,
    /// `ADD_AGENT_FAILED` or `REMOVE_AGENT_FAILED`.
    pub code: Code,
    /// For a person.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// A task that the session gives to its node's store (`REQUEST_ADD_AGENT`, `REQUEST_REMOVE_AGENT`). Doing it twice is
/// harmless: another owner repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTask {
    pub tx_id: EventId,
    pub agent_id: AgentId,
    /// The record to keep of a leaving agent; `None`: check whether the agent can join, and return the kept record.
    pub record_to_keep: Option<Member>,
}

/// The outcome of such a task (SR-K3, SR-K4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionTaskResult {
    /// Done, with the kept record of an agent that was a member before.
    Done(Option<Member>),
    /// Failed, with the reason.
    Failed(String),
}
