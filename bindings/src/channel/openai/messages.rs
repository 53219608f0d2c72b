//! Splits and checks the messages of a call: the last message is the input, the others are the history.
use super::Trouble;
use crate::channel::json::malformed::Flaw;
use crate::channel::json::mention;
use serde_json::{Map, Value};
use turnway_core::protocol::input::Content;

/// Roles that a message may have.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Returns the last message's content, and the messages before it unchanged.
pub(super) fn split(mut messages: Vec<Value>) -> Result<(Content, Vec<Value>), Trouble> {
    for (n, message) in messages.iter().enumerate() {
        check(n, message)?;
    }
    let last = messages.len().saturating_sub(1);
    let said = match messages.pop() {
        Some(Value::Object(said)) => said,
        Some(_) | None => return Err(Trouble::field("messages", "messages: at least one message is required")),
    };
    if role(&said) != Some("user") {
        let why = "the last message must have the role user";
        return Err(Trouble::field(field(last, "role"), why));
    }
    let content = said.get("content").cloned().unwrap_or_default();
    match mention::content(content) {
        Ok(content) => Ok((content, messages)),
        Err(Flaw::Empty) => Err(Trouble::field(field(last, "content"), "the last message is empty")),
        Err(_) => Err(wrong(last, "content")),
    }
}

/// Checks a message's role and the form of its content; everything else is left to the agent.
fn check(n: usize, message: &Value) -> Result<(), Trouble> {
    let message =
        message.as_object().ok_or_else(|| Trouble::field(format!("messages[{n}]"), "must be a JSON object"))?;
    let role = role(message).filter(|role| ROLES.contains(role)).ok_or_else(|| wrong(n, "role"))?;
    let part = |part: &Value| part.get("type").is_some_and(Value::is_string);
    let good = match message.get("content") {
        Some(Value::String(_)) => true,
        Some(Value::Array(parts)) => parts.iter().all(part),
        // A message that called tools or functions may have no content.
        Some(Value::Null) | None => role == "assistant" || role == "function",
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => false,
    };
    if good { Ok(()) } else { Err(wrong(n, "content")) }
}

fn role(message: &Map<String, Value>) -> Option<&str> {
    message.get("role").and_then(Value::as_str)
}

fn field(n: usize, name: &str) -> String {
    format!("messages[{n}].{name}")
}

fn wrong(n: usize, name: &str) -> Trouble {
    let field = field(n, name);
    Trouble::field(field.clone(), format!("field has the wrong type or format: {field}"))
}
