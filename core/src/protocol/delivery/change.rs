//! Changes of messages that a platform has: the new text or the removal of an answer, and reactions to what people wrote.
use crate::id::MessageId;
use crate::limits;
use crate::private::Private;
use serde::{Deserialize, Serialize};

/// The messages that a delivery changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageChange {
    /// The platform's ids of the messages, one for each part.
    pub targets: Vec<MessageId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaction: Option<Reaction>,
}

/// A reaction of the gateway's account to a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaction {
    /// An emoji, or a platform's name of one: at most [`limits::EMOJI_BYTES_MAX`] bytes.
    pub emoji: Private<String>,
    /// The reaction is taken back.
    #[serde(default)]
    pub remove: bool,
}

// === impl MessageChange ===

impl MessageChange {
    /// Returns the bytes that the change takes in a log or a snapshot.
    pub fn bytes(&self) -> usize {
        let emoji = self.reaction.as_ref().map_or(0, |reaction| reaction.emoji.reveal().len());
        emoji + self.targets.iter().map(|target| target.as_str().len()).sum::<usize>()
    }
}

// === impl Reaction ===

impl Reaction {
    /// Returns whether the emoji can be shown: one word of limited length.
    pub fn is_valid(&self) -> bool {
        let emoji = self.emoji.reveal();
        let is_word = !emoji.chars().any(|it| it.is_control() || it.is_whitespace());
        !emoji.is_empty() && is_word && emoji.len() <= limits::EMOJI_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emoji_is_one_word_of_limited_length() {
        let is_valid = |emoji: &str| Reaction { emoji: Private(emoji.to_owned()), remove: false }.is_valid();
        assert!(["\u{1F44D}", "party_parrot:17", &"x".repeat(limits::EMOJI_BYTES_MAX)].into_iter().all(is_valid));
        assert!(!["", "a b", "a\n", &"x".repeat(limits::EMOJI_BYTES_MAX + 1)].into_iter().any(is_valid));
    }
}
