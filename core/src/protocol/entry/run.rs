//! Facts of runs: attempts, text, end. Called through [`super::Fact`].
use super::family::{FactKind, fact_family};
use super::{LATE_EDIT, REPLACED, ROLLED_BACK, Scope};
use crate::id::{AgentId, RequestId, RunId};
use crate::private::Private;
use crate::protocol::agent::{EventMark, StopReason};
use crate::protocol::json::Json;
use crate::protocol::refusal::Code;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about runs: their attempts, their text and their end.
    pub enum RunFact {
        /// The first attempt begins; recorded before the agent gets its order.
        "run.started" -> "run_started" => Started {
            agent_id: AgentId,
            /// Always 1: the first attempt.
            attempt: u32,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
            /// The time at which the whole run ends at the latest; a restart does not move it.
            deadline_ms: Millis,
            /// True if another owner may resume this attempt: its agent's events have ids.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            resumable: bool,
        },
        /// Another attempt begins, with text from offset 0.
        "run.restarted" -> "event RUN_RESTARTED" => Restarted {
            agent_id: AgentId,
            /// Number of the attempt, from 2.
            attempt: u32,
            reason: String,
            /// Same as in `run.started`.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            resumable: bool,
        },
        /// The same attempt continues under another owner; recorded before its agent is asked for the rest.
        "run.resumed" -> "event RUN_RESUMED" => Resumed {
            agent_id: AgentId,
            attempt: u32,
            /// The reason for the change of owner.
            reason: String,
        },
        /// The agent has the input (INPUT_ACK).
        "agent.invoke.started" -> "event AGENT_STARTED" => AgentStarted { agent_id: AgentId, attempt: u32 },
        /// A recorded part of the answer.
        "agent.stream.delta" -> "" => TextDelta {
            attempt: u32,
            /// Bytes of this attempt's text before the part.
            offset: u64,
            text: Private<String>,
            /// The attempt's recorded position including this part, if known.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            mark: Option<EventMark>,
        },
        /// The agent has finished its answer.
        "agent.invoke.done" -> "" => AgentDone { agent_id: AgentId, attempt: u32 },
        /// An intermediate state.
        "run.state" -> "state" => State {
            scope: Scope,
            state: String,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            detail: Option<Json>,
            /// The attempt's recorded position including this state, if known.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            mark: Option<EventMark>,
        },
        /// The attempt was stopped by a draining node; it does not count (ownership.md §2.5).
        "run.suspended" -> "event RUN_SUSPENDED" => Suspended { attempt: u32, reason: String },
        /// CANCEL was sent; CANCEL_ACK is awaited until the deadline.
        "run.cancelling" -> "event CANCEL_SENT" => Cancelling {
            /// The cause: `user`, `interrupt`, `rollback`, `session_close`.
            reason: String,
            /// The time at which the run is cancelled by force.
            deadline_ms: Millis,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            request_id: Option<RequestId>,
        },
        /// The turn is completed. Its text is this attempt's checkpoints, joined.
        "run.done" -> "done" [ends_turn] => Done {
            /// The attempt whose text is the answer.
            attempt: u32,
            stop_reason: StopReason,
            text_bytes: u64,
            /// SHA-256 of the text, hex.
            text_sha256: String,
            /// Usage as counted by the agent.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            usage: Option<Json>,
            /// The run that has taken the input (ST-7).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            host_run_id: Option<RunId>,
        },
        "run.failed" -> "error, done" [ends_turn] => Failed {
            /// The last attempt; 0 if there was none.
            attempt: u32,
            code: Code,
            /// For a person.
            message: String,
            /// The agent's own code, or the name of the plugin that refused the turn, if any.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            agent_code: Option<String>,
            /// Milliseconds after which to ask again, if the agent gave a time (`Retry-After`).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            retry_after_ms: Option<u64>,
            /// The beginning of the agent's error, for operators only: see [`super::Entry::for_users`].
            #[serde(default, skip_serializing_if = "Option::is_none")]
            agent_body: Option<Private<String>>,
            /// Bytes of the partial text, which stays in the transcript, marked incomplete; unless the turn was rolled
            /// back.
            text_bytes: u64,
        },
        "run.cancelled" -> "(error,) event CANCELED, done" [ends_turn] => Cancelled {
            /// The last attempt; 0 if none began.
            attempt: u32,
            /// The cause: `user`, `interrupt`, `rollback`, `replaced`, `session_close`.
            reason: String,
            /// True if the agent did not acknowledge in time.
            #[serde(default)]
            forced: bool,
            /// Bytes of the partial text, which stays in the transcript, marked incomplete.
            text_bytes: u64,
        },
    }
}

impl RunFact {
    /// Returns the bytes of content, in addition to the fixed weight of a fact.
    pub(super) fn content_bytes(&self) -> usize {
        if let Self::TextDelta { text, .. } = self {
            return text.reveal().len();
        }
        if let Self::Failed { agent_body: Some(body), .. } = self {
            return body.reveal().len();
        }
        0
    }

    /// Returns whether the fact ends a turn that is to be treated as never asked.
    pub(super) fn retracts_turn(&self) -> bool {
        matches!(self, Self::Cancelled { reason, .. } if [ROLLED_BACK, REPLACED, LATE_EDIT].contains(&reason.as_str()))
    }

    /// Returns whether the fact only records that an attempt goes well.
    pub(super) fn is_deferrable(&self) -> bool {
        matches!(self, Self::AgentStarted { .. } | Self::State { scope: Scope::Run, .. })
    }
}
