//! One message of the gateway, parsed leniently: a missing field and a field of a wrong type are the same. Used by
//! the client's state machine.
use crate::event::FactPosition;
use crate::number;
use serde_json::{Map, Value};

/// A JSON object with a `type`. Unknown fields are ignored, as the protocol requires.
#[derive(Clone, Debug)]
pub(crate) struct IncomingMessage(Map<String, Value>);

impl IncomingMessage {
    /// Parses a message; a number that is too large for a double becomes its text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let read = serde_json::from_str(text);
        match read.or_else(|_| serde_json::from_str(&number::large_as_text(text))) {
            Ok(Value::Object(map)) if map.get("type").is_some_and(Value::is_string) => Some(Self(map)),
            Ok(_) | Err(_) => None,
        }
    }

    pub(crate) fn kind(&self) -> &str {
        self.text("type").unwrap_or_default()
    }

    /// Returns a field, from the top level or from `data`: facts requested by type may arrive as envelopes.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let inner = || self.0.get("data").and_then(|data| data.get(key));
        self.0.get(key).or_else(inner).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    pub(crate) fn string(&self, key: &str) -> Option<String> {
        self.text(key).map(str::to_owned)
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns the number of the attempt, if there is one.
    pub(crate) fn attempt(&self) -> Option<u32> {
        self.number("attempt").and_then(|attempt| u32::try_from(attempt).ok())
    }

    /// Returns the position in the log if the message is a fact.
    pub(crate) fn position(&self) -> Option<FactPosition> {
        let seq = self.0.get("seq").and_then(Value::as_u64)?;
        Some(FactPosition { seq, epoch: self.number("epoch"), ts: self.number("ts") })
    }

    /// Returns a field of the stored message in a `message`, flat or nested.
    pub(crate) fn message_field(&self, key: &str) -> Option<&Value> {
        let nested = || self.get("message").and_then(|message| message.get(key));
        self.get(key).or_else(nested)
    }

    pub(crate) fn body(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// Returns a text, or the joined texts of content parts.
pub(crate) fn joined_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}
