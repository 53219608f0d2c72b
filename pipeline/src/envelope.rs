//! A message on its way in or out.
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What an envelope carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// What somebody says.
    #[default]
    Message,
    /// Why nothing is said: so that a failure is seen where the answer was awaited (TP-E4).
    Error,
}

/// One message, and where it comes from or goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Envelope {
    /// Message or error.
    pub kind: Kind,
    /// Whose gateway it is, where there are several tenants.
    pub tenant: Option<String>,
    /// The kind of conversation, such as `cli`.
    pub channel: Option<String>,
    /// Which account of the channel.
    pub account: Option<String>,
    /// Which conversation of the channel.
    pub chat_id: Option<String>,
    /// The session, once it is known.
    pub session_id: Option<String>,
    /// Its text.
    pub content: String,
    /// Images and the like, as OpenAI content parts.
    pub media: Vec<Value>,
    /// What else is known of it.
    pub context: BTreeMap<String, Value>,
    /// The model said nothing, and this stands for it (RX-12).
    pub fallback: bool,
    /// Its text has been shown piece by piece: whoever delivers it shows no text again.
    pub streamed: bool,
}

// === impl Envelope ===

impl Envelope {
    /// A message of this text from nowhere.
    pub fn text(content: impl Into<String>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }

    /// A message of this text to where this one came from.
    pub fn reply(&self, content: impl Into<String>) -> Self {
        Self {
            tenant: self.tenant.clone(),
            channel: self.channel.clone(),
            account: self.account.clone(),
            chat_id: self.chat_id.clone(),
            session_id: self.session_id.clone(),
            ..Self::text(content)
        }
    }

    /// The session of a message that nobody knows one for: channel and chat, `default` where one is missing (TP-R2,
    /// TP-R3). Tenant and account come first where there are any: chats of two accounts never meet.
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
