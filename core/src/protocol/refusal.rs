//! Refusals of requests: a stable code from a closed set, with a message for people.
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::Duration;

macro_rules! define_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $retry:literal;)*) => {
        /// An error code on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }
        impl Code {
            /// All codes, for documents and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Returns the name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// Returns whether the same request may succeed later.
            pub fn retryable(self) -> bool {
                match self { $(Self::$name => $retry,)* }
            }
        }
    };
}
define_codes! {
    /// Every owner that tried this turn was lost.
    PoisonTurn = "poison_turn", false;
    /// The agent fell silent, or the run took too long.
    AgentTimeout = "agent_timeout", true;
    /// The session is closed; open it again first.
    SessionClosed = "session_closed", false;
    /// A turn is open and the input asked not to wait.
    Busy = "busy", true;
    /// No credential, a wrong credential, or no `hello`.
    Unauthorized = "unauthorized", false;
    /// The credential does not allow this.
    Forbidden = "forbidden", false;
    /// The object does not exist or belongs to another user; the two cases look the same.
    NotFound = "not_found", false;
    InvalidMessage = "invalid_message", false;
    TooLarge = "too_large", false;
    RateLimited = "rate_limited", true;
    /// The user or the tenant holds as much of the node as it may.
    OverShare = "over_share", true;
    /// The quota of stored bytes is used up.
    QuotaExceeded = "quota_exceeded", true;
    /// Too many inputs of this session wait.
    TooManyPending = "too_many_pending", true;
    /// The same message id with another body.
    IdempotencyConflict = "idempotency_conflict", false;
    /// Nothing was changed: the conversation has another binding than the request named, or none.
    NotApplied = "not_applied", false;
    /// No conversation was chosen for a message; the text begins with the router's reason.
    NoDestination = "no_destination", false;
    /// No adapter serves the account now.
    AdapterUnavailable = "adapter_unavailable", true;
    /// The adapter of the account makes no conversations within others.
    PlacementUnsupported = "placement_unsupported", false;
    /// The addressed agent is no member of the session.
    AgentNotInSession = "agent_not_in_session", false;
    /// The agent could not be reached.
    AgentUnavailable = "agent_unavailable", true;
    /// The agent did not acknowledge the input in time.
    RouteTimeout = "ROUTE_TIMEOUT", true;
    /// The agent did not acknowledge the cancel in time; the run is cancelled all the same.
    CancelTimeout = "CANCEL_TIMEOUT", false;
    /// No device of the user offers the tool.
    ClientOffline = "client_offline", true;
    /// The tool took too long.
    ToolTimeout = "tool_timeout", true;
    /// Nobody decided on the approval in time.
    ApprovalTimeout = "approval_timeout", false;
    /// The approval was refused.
    ApprovalRejected = "approval_rejected", false;
    /// Policy forbids it.
    Blocked = "blocked", false;
    /// The agent reported an error, or violated its protocol.
    AgentError = "agent_error", true;
    /// The model reported an error.
    LlmError = "llm_error", true;
    /// The node that ran the turn was lost and the turn may not be repeated.
    OwnerLost = "owner_lost", true;
    /// The store cannot be reached; nothing was accepted.
    StoreUnavailable = "store_unavailable", true;
    /// The session's records in the store are damaged: the session is quarantined until an operator repairs the store.
    StoreDamaged = "store_damaged", false;
    /// The node is draining and accepts no new work.
    Draining = "draining", true;
    /// A live node is of an earlier release, which does not know the fact that the request leads to.
    FleetUpgrading = "fleet_upgrading", true;
    /// A bug in the gateway.
    InternalError = "internal_error", true;
    /// An agent could not be added.
    AddAgentFailed = "ADD_AGENT_FAILED", false;
    /// An agent could not be removed.
    RemoveAgentFailed = "REMOVE_AGENT_FAILED", false;
    /// The session could not be opened.
    SessionOpenFailed = "SESSION_OPEN_FAILED", true;
    /// The session could not be closed.
    SessionCloseFailed = "SESSION_CLOSE_FAILED", true;
    /// The runner id belongs to another credential.
    RunnerIdInUse = "runner_id_in_use", true;
    /// Another account acts as the platform's bot id.
    BotIdInUse = "bot_id_in_use", true;
}

/// The reason why a request was refused. Nothing was stored, unless the code says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: Code,
    /// For a person; contains no content of a conversation.
    pub message: Cow<'static, str>,
    /// Milliseconds after which to try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl Refusal {
    /// Creates a refusal with a message for people.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), retry_after_ms: None }
    }
    /// Sets the time after which to try again.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }
    /// Returns the one answer for an object that does not exist and for another user's object (S-06).
    pub fn not_found() -> Self {
        Self::new(Code::NotFound, "no such session, run or agent")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: protocol.md §1.3 (closed set of codes).
    #[test]
    fn codes_are_named_as_documented() {
        for code in Code::ALL {
            let json = serde_json::to_string(code).expect("a code serialises");
            assert_eq!(json, format!("\"{}\"", code.as_str()));
        }
        assert_eq!(Code::ALL.len(), 41);
    }
}
