//! Parses the body of `POST /v1/chat/completions`.
//! Strict about every field that decides the answer's content and shape; fields that only tune a model are ignored.
use super::call_ids::ChatCallIds;
use super::{ChatError, messages, model};
use crate::channel::command::InvokeCommand;
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::MalformedReason;
use crate::channel::json::strict;
use serde_json::Value;
use turnway_core::id::AgentId;
use turnway_core::limits::{HISTORY_BYTES_MAX, JSON_NODES_MAX, MESSAGE_BYTES_MAX};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Content, Message, Role, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::trace::is_traceparent;

/// Maximum bytes of a request: a full history, a full message, and as much again for everything else.
pub const CHAT_CALL_BYTES_MAX: usize = HISTORY_BYTES_MAX + 2 * MESSAGE_BYTES_MAX;

/// One well-formed call.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatCall {
    /// The agent that the model name means; the agent may not exist.
    pub agent: AgentId,
    /// True if the answer is streamed.
    pub stream: bool,
    /// True if a usage chunk ends the stream.
    pub include_usage: bool,
    content: Content,
    earlier: Vec<Value>,
    metadata: Option<Json>,
}

// === impl ChatCall ===

impl ChatCall {
    /// Parses a body. Never panics; the work is bounded by [`CHAT_CALL_BYTES_MAX`].
    pub fn parse(text: &str) -> Result<Self, ChatError> {
        let long = |flaw: MalformedReason| {
            if flaw == MalformedReason::TooLong { Self::too_long() } else { flaw.into() }
        };
        let mut body = strict::object_within(text, CHAT_CALL_BYTES_MAX).map_err(long)?;
        let model = required(fields::text(&mut body, "model")?, "model")?;
        let agent = model::parse_model_name(&model).ok_or_else(ChatError::model_not_found)?;
        let spoken = fields::list(&mut body, "messages", JSON_NODES_MAX)?;
        let (content, earlier) = messages::split_last(spoken)?;
        let stream = fields::flag(&mut body, "stream")?.unwrap_or(false);
        let mut options = fields::object(&mut body, "stream_options")?.unwrap_or_default();
        let include_usage = fields::flag(&mut options, "stream_options.include_usage")?.unwrap_or(false);
        check_answer_shape(&mut body)?;
        let metadata = fields::object(&mut body, "metadata")?.map(|metadata| Json(Value::Object(metadata)));
        Ok(Self { agent, stream, include_usage, content, earlier, metadata })
    }

    /// Returns the error for a body of more than [`CHAT_CALL_BYTES_MAX`].
    pub fn too_long() -> ChatError {
        ChatError::context_too_long(format!("request body exceeds the limit of {CHAT_CALL_BYTES_MAX} bytes"))
    }

    /// Converts the call into a command. If the gateway keeps the conversation, earlier messages are ignored; if
    /// the client keeps it, they become the history. A trace context that cannot be parsed starts a new trace.
    pub fn into_command(self, name: &ChatCallIds, traceparent: Option<String>) -> Result<InvokeCommand, ChatError> {
        let tells = !name.in_session && !self.earlier.is_empty();
        let history = tells.then(|| History::from_messages(&self.earlier)).transpose()?;
        Ok(InvokeCommand {
            request_id: None,
            session: Some(name.session.clone()),
            agent_id: Some(self.agent),
            message: Message { role: Role::User, content: self.content },
            history,
            replaces: None,
            message_id: Some(name.message_id.clone()),
            // The caller waits for an answer of its own, so the input never joins a running turn.
            strategy: Some(Strategy::Enqueue),
            metadata: self.metadata,
            traceparent: traceparent.filter(|text| is_traceparent(text)),
        })
    }
}

/// Rejects options that ask for an answer of another shape than text.
fn check_answer_shape(body: &mut Fields) -> Result<(), ChatError> {
    if fields::integer(body, "n")?.is_some_and(|n| n != 1) {
        return Err(ChatError::unsupported("n"));
    }
    for field in ["tools", "functions"] {
        if !fields::list(body, field, JSON_NODES_MAX)?.is_empty() {
            return Err(ChatError::unsupported(field));
        }
    }
    if fields::flag(body, "logprobs")?.unwrap_or(false) {
        return Err(ChatError::unsupported("logprobs"));
    }
    if fields::list(body, "modalities", JSON_NODES_MAX)?.iter().any(|modality| modality != "text") {
        return Err(ChatError::unsupported("modalities"));
    }
    let mut format = fields::object(body, "response_format")?.unwrap_or_default();
    if fields::text(&mut format, "response_format.type")?.is_some_and(|kind| kind != "text") {
        return Err(ChatError::unsupported("response_format"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
