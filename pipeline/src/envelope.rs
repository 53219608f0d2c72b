//! Incoming and outgoing messages of the pipeline.
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The kind of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageKind {
    #[default]
    Message,
    /// The reason why there is no answer, shown where the answer was awaited (TP-E4).
    Error,
}

/// One message, with its origin or destination.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageEnvelope {
    pub kind: MessageKind,
    /// The tenant, if the gateway has several.
    pub tenant: Option<String>,
    /// The kind of conversation, such as `cli`.
    pub channel: Option<String>,
    /// The account of the channel.
    pub account: Option<String>,
    /// The conversation of the channel.
    pub chat_id: Option<String>,
    /// The session, once it is known.
    pub session_id: Option<String>,
    pub content: String,
    /// Images and other media, as OpenAI content parts.
    pub media: Vec<Value>,
    /// Further metadata of the message.
    pub context: BTreeMap<String, Value>,
    /// True if the model gave no output and this text replaces it (RX-12).
    pub fallback: bool,
    /// True if the text has been shown piece by piece: delivery must not show it again.
    pub streamed: bool,
}

// === impl MessageEnvelope ===

impl MessageEnvelope {
    /// Creates a message with this text and no origin.
    pub fn from_text(content: impl Into<String>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }

    /// Creates a message with this text to the origin of this message.
    pub fn reply(&self, content: impl Into<String>) -> Self {
        Self {
            tenant: self.tenant.clone(),
            channel: self.channel.clone(),
            account: self.account.clone(),
            chat_id: self.chat_id.clone(),
            session_id: self.session_id.clone(),
            ..Self::from_text(content)
        }
    }

    /// Returns the session of a message that no plugin has assigned one to: channel and chat, `default` for a missing
    /// one (TP-R2, TP-R3). Tenant and account come first if present, so that chats of two accounts never meet.
    pub fn fallback_session(&self) -> String {
        fn or_default(part: Option<&String>) -> &str {
            part.map_or("default", String::as_str)
        }
        let chat = format!("{}:{}", or_default(self.channel.as_ref()), or_default(self.chat_id.as_ref()));
        match (&self.tenant, &self.account) {
            (None, None) => chat,
            (tenant, account) => {
                format!("{}/{}/{chat}", or_default(tenant.as_ref()), or_default(account.as_ref()))
            }
        }
    }
}
