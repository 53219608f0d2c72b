//! Prompts for a model.
use serde_json::{Value, json};

/// A text, or parts of several kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    /// OpenAI content parts (TP-B1).
    Parts(Vec<Value>),
}

impl Prompt {
    /// Creates a prompt from a text and its media (TP-N6).
    pub fn from_text(text: String, media: &[Value]) -> Self {
        if media.is_empty() {
            return Self::Text(text);
        }
        let first = json!({"type": "text", "text": text});
        Self::Parts(std::iter::once(first).chain(media.iter().cloned()).collect())
    }

    /// Returns whether the prompt is empty: the message's own text is then used (TP-B4).
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts.is_empty(),
        }
    }
}
