//! Parses the body of `POST /v1/chat/completions`.
//! Strict about every field that decides the answer's content and shape; fields that only tune a model are ignored.
use super::call_ids::ChatCallIds;
use super::messages::{ChatFile, ChatFiles, ChatMessageReader, ReadMessages};
use super::{ChatError, model};
use crate::channel::command::InvokeCommand;
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::MalformedReason;
use crate::channel::json::strict;
use serde_json::Value;
use turnway_core::id::{AgentId, BlobHash};
use turnway_core::limits::{CHAT_CALL_BYTES_MAX, JSON_NODES_MAX};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Content, Message, Role, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::trace::is_traceparent;

/// Media type of a file with earlier messages.
const HISTORY_MEDIA_TYPE: &str = "application/json";

/// One well-formed call.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatCall {
    /// The agent that the model name means; the agent may not exist.
    pub agent: AgentId,
    /// True if the answer is streamed.
    pub stream: bool,
    /// True if a usage chunk ends the stream.
    pub include_usage: bool,
    /// The files that the session needs before its agent gets the message.
    pub files: ChatFiles,
    content: Content,
    history: Option<History>,
    metadata: Option<Json>,
}

// === impl ChatCall ===

impl ChatCall {
    /// Parses the body of a call with these ids. Never panics; the work is bounded by [`CHAT_CALL_BYTES_MAX`]. If the
    /// gateway keeps the conversation, earlier messages are checked and ignored; if the client keeps it, they become the
    /// history, which is one of the files if it is long.
    pub fn parse(text: &str, name: &ChatCallIds) -> Result<Self, ChatError> {
        let long = |flaw: MalformedReason| {
            if flaw == MalformedReason::TooLong { Self::too_long() } else { flaw.into() }
        };
        let mut messages = ChatMessageReader::new(name);
        let mut take = |message| messages.push(message);
        let mut body = strict::object_with_items(text, CHAT_CALL_BYTES_MAX, "messages", &mut take).map_err(long)?;
        let model = required(fields::text(&mut body, "model")?, "model")?;
        let agent = model::parse_model_name(&model).ok_or_else(ChatError::model_not_found)?;
        // A value that is no list is left in its place.
        fields::list(&mut body, "messages", JSON_NODES_MAX)?;
        let (content, ReadMessages { earlier, mut files }) = messages.finish()?;
        let history = (!earlier.is_empty()).then(|| {
            History::from_text(earlier).unwrap_or_else(|text| {
                let sha256 = BlobHash::of(text.as_bytes());
                let media_type = HISTORY_MEDIA_TYPE.to_owned();
                let file = ChatFile { media_type, bytes: text.into_bytes(), param: "messages".to_owned() };
                files.insert(sha256, file);
                History::File { sha256 }
            })
        });
        let stream = fields::flag(&mut body, "stream")?.unwrap_or(false);
        let mut options = fields::object(&mut body, "stream_options")?.unwrap_or_default();
        let include_usage = fields::flag(&mut options, "stream_options.include_usage")?.unwrap_or(false);
        check_answer_shape(&mut body)?;
        let metadata = fields::object(&mut body, "metadata")?.map(|metadata| Json(Value::Object(metadata)));
        Ok(Self { agent, stream, include_usage, files, content, history, metadata })
    }

    /// Returns the error for a body of more than [`CHAT_CALL_BYTES_MAX`].
    pub fn too_long() -> ChatError {
        ChatError::context_too_long(format!("request body exceeds the limit of {CHAT_CALL_BYTES_MAX} bytes"))
    }

    /// Returns the file of the call that contains its earlier messages, if they do not go inline.
    pub fn history_file(&self) -> Option<BlobHash> {
        self.history.as_ref()?.file()
    }

    /// Converts the call into a command, once its files are stored. A trace context that cannot be parsed starts a new
    /// trace.
    pub fn into_command(self, name: &ChatCallIds, traceparent: Option<String>) -> InvokeCommand {
        InvokeCommand {
            request_id: None,
            session: Some(name.session.clone()),
            agent_id: Some(self.agent),
            message: Message { role: Role::User, content: self.content },
            history: self.history,
            replaces: None,
            message_id: Some(name.message_id.clone()),
            // The caller waits for an answer of its own, so the input never joins a running turn.
            strategy: Some(Strategy::Enqueue),
            metadata: self.metadata,
            traceparent: traceparent.filter(|text| is_traceparent(text)),
        }
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
