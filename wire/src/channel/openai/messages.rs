//! Splits and checks the messages of a call: the last message is the input, the others are the history.
use super::ChatError;
use crate::channel::json::malformed::MalformedReason;
use crate::channel::json::mention;
use serde_json::{Map, Value};
use turnway_core::protocol::input::Content;

/// Roles that a message may have.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Returns the last message's content, and the messages before it unchanged.
pub(super) fn split_last(mut messages: Vec<Value>) -> Result<(Content, Vec<Value>), ChatError> {
    for (n, message) in messages.iter().enumerate() {
        check(n, message)?;
    }
    let last = messages.len().saturating_sub(1);
    let question = match messages.pop() {
        Some(Value::Object(question)) => question,
        Some(_) | None => {
            return Err(ChatError::invalid_field("messages", "messages: at least one message is required"));
        }
    };
    if role(&question) != Some("user") {
        let why = "the last message must have the role user";
        return Err(ChatError::invalid_field(field(last, "role"), why));
    }
    let content = question.get("content").cloned().unwrap_or_default();
    match mention::parse_content(content) {
        Ok(content) => Ok((content, messages)),
        Err(MalformedReason::EmptyContent) => {
            Err(ChatError::invalid_field(field(last, "content"), "the last message is empty"))
        }
        Err(_) => Err(invalid_field(last, "content")),
    }
}

/// Checks a message's role and the form of its content; everything else is left to the agent.
fn check(n: usize, message: &Value) -> Result<(), ChatError> {
    let not_object = || ChatError::invalid_field(format!("messages[{n}]"), "each message must be a JSON object");
    let message = message.as_object().ok_or_else(not_object)?;
    let role = role(message).filter(|role| ROLES.contains(role)).ok_or_else(|| invalid_field(n, "role"))?;
    let part = |part: &Value| part.get("type").is_some_and(Value::is_string);
    let good = match message.get("content") {
        Some(Value::String(_)) => true,
        Some(Value::Array(parts)) => parts.iter().all(part),
        // A message that called tools or functions may have no content.
        Some(Value::Null) | None => role == "assistant" || role == "function",
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => false,
    };
    if good { Ok(()) } else { Err(invalid_field(n, "content")) }
}

fn role(message: &Map<String, Value>) -> Option<&str> {
    message.get("role").and_then(Value::as_str)
}

fn field(n: usize, name: &str) -> String {
    format!("messages[{n}].{name}")
}

fn invalid_field(n: usize, name: &str) -> ChatError {
    let field = field(n, name);
    ChatError::invalid_field(field.clone(), format!("field has the wrong type or format: {field}"))
}
