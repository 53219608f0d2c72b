//! Names of accounts and conversations, and the rules for ids of a platform.
use crate::error::ClientError;
use serde_json::{Value, json};

/// Maximum bytes of an id of a platform, as the protocol allows them.
const ID_BYTES_MAX: usize = 256;
/// Maximum characters of the name of a channel or an account.
const NAME_MAX: usize = 64;

/// An account of the gateway on a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccountPlace {
    pub(crate) channel: String,
    pub(crate) account_id: String,
}

// === impl AccountPlace ===

impl AccountPlace {
    /// Checks the names.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        let is_name = |name: &str, is_upper_allowed: bool| {
            let is_of_it = |b: u8| {
                b.is_ascii_lowercase()
                    || b.is_ascii_digit()
                    || b"_.-".contains(&b)
                    || (is_upper_allowed && b.is_ascii_uppercase())
            };
            (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_of_it)
        };
        if !is_name(&self.channel, false) {
            return Err(ClientError::BadName { what: "channel" });
        }
        if !is_name(&self.account_id, true) {
            return Err(ClientError::BadName { what: "account" });
        }
        Ok(())
    }

    /// Returns a conversation of the account as messages name it.
    pub(crate) fn conversation(&self, conversation_id: &str, parent: Option<&str>) -> Value {
        let mut place = json!({
            "channel": self.channel, "account_id": self.account_id, "conversation_id": conversation_id,
        });
        if let Some(parent) = parent.filter(|parent| *parent != conversation_id) {
            place["parent_conversation_id"] = parent.into();
        }
        place
    }
}

/// Returns whether the protocol allows a text as an id of a platform.
pub(crate) fn is_platform_id(id: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len()) && !id.chars().any(char::is_control)
}

/// Returns whether the protocol allows a text as an id of a conversation.
pub(crate) fn is_conversation_id(id: &str) -> bool {
    is_platform_id(id) && id.trim() == id
}
