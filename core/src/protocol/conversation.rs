//! References to conversations: the places on a platform where people talk, such as a channel, a thread or a topic. The
//! only place where references from outside are normalised; raw texts go no further.
use crate::id::{
    AccountId, BadName, ChannelName, ConversationId, DeliveryId, MessageId, RequestId, SessionId, TenantId,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Words that clients of platforms put in front of an id, with a colon. Such a text is an address in another program, so
/// it is refused instead of being taken for an id that no platform has.
const ADDRESS_PREFIXES: [&str; 8] = ["channel", "thread", "user", "group", "chat", "topic", "dm", "conversation"];

/// A conversation of one account on one channel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "UncheckedConversationRef")]
pub struct ConversationRef {
    pub channel: ChannelName,
    pub account_id: AccountId,
    pub conversation_id: ConversationId,
    /// The conversation that contains this one, such as the channel of a thread. Never the conversation itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_conversation_id: Option<ConversationId>,
}

/// A reference as somebody wrote it, before it is normalised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct UncheckedConversationRef {
    /// The channel in any case, with space around it.
    pub channel: String,
    pub account_id: String,
    pub conversation_id: String,
    /// An empty text counts as none.
    #[serde(default)]
    pub parent_conversation_id: Option<String>,
}

/// The key of a conversation's binding: two tenants, channels or accounts never share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationKey {
    pub tenant: TenantId,
    pub channel: ChannelName,
    pub account: AccountId,
    pub conversation: ConversationId,
}

impl ConversationRef {
    /// Normalises a reference: trims ids, writes the channel in lower case, and drops a parent that is the conversation
    /// itself.
    pub fn parse(raw: &UncheckedConversationRef) -> Result<Self, BadName> {
        let channel = ChannelName::parse(&raw.channel.trim().to_ascii_lowercase())?;
        let account_id = AccountId::parse(raw.account_id.trim())?;
        let conversation_id = parse_conversation_id(&channel, &raw.conversation_id)?;
        let parent = raw.parent_conversation_id.as_deref().filter(|parent| !parent.trim().is_empty());
        let parent = parent.map(|parent| parse_conversation_id(&channel, parent)).transpose()?;
        let parent_conversation_id = parent.filter(|parent| *parent != conversation_id);
        Ok(Self { channel, account_id, conversation_id, parent_conversation_id })
    }

    /// Normalises a reference without a parent.
    pub fn without_parent(channel: &str, account_id: &str, conversation_id: &str) -> Result<Self, BadName> {
        Self::parse(&UncheckedConversationRef {
            channel: channel.to_owned(),
            account_id: account_id.to_owned(),
            conversation_id: conversation_id.to_owned(),
            parent_conversation_id: None,
        })
    }

    /// Returns the key of the conversation's binding within a tenant. The parent is no part of it.
    pub fn key(&self, tenant: &TenantId) -> ConversationKey {
        ConversationKey {
            tenant: tenant.clone(),
            channel: self.channel.clone(),
            account: self.account_id.clone(),
            conversation: self.conversation_id.clone(),
        }
    }

    /// Returns the session that the conversation has as long as nobody has bound it.
    pub fn own_session(&self, tenant: &TenantId) -> SessionId {
        SessionId::for_conversation(tenant, &self.channel, &self.account_id, &self.conversation_id)
    }

    /// Returns the name that a platform's message has in the inbox of a session.
    pub fn inbox_message_id(&self, message: &MessageId) -> MessageId {
        MessageId::of_platform(&self.channel, &self.account_id, &self.conversation_id, message)
    }

    /// Returns the name under which the inbox of a session records where the conversation leads; no message has it.
    pub fn inbox_place_id(&self) -> MessageId {
        MessageId::of_place(&self.channel, &self.account_id, &self.conversation_id)
    }

    /// Returns the name that an edit of a platform's message has in the inbox of a session.
    pub fn inbox_edit_id(&self, message: &MessageId, edit: &str) -> MessageId {
        MessageId::of_edit(&self.channel, &self.account_id, &self.conversation_id, message, edit)
    }

    /// Returns the name that the press of a button has in the inbox of a session. Without `press`, all presses below one
    /// delivery have the same name, so that the store accepts the first one only.
    pub fn inbox_press_id(&self, delivery: &DeliveryId, press: Option<&RequestId>) -> MessageId {
        MessageId::of_press(&self.channel, &self.account_id, &self.conversation_id, delivery, press)
    }

    /// Returns the conversation that the platform has made within this one under an id; `None`: it is no id of a
    /// conversation.
    pub fn child(&self, id: &MessageId) -> Option<Self> {
        let conversation_id = parse_conversation_id(&self.channel, id.as_str()).ok()?;
        let parent_conversation_id = Some(self.conversation_id.clone()).filter(|parent| *parent != conversation_id);
        Some(Self { conversation_id, parent_conversation_id, ..self.clone() })
    }

    /// Returns the name of a new conversation: the first line of a text with something on it, of at most
    /// [`crate::limits::TASK_TITLE_CHARACTERS_MAX`] characters.
    pub fn name_of(text: &str, otherwise: &str) -> String {
        let line = text.split(char::is_control).map(str::trim).find(|line| !line.is_empty()).unwrap_or(otherwise);
        line.chars().take(crate::limits::TASK_TITLE_CHARACTERS_MAX).collect()
    }

    /// Returns whether both are the same conversation, whatever their parents.
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.is_same_account(other) && self.conversation_id == other.conversation_id
    }

    /// Returns whether both belong to one account of one channel.
    pub fn is_same_account(&self, other: &Self) -> bool {
        self.channel == other.channel && self.account_id == other.account_id
    }
}

impl TryFrom<UncheckedConversationRef> for ConversationRef {
    type Error = BadName;

    fn try_from(raw: UncheckedConversationRef) -> Result<Self, BadName> {
        Self::parse(&raw)
    }
}

/// Checks the id of a conversation: neither an address of another program (`channel:123`), nor an id in the scope of the
/// channel (`discord:123`).
fn parse_conversation_id(channel: &ChannelName, raw: &str) -> Result<ConversationId, BadName> {
    let id = ConversationId::parse(raw.trim())?;
    let prefix = id.as_str().split_once(':').map(|(prefix, _)| prefix.trim().to_ascii_lowercase());
    let is_address = prefix.is_some_and(|prefix| {
        ADDRESS_PREFIXES.contains(&prefix.as_str()) || prefix == channel.as_str() || prefix.is_empty()
    });
    if is_address { Err(BadName { kind: "conversation_id" }) } else { Ok(id) }
}

// === impl ConversationKey ===

impl ConversationKey {
    /// Parses a key as it is printed.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        const NOT_A_KEY: BadName = BadName { kind: "conversation key" };
        let mut parts = text.splitn(4, '/');
        let mut next = || parts.next().ok_or(NOT_A_KEY);
        Ok(Self {
            tenant: TenantId::parse(next()?)?,
            channel: ChannelName::parse(next()?)?,
            account: AccountId::parse(next()?)?,
            conversation: ConversationId::parse(next()?)?,
        })
    }

    /// Returns the key of another conversation of the same account.
    pub fn sibling(&self, conversation: &ConversationId) -> Self {
        Self { conversation: conversation.clone(), ..self.clone() }
    }
}

impl fmt::Display for ConversationKey {
    /// Writes `TENANT/CHANNEL/ACCOUNT/CONVERSATION`. Only the conversation, which is last, may contain a slash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.tenant, self.channel, self.account, self.conversation)
    }
}

#[cfg(test)]
mod tests;
