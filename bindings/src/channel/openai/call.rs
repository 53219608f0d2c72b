//! Parses the body of `POST /v1/chat/completions`.
//! Strict about every field that decides the answer's content and shape; fields that only tune a model are ignored.
use super::name::Name;
use super::{Trouble, messages, model};
use crate::channel::command::Invoke;
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::Flaw;
use crate::channel::json::strict;
use serde_json::Value;
use turnway_core::id::AgentId;
use turnway_core::limits::{HISTORY_BYTES_MAX, JSON_NODES_MAX, MESSAGE_BYTES_MAX};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Content, Message, Role, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::trace::is_traceparent;

/// Maximum bytes of a request: a full history, a full message, and as much again for everything else.
pub const CALL_BYTES_MAX: usize = HISTORY_BYTES_MAX + 2 * MESSAGE_BYTES_MAX;

/// One well-formed call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The agent that the model name means; the agent may not exist.
    pub agent: AgentId,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a usage chunk ends the stream.
    pub include_usage: bool,
    content: Content,
    earlier: Vec<Value>,
    metadata: Option<Json>,
}

// === impl Call ===

impl Call {
    /// Parses a body. Never panics; the work is bounded by [`CALL_BYTES_MAX`].
    pub fn parse(text: &str) -> Result<Self, Trouble> {
        let long = |flaw: Flaw| if flaw == Flaw::TooLong { Self::too_long() } else { flaw.into() };
        let mut body = strict::object_within(text, CALL_BYTES_MAX).map_err(long)?;
        let model = required(fields::text(&mut body, "model")?, "model")?;
        let agent = model::agent(&model).ok_or_else(Trouble::no_model)?;
        let spoken = fields::list(&mut body, "messages", JSON_NODES_MAX)?;
        let (content, earlier) = messages::split(spoken)?;
        let stream = fields::flag(&mut body, "stream")?.unwrap_or(false);
        let mut options = fields::object(&mut body, "stream_options")?.unwrap_or_default();
        let include_usage = fields::flag(&mut options, "stream_options.include_usage")?.unwrap_or(false);
        shape(&mut body)?;
        let metadata = fields::object(&mut body, "metadata")?.map(|metadata| Json(Value::Object(metadata)));
        Ok(Self { agent, stream, include_usage, content, earlier, metadata })
    }

    /// Returns the error for a body of more than [`CALL_BYTES_MAX`].
    pub fn too_long() -> Trouble {
        Trouble::too_long(format!("request body exceeds the limit of {CALL_BYTES_MAX} bytes"))
    }

    /// Converts the call into a command. If the gateway keeps the conversation, earlier messages are ignored; if
    /// the client keeps it, they become the history. A trace context that cannot be parsed starts a new trace.
    pub fn invoke(self, name: &Name, traceparent: Option<String>) -> Result<Invoke, Trouble> {
        let tells = !name.continues && !self.earlier.is_empty();
        let history = tells.then(|| History::of(&self.earlier)).transpose()?;
        Ok(Invoke {
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
fn shape(body: &mut Fields) -> Result<(), Trouble> {
    if fields::integer(body, "n")?.is_some_and(|n| n != 1) {
        return Err(Trouble::unsupported("n"));
    }
    for field in ["tools", "functions"] {
        if !fields::list(body, field, JSON_NODES_MAX)?.is_empty() {
            return Err(Trouble::unsupported(field));
        }
    }
    if fields::flag(body, "logprobs")?.unwrap_or(false) {
        return Err(Trouble::unsupported("logprobs"));
    }
    if fields::list(body, "modalities", JSON_NODES_MAX)?.iter().any(|modality| modality != "text") {
        return Err(Trouble::unsupported("modalities"));
    }
    let mut format = fields::object(body, "response_format")?.unwrap_or_default();
    if fields::text(&mut format, "response_format.type")?.is_some_and(|kind| kind != "text") {
        return Err(Trouble::unsupported("response_format"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
