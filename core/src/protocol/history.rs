//! What was said before an input, where its client keeps the conversation itself.
use crate::limits::HISTORY_BYTES_MAX;
use crate::private::Private;
use crate::protocol::json;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// Earlier messages, carried to the agent as they came (MP-G3): a JSON array, as text, because only
/// the agent reads it. Cheap to copy; prints as its size only (S-38).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct History(Private<Arc<str>>);

/// The messages are more than [`HISTORY_BYTES_MAX`] as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryTooLong;

impl fmt::Display for HistoryTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the earlier messages are more than {HISTORY_BYTES_MAX} bytes")
    }
}

impl History {
    /// These messages; keys are sorted, so the same messages are the same text however they were written.
    pub fn of(messages: &[Value]) -> Result<Self, HistoryTooLong> {
        let mut text = Vec::new();
        // Values that were read always serialise.
        let _ = serde_json::Serializer::new(&mut text).collect_seq(messages.iter().map(json::Exact));
        let text = String::from_utf8(text).unwrap_or_default();
        if text.len() > HISTORY_BYTES_MAX {
            return Err(HistoryTooLong);
        }
        Ok(Self(Private(text.into())))
    }
    /// Returns the text with its numbers as earlier releases had them: what is hashed of it to know a repeat.
    pub(crate) fn rounded(&self) -> String {
        let read = json::read_back(self.reveal());
        read.map_or_else(|_| self.reveal().to_owned(), |messages| json::rounded(&messages).to_string())
    }
    /// Of the text, hex: how a fact names it without telling it.
    pub fn sha256(&self) -> String {
        Sha256::digest(self.reveal()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
    /// The array; whoever calls this must not log it.
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
    fn a_history_is_bounded_private_and_one_text() {
        let read = |text: &str| serde_json::from_str::<Vec<Value>>(text).expect("a list");
        let messages = read(r#"[{"role":"user","content":"canary"}]"#);
        let history = History::of(&messages).expect("short");
        assert_eq!(history.reveal(), r#"[{"content":"canary","role":"user"}]"#);
        assert_eq!(Ok(&history), History::of(&read(r#"[ {"content":"canary", "role":"user"} ]"#)).as_ref());
        assert!(!format!("{history:?}").contains("canary"));
        let kept = serde_json::to_string(&history).expect("serialises");
        assert_eq!(serde_json::from_str::<History>(&kept).ok(), Some(history));
        // Quotes and brackets are four bytes.
        assert!(History::of(&[json!("x".repeat(HISTORY_BYTES_MAX - 4))]).is_ok());
        assert_eq!(History::of(&[json!("x".repeat(HISTORY_BYTES_MAX - 3))]), Err(HistoryTooLong));
    }
}
