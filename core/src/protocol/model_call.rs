//! Calls of models that belong to runs: their beginning and end as nodes report them to a session's owner, and as facts
//! record them. The session machine decides on them; nodes make the calls.
use crate::id::{AgentId, EventId, RunId};
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// The node's report that a call begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCallStart {
    /// Chosen by the node that makes the call.
    pub call_id: EventId,
    pub run_id: RunId,
    /// The name by which the caller asks for the model.
    pub model: String,
    /// Path of the call's format, such as `chat/completions`.
    pub format: String,
    /// Milliseconds after which the call has ended and its end was reported, or the node was lost.
    pub timeout_ms: u64,
}

/// The data of `llm.call.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCallStarted {
    pub call_id: EventId,
    /// The agent of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    pub model: String,
    pub format: String,
    /// Time at which the call counts as lost if no end was reported.
    pub deadline_ms: Millis,
}

/// The node's report of a call's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCallEnd {
    pub call_id: EventId,
    pub outcome: RecordedCallOutcome,
    /// Id of the upstream that was asked last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Number of requests to upstreams.
    pub attempts: u32,
    /// The HTTP status of the upstream's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Milliseconds from the beginning to the end.
    pub latency_ms: u64,
    /// Milliseconds from the beginning to the first byte of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
    /// Milliseconds from the beginning to the first token of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<u64>,
    #[serde(default)]
    pub usage: RecordedTokens,
    /// Price in millionths of the operator's currency; absent if a count or a price is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
}

/// The data of `llm.call.ended`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCallEnded {
    /// The agent of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    pub model: String,
    #[serde(flatten)]
    pub end: ModelCallEnd,
}

/// Tokens that an upstream said a call used. A field is absent if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedTokens {
    /// All tokens of the input.
    #[serde(default, rename = "input_tokens", skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// The part of the input that came from a cache.
    #[serde(default, rename = "cached_input_tokens", skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<u64>,
    /// All tokens of the output.
    #[serde(default, rename = "output_tokens", skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// The part of the output that is reasoning.
    #[serde(default, rename = "reasoning_tokens", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
}

/// The end of a call, as facts record it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedCallOutcome {
    Complete,
    /// The answer was cut off, or ended without its end.
    Truncated,
    /// The upstream reported an error within a successful answer.
    Error,
    /// The upstream refused the call by its status.
    Refused,
    /// The caller has gone, its run has ended, or its credential was revoked.
    Cancelled,
    /// No upstream answered.
    Failed,
    Timeout,
    /// No end was reported: the node that made the call was lost.
    Lost,
}

// === impl RecordedCallOutcome ===

impl RecordedCallOutcome {
    /// All outcomes, in the order of documents.
    pub const ALL: [Self; 8] = [
        Self::Complete,
        Self::Truncated,
        Self::Error,
        Self::Refused,
        Self::Cancelled,
        Self::Failed,
        Self::Timeout,
        Self::Lost,
    ];
}

// === impl ModelCallEnd ===

impl ModelCallEnd {
    /// Returns the end of a call of which no upstream is known to have seen anything.
    pub fn without_attempt(call_id: EventId, outcome: RecordedCallOutcome, latency_ms: u64) -> Self {
        Self {
            call_id,
            outcome,
            upstream: None,
            attempts: 0,
            status: None,
            latency_ms,
            first_byte_ms: None,
            first_token_ms: None,
            usage: RecordedTokens::default(),
            cost: None,
        }
    }
}
