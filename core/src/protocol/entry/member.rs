//! Facts of members and of the active agent. Called through [`super::Fact`].
use super::family::{FactKind, fact_family};
use crate::id::{AgentId, RequestId};
use crate::protocol::member::{MemberChangeFailed, MemberChangeRequested, MemberChanged};
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about the members of a session and about the active agent.
    pub enum MemberFact {
        /// Another member is active from now on (SR-W4).
        "agent.switched" -> "event ACTIVE_AGENT_CHANGED" => Switched {
            /// The previous active agent.
            from: AgentId,
            /// The new active agent.
            to: AgentId,
            reason: String,
            /// The cause of the switch.
            trigger: String,
            /// Id of the request, if one caused the switch.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
        },
        /// An agent is about to become a member (SR-E2).
        "agent.adding" -> "event ADDING_AGENT" [starts_transaction] => Adding(MemberChangeRequested),
        /// The agent has become a member.
        "agent.added" -> "event AGENT_ADDED" => Added(MemberChanged),
        /// The agent could not be added.
        "agent.add_failed" -> "error" => AddFailed(MemberChangeFailed),
        /// A member is about to leave, and gets no new inputs from here on (SR-D3, SR-D5).
        "agent.removing" -> "event AGENT_REMOVING" [starts_transaction] => Removing(MemberChangeRequested),
        /// The member has left.
        "agent.removed" -> "event AGENT_REMOVED" => Removed(MemberChanged),
        /// The member could not be removed, and nothing has changed (RX-9).
        "agent.remove_failed" -> "error" => RemoveFailed(MemberChangeFailed),
    }
}
