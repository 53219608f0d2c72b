//! Serialisable shapes of OpenAI responses: borrowed views that are written straight into text.
use super::model;
use serde::Serialize;
use turnway_core::id::{AgentId, RunId};
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::json::Json;
use turnway_core::time::Millis;

/// The fields that every response and every chunk begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatResponseHead {
    id: String,
    #[serde(skip)]
    created_ms: Millis,
    model: String,
}

impl ChatResponseHead {
    /// Creates the head for a turn, its agent and the present time.
    pub fn new(run_id: &RunId, agent: &AgentId, now: Millis) -> Self {
        Self { id: format!("chatcmpl-{run_id}"), created_ms: now, model: model::model_name(agent) }
    }
}

/// A `chat.completion.chunk` object of a stream.
#[derive(Serialize)]
pub(super) struct ChatChunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice<'a>],
    /// If usage was requested, null in every chunk but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<&'a Json>>,
}

#[derive(Serialize)]
pub(super) struct ChunkChoice<'a> {
    pub(super) index: u32,
    pub(super) delta: ChatDelta<'a>,
    pub(super) logprobs: (),
    pub(super) finish_reason: Option<&'static str>,
}

/// The part of the message that a chunk adds.
#[derive(Default, Serialize)]
pub(super) struct ChatDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<&'a str>,
}

impl<'a> ChatChunk<'a> {
    pub(super) fn new(
        head: &'a ChatResponseHead,
        choices: &'a [ChunkChoice<'a>],
        usage: Option<Option<&'a Json>>,
    ) -> Self {
        let ChatResponseHead { id, created_ms, model } = head;
        Self { id, object: "chat.completion.chunk", created: created_ms.0 / 1000, model, choices, usage }
    }
}

/// A `chat.completion` object: a whole answer.
#[derive(Serialize)]
pub(super) struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a Json>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: ChatAnswerMessage<'a>,
    logprobs: (),
    finish_reason: &'static str,
}

/// The agent's complete answer.
#[derive(Serialize)]
pub(super) struct ChatAnswerMessage<'a> {
    pub(super) role: &'static str,
    pub(super) content: &'a str,
    pub(super) refusal: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<&'a str>,
}

impl<'a> Completion<'a> {
    pub(super) fn new(
        head: &'a ChatResponseHead,
        message: ChatAnswerMessage<'a>,
        finish_reason: &'static str,
        usage: Option<&'a Json>,
    ) -> Self {
        let ChatResponseHead { id, created_ms, model } = head;
        let choices = [Choice { index: 0, message, logprobs: (), finish_reason }];
        Self { id, object: "chat.completion", created: created_ms.0 / 1000, model, choices, usage }
    }
}

/// Returns OpenAI's finish reason. Stop reasons without an OpenAI equivalent map to `stop`, because the agent
/// completed normally.
pub(super) fn finish_reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::MaxTokens => "length",
        StopReason::Refusal => "content_filter",
        StopReason::EndTurn | StopReason::Cancelled | StopReason::Error | StopReason::Timeout | StopReason::Steered => {
            "stop"
        }
    }
}
