//! Earlier messages that come with an input, if its client keeps the conversation itself.
use crate::id::BlobHash;
use crate::limits::HISTORY_BYTES_MAX;
use crate::private::Private;
use crate::protocol::json::{self, ExactJson};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// Earlier messages, passed to the agent as they are (MP-G3): a JSON array, as text, because only the agent reads it.
/// Cheap to clone; `Debug` prints no content (S-38).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum History {
    /// The array itself, of at most [`HISTORY_BYTES_MAX`].
    Inline(Private<Arc<str>>),
    /// A file of the session that contains a longer array. Nodes of an earlier release cannot read such an input.
    File { sha256: BlobHash },
}

/// A JSON array of earlier messages that is being written, one message after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryText(Private<String>);

/// The error for messages that take more than [`HISTORY_BYTES_MAX`] as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryTooLong;

impl fmt::Display for HistoryTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the earlier messages exceed the limit of {HISTORY_BYTES_MAX} bytes")
    }
}

// === impl History ===

impl History {
    /// Creates a history of messages that go inline. Keys are sorted, so equal messages give the same text in whatever
    /// order their keys were sent.
    pub fn from_messages(messages: &[Value]) -> Result<Self, HistoryTooLong> {
        let mut text = HistoryText::default();
        messages.iter().for_each(|message| text.push(message));
        Self::from_text(text).map_err(|_| HistoryTooLong)
    }

    /// Creates a history of a text that goes inline. Returns the text if it is too long, as the content of a file.
    pub fn from_text(text: HistoryText) -> Result<Self, String> {
        let text = text.finish();
        if text.len() > HISTORY_BYTES_MAX { Err(text) } else { Ok(Self::Inline(Private(text.into()))) }
    }

    /// Returns the text with its numbers as earlier releases read them: the form that is hashed to recognise a
    /// repeat. A file is named instead, which no array looks like.
    pub(crate) fn with_rounded_numbers(&self) -> String {
        match self {
            Self::Inline(text) => {
                let read = json::read_stored(text.reveal());
                read.map_or_else(
                    |_| text.reveal().to_owned(),
                    |messages| json::with_rounded_numbers(&messages).to_string(),
                )
            }
            Self::File { sha256 } => format!("file {sha256}"),
        }
    }

    /// Returns the SHA-256 of the array, hex, by which a fact refers to the history; of a file, this is its name.
    pub fn sha256(&self) -> String {
        match self {
            Self::Inline(text) => BlobHash::of(text.reveal().as_bytes()).to_string(),
            Self::File { sha256 } => sha256.to_string(),
        }
    }

    /// Returns the JSON array if it goes inline; the caller must not log it.
    pub fn inline(&self) -> Option<&str> {
        match self {
            Self::Inline(text) => Some(text.reveal()),
            Self::File { .. } => None,
        }
    }

    /// Returns the name of the file that contains the array, if it does not go inline.
    pub fn file(&self) -> Option<BlobHash> {
        match self {
            Self::Inline(_) => None,
            Self::File { sha256 } => Some(*sha256),
        }
    }

    /// Returns the bytes that the history takes in an inbox.
    pub fn weight(&self) -> usize {
        match self {
            Self::Inline(text) => text.reveal().len(),
            Self::File { .. } => 128,
        }
    }
}

// === impl HistoryText ===

impl HistoryText {
    /// Adds a message.
    pub fn push(&mut self, message: &Value) {
        let Self(Private(text)) = self;
        text.push(if text.is_empty() { '[' } else { ',' });
        // Values that were read from JSON always serialise.
        text.push_str(&serde_json::to_string(&ExactJson(message)).unwrap_or_default());
    }

    /// Returns whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of the text so far.
    pub fn len(&self) -> usize {
        self.0.reveal().len()
    }

    /// Ends the array.
    pub fn finish(self) -> String {
        let Self(Private(mut text)) = self;
        text.push_str(if text.is_empty() { "[]" } else { "]" });
        text
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
        assert_eq!(history.inline(), Some(r#"[{"content":"canary","role":"user"}]"#));
        assert_eq!(Ok(&history), History::from_messages(&read(r#"[ {"content":"canary", "role":"user"} ]"#)).as_ref());
        assert!(!format!("{history:?}").contains("canary"));
        let kept = serde_json::to_string(&history).expect("serialises");
        assert!(kept.starts_with("\"[{"), "as every release wrote it: {kept}");
        assert_eq!(serde_json::from_str::<History>(&kept).ok(), Some(history));
        assert_eq!(
            History::from_messages(&[]).ok().and_then(|none| none.inline().map(str::to_owned)),
            Some("[]".into())
        );
        // Quotes and brackets take four bytes.
        assert!(History::from_messages(&[json!("x".repeat(HISTORY_BYTES_MAX - 4))]).is_ok());
        assert_eq!(History::from_messages(&[json!("x".repeat(HISTORY_BYTES_MAX - 3))]), Err(HistoryTooLong));
    }

    /// Covers: PR-24, ST-35.
    #[test]
    fn history_in_a_file_is_named_by_the_hash_of_its_text() {
        let mut text = HistoryText::default();
        text.push(&json!({"role": "user", "content": "x".repeat(HISTORY_BYTES_MAX)}));
        text.push(&json!({"role": "assistant", "content": "y"}));
        let text = History::from_text(text).expect_err("too long");
        let messages = serde_json::from_str::<Vec<Value>>(&text).expect("an array");
        assert_eq!(messages[1]["content"], "y");
        let sha256 = BlobHash::of(text.as_bytes());
        let history = History::File { sha256 };
        assert_eq!((history.sha256(), history.inline(), history.file()), (sha256.to_string(), None, Some(sha256)));
        let kept = serde_json::to_string(&history).expect("serialises");
        assert_eq!(serde_json::from_str::<History>(&kept).ok(), Some(history.clone()));
        assert!(kept.len() < history.weight(), "{kept}");
    }
}
