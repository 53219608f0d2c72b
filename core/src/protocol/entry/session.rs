//! Facts of a session itself. Called through [`super::Fact`].
use super::family::{FactKind, fact_family};
use crate::id::{AgentId, RequestId, UserId};
use crate::private::Private;
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about the session itself.
    pub enum SessionFact {
        /// The session exists and is open (again).
        "session.opened" -> "session_opened" => Opened {
            /// The user that owns the session.
            user: UserId,
            /// Members, in order.
            agents: Vec<AgentId>,
            /// The agent that answers inputs which address no agent.
            active_agent: AgentId,
            /// Id of the request that opened the session.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
        },
        /// Closing has started: the open run is cancelled, waiting inputs are ended.
        "session.closing" -> "event SESSION_CLOSING" [plain] => Closing {
            /// Id of the request that closes the session.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
        },
        /// The session is closed; inputs are refused until it is opened again.
        "session.closed" -> "session_closed" [plain] => Closed {
            /// Id of the request that closed the session.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
        },
        /// An announcement to all subscribers that changes nothing, such as `NO_ACTIVE_SPEAKING` (SR-C2).
        "session.notice" -> "event <its name>" => Notice {
            /// The name on the wire.
            name: String,
            /// Id of the request that caused the notice.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
        },
        /// A user has given the session a label, which lists show; no decision depends on it.
        "session.labelled" -> "event SESSION_LABELLED" [since(2), plain, annotates("label")] => Labelled {
            /// The label; empty: none.
            label: Private<String>,
            /// Id of the request that set the label.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
        },
    }
}
