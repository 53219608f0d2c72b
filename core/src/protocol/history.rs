//! Earlier messages that come with an input, if its client keeps the conversation itself.
use crate::limits::HISTORY_BYTES_MAX;
use crate::private::Private;
use crate::protocol::json;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// Earlier messages, passed to the agent unchanged (MP-G3): a JSON array, as text, because only the agent reads it.
/// Cheap to clone; `Debug` prints the size only (S-38).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct History(Private<Arc<str>>);

/// The error for messages that take more than [`HISTORY_BYTES_MAX`] as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryTooLong;

impl fmt::Display for HistoryTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the earlier messages exceed the limit of {HISTORY_BYTES_MAX} bytes")
    }
}

impl History {
    /// Creates a history. Keys are sorted, so equal messages give the same text in whatever order their keys were
    /// sent.
    pub fn from_messages(messages: &[Value]) -> Result<Self, HistoryTooLong> {
        let mut text = Vec::new();
        // Values that were read from JSON always serialise.
        let _ = serde_json::Serializer::new(&mut text).collect_seq(messages.iter().map(json::ExactJson));
        let text = String::from_utf8(text).unwrap_or_default();
        if text.len() > HISTORY_BYTES_MAX {
            return Err(HistoryTooLong);
        }
        Ok(Self(Private(text.into())))
    }
    /// Returns the text with its numbers as earlier releases read them: the form that is hashed to recognise a
    /// repeat.
    pub(crate) fn with_rounded_numbers(&self) -> String {
        let read = json::read_stored(self.reveal());
        read.map_or_else(|_| self.reveal().to_owned(), |messages| json::with_rounded_numbers(&messages).to_string())
    }
    /// Returns the SHA-256 of the text, hex, by which a fact refers to the history.
    pub fn sha256(&self) -> String {
        Sha256::digest(self.reveal()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
    /// Returns the JSON array; the caller must not log it.
    pub fn reveal(&self) -> &str {
        self.0.reveal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Covers: MP-G3, S-38, S-48.
    #[test]
    fn history_is_bounded_and_hidden_from_debug() {
        let read = |text: &str| serde_json::from_str::<Vec<Value>>(text).expect("a list");
        let messages = read(r#"[{"role":"user","content":"canary"}]"#);
        let history = History::from_messages(&messages).expect("short");
        assert_eq!(history.reveal(), r#"[{"content":"canary","role":"user"}]"#);
        assert_eq!(Ok(&history), History::from_messages(&read(r#"[ {"content":"canary", "role":"user"} ]"#)).as_ref());
        assert!(!format!("{history:?}").contains("canary"));
        let kept = serde_json::to_string(&history).expect("serialises");
        assert_eq!(serde_json::from_str::<History>(&kept).ok(), Some(history));
        // Quotes and brackets take four bytes.
        assert!(History::from_messages(&[json!("x".repeat(HISTORY_BYTES_MAX - 4))]).is_ok());
        assert_eq!(History::from_messages(&[json!("x".repeat(HISTORY_BYTES_MAX - 3))]), Err(HistoryTooLong));
    }
}
