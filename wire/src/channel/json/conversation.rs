//! References to conversations and accounts in JSON messages.
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::MalformedReason;
use serde_json::Value;
use turnway_core::id::{AccountId, ChannelName, ConversationId};
use turnway_core::protocol::conversation::{ConversationRef, UncheckedConversationRef};

/// The name of a field with a conversation, and the paths of its parts.
#[derive(Clone, Copy, Debug)]
pub struct ConversationField {
    name: &'static str,
    channel: &'static str,
    account_id: &'static str,
    conversation_id: &'static str,
    parent: &'static str,
}

/// The conversation that a message is about.
pub const CONVERSATION: ConversationField = ConversationField {
    name: "conversation",
    channel: "conversation.channel",
    account_id: "conversation.account_id",
    conversation_id: "conversation.conversation_id",
    parent: "conversation.parent_conversation_id",
};

/// The conversation that is to contain a new one.
pub const PARENT: ConversationField = ConversationField {
    name: "parent",
    channel: "parent.channel",
    account_id: "parent.account_id",
    conversation_id: "parent.conversation_id",
    parent: "parent.parent_conversation_id",
};

/// The conversations that a message looks up.
pub const CONVERSATIONS: ConversationField = ConversationField {
    name: "conversations",
    channel: "conversations.channel",
    account_id: "conversations.account_id",
    conversation_id: "conversations.conversation_id",
    parent: "conversations.parent_conversation_id",
};

/// The conversation that a platform has put a message into.
pub const PLACE: ConversationField = ConversationField {
    name: "place",
    channel: "place.channel",
    account_id: "place.account_id",
    conversation_id: "place.conversation_id",
    parent: "place.parent_conversation_id",
};

/// Parses a required conversation.
pub fn parse_conversation(fields: &mut Fields, field: ConversationField) -> Result<ConversationRef, MalformedReason> {
    required(parse_optional(fields, field)?, field.name)
}

/// Parses a conversation, if there is one.
pub fn parse_optional(
    fields: &mut Fields,
    field: ConversationField,
) -> Result<Option<ConversationRef>, MalformedReason> {
    fields::object(fields, field.name)?.map(|object| parse_object(object, field)).transpose()
}

/// Parses a required list of at most this many conversations.
pub fn parse_conversations(
    fields: &mut Fields,
    field: ConversationField,
    most: usize,
) -> Result<Vec<ConversationRef>, MalformedReason> {
    let parse = |item| match item {
        Value::Object(object) => parse_object(object, field),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(MalformedReason::InvalidField(field.name))
        }
    };
    let items = fields::list(fields, field.name, most)?;
    let conversations: Vec<ConversationRef> = items.into_iter().map(parse).collect::<Result<_, _>>()?;
    required((!conversations.is_empty()).then_some(conversations), field.name)
}

fn parse_object(mut object: Fields, field: ConversationField) -> Result<ConversationRef, MalformedReason> {
    let raw = UncheckedConversationRef {
        channel: required(fields::text(&mut object, field.channel)?, field.channel)?,
        account_id: required(fields::text(&mut object, field.account_id)?, field.account_id)?,
        conversation_id: required(fields::text(&mut object, field.conversation_id)?, field.conversation_id)?,
        parent_conversation_id: fields::text(&mut object, field.parent)?,
    };
    ConversationRef::parse(&raw).map_err(|_| MalformedReason::InvalidField(field.name))
}

/// Parses the new id of a conversation, if there is one.
pub fn parse_new_id(
    conversation: &ConversationRef,
    fields: &mut Fields,
    name: &'static str,
) -> Result<Option<ConversationId>, MalformedReason> {
    let Some(id) = fields::text(fields, name)? else { return Ok(None) };
    let ConversationRef { channel, account_id, .. } = conversation;
    let moved = ConversationRef::without_parent(channel.as_str(), account_id.as_str(), &id);
    moved.map(|moved| Some(moved.conversation_id)).map_err(|_| MalformedReason::InvalidField(name))
}

/// Parses an account: a channel and an account on it, `names` being the paths of both.
pub fn parse_account(
    fields: &mut Fields,
    names: [&'static str; 2],
) -> Result<(ChannelName, AccountId), MalformedReason> {
    let [channel_field, account_field] = names;
    let channel = required(fields::text(fields, channel_field)?, channel_field)?;
    let account = required(fields::text(fields, account_field)?, account_field)?;
    let channel = ChannelName::parse(&channel.trim().to_ascii_lowercase());
    let channel = channel.map_err(|_| MalformedReason::InvalidField(channel_field))?;
    let account = AccountId::parse(account.trim()).map_err(|_| MalformedReason::InvalidField(account_field))?;
    Ok((channel, account))
}
