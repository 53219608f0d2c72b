//! Access of agents that are models to the node: the upstreams, and the conversations of sessions. Conversations are read
//! by `http`, which stands above this module and gives its reader to `Agents` at the start.
use crate::models::Models;
use crate::run_token::TokenRun;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use turnway_core::id::BlobHash;
use turnway_core::private::Private;

/// A reader of the conversations of sessions.
pub trait ConversationSource: fmt::Debug + Send + Sync {
    /// Reads the messages before a run, oldest first: those that are answered, and complete answers. All attempts at a run
    /// get the same messages.
    fn read_before(&self, run: TokenRun) -> BoxFuture<'_, Result<Vec<EarlierMessage>, ConversationError>>;

    /// Reads the earlier messages of a client that keeps the conversation itself, from a file of the session.
    fn read_file(&self, run: TokenRun, sha256: BlobHash) -> BoxFuture<'_, Result<Vec<u8>, ConversationError>>;
}

/// A message of a conversation, as models read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EarlierMessage {
    pub role: EarlierRole,
    pub content: Private<String>,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EarlierRole {
    User,
    Assistant,
}

/// The reason why a conversation cannot be read; without content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the conversation cannot be read: {0}")]
pub struct ConversationError(pub String);

/// The parts of a node that agents need which are models.
#[derive(Clone, Debug)]
pub struct ModelAccess {
    pub models: Models,
    pub conversations: Arc<dyn ConversationSource>,
}

// === impl EarlierMessage ===

impl EarlierMessage {
    /// Returns the message as the formats of chats have it.
    pub(super) fn into_value(self) -> Value {
        let Private(content) = self.content;
        json!({ "role": self.role, "content": content })
    }

    /// Returns the estimated tokens of the message: one for each 4 bytes, rounded up, and 4 for its role and limits.
    pub fn tokens(&self) -> u64 {
        (self.content.reveal().len() as u64).div_ceil(4) + 4
    }
}

/// Returns the newest messages whose sizes add up to at most this room, oldest first.
pub fn newest_that_fit(
    mut messages: Vec<EarlierMessage>,
    mut room: u64,
    size: impl Fn(&EarlierMessage) -> u64,
) -> Vec<EarlierMessage> {
    let fits = |message: &&EarlierMessage| match room.checked_sub(size(message)) {
        Some(rest) => {
            room = rest;
            true
        }
        None => false,
    };
    let count = messages.iter().rev().take_while(fits).count();
    messages.split_off(messages.len() - count)
}

/// Returns the newest messages whose estimated tokens are within a budget. The oldest of them is one of a user: some
/// providers refuse a conversation that begins with an answer.
pub(super) fn newest_within(messages: Vec<EarlierMessage>, budget: u32) -> Vec<EarlierMessage> {
    let mut messages = newest_that_fit(messages, u64::from(budget), EarlierMessage::tokens);
    let answers = messages.iter().take_while(|message| message.role == EarlierRole::Assistant).count();
    messages.drain(..answers);
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: EarlierRole, content: &str) -> EarlierMessage {
        EarlierMessage { role, content: Private(content.to_owned()) }
    }

    #[test]
    fn newest_messages_fill_the_budget_from_a_user_on() {
        let all = vec![
            message(EarlierRole::User, "12345"),
            message(EarlierRole::Assistant, ""),
            message(EarlierRole::User, "1234"),
            message(EarlierRole::Assistant, "\u{e9}\u{e9}\u{e9}"),
        ];
        let tokens: Vec<u64> = all.iter().map(EarlierMessage::tokens).collect();
        assert_eq!(tokens, [6, 4, 5, 6]);
        for (budget, expected) in [(0, 4), (10, 4), (11, 2), (15, 2), (20, 2), (21, 0), (8000, 0)] {
            assert_eq!(newest_within(all.clone(), budget), all[expected..], "{budget}");
        }
        assert!(!format!("{all:?}").contains("12345"), "debug output shows no content");
    }
}
