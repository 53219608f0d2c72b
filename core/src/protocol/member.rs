//! What the facts of a change of members say (scenarios D and E), and what is known of a member.
use crate::id::{AgentId, EventId, RequestId, Seq, UserId};
use crate::protocol::refusal::Code;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// What a session knows of one of its agents. It is kept when the agent leaves, and given back when it
/// returns (SR-D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// When it came for the first time.
    pub since_ms: Millis,
    /// Turns that it has completed here.
    pub turns: u64,
    /// Where the last of them ended; 0: none has.
    pub last_seq: Seq,
}

/// Somebody wants an agent to come or to go: `agent.adding`, `agent.removing`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeAsked {
    /// The transaction: the id of this fact, and on everything that follows from it (SR-T13).
    pub tx_id: EventId,
    /// Whom.
    pub agent_id: AgentId,
    /// Who wants it.
    pub user: UserId,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// It answers from then on where nobody is addressed; of one that comes (SR-E6).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub activate: bool,
    /// When it has failed at the latest.
    pub deadline_ms: Millis,
    /// Of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The handover that waits for it; of one that comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_id: Option<EventId>,
}

/// It has come or gone: `agent.added`, `agent.removed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeDone {
    /// The transaction.
    pub tx_id: EventId,
    /// Whom.
    pub agent_id: AgentId,
    /// What is known of it.
    pub member: Member,
    /// Why, in the words of who wanted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// It was here before, and what was known of it is known again; of one that comes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    /// Of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// Nothing has changed after all: `agent.add_failed`, `agent.remove_failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeFailed {
    /// The transaction.
    pub tx_id: EventId,
    /// Whom.
    pub agent_id: AgentId,
    /// `ADD_AGENT_FAILED` or `REMOVE_AGENT_FAILED`.
    pub code: Code,
    /// Why, for a person.
    pub message: String,
    /// Of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// What the session asks of whoever keeps sessions (`REQUEST_ADD_AGENT`, `REQUEST_REMOVE_AGENT`). To do it twice
/// does no harm: another owner asks again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// The transaction.
    pub tx_id: EventId,
    /// Whom.
    pub agent_id: AgentId,
    /// To keep what is known of it; none: see whether it can come, and bring what was kept.
    pub keep: Option<Member>,
}

/// What became of an errand (SR-K3, SR-K4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It is done; with what was kept of an agent that was here before.
    Done(Option<Member>),
    /// It is not, and why.
    Failed(String),
}
