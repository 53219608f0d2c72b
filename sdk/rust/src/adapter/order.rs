//! The orders of the gateway to an adapter, as the author of a platform sees them.
use crate::frame::IncomingMessage;
use serde_json::{Map, Value};

/// A part of a message to send, or an answer so far to show as a preview.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PartOrder {
    /// Platform's id of the conversation to send to.
    pub conversation_id: String,
    /// Conversation that contains the one to send to, if the platform has such.
    pub parent_conversation_id: Option<String>,
    /// `final`, `task_completion`, `notice`, `farewell` or `preview`.
    pub kind: String,
    /// Markdown, within the declared limit.
    pub text: String,
    /// Same for each attempt at the part; at most 25 characters.
    pub key: String,
    /// Id of the message that the part answers.
    pub reply_to: Option<String>,
    /// Buttons below the part; needs the capability `buttons`.
    pub buttons: Vec<ButtonOrder>,
    /// Files to send with the text, which may then be empty; needs the capability `attachments`.
    pub attachments: Vec<AttachmentOrder>,
    /// Bearer token with which the files are read until the deadline; empty without files.
    pub file_token: String,
    /// Number of the part, from 1.
    pub part: u64,
    /// Number of parts of the delivery.
    pub parts: u64,
    /// Number of the attempt. From 2 on the platform may have the part already.
    pub attempt: u64,
    /// Time after which the part must not be sent, in Unix milliseconds.
    pub deadline_ts: u64,
    /// Message as the gateway has sent it.
    pub body: Map<String, Value>,
}

/// A button below a part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ButtonOrder {
    /// Reported by [`crate::adapter::PlatformEventKind::Decision`].
    pub id: String,
    /// Text on the button.
    pub label: String,
    /// `primary`, `secondary`, `success` or `danger`.
    pub style: Option<String>,
}

/// A file to send with a part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachmentOrder {
    /// Words of the agent for the file; may be empty.
    pub name: String,
    /// SHA-256 of the bytes, in hexadecimal.
    pub sha256: String,
    /// Path of the file at each node: read with `GET`, with the order's `file_token` as bearer token.
    pub url: String,
    /// True for a picture that is to be shown, rather than a file that is offered.
    pub is_inline: bool,
}

/// A change of one message: an edit, a deletion or a reaction.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChangeOrder {
    /// Platform's id of the conversation.
    pub conversation_id: String,
    /// Id of the message to change: one of the bot, or of a person for a reaction.
    pub target_id: String,
    /// New text of an edit; empty otherwise.
    pub text: String,
    /// Emoji of a reaction, or the platform's name of one; empty otherwise.
    pub emoji: String,
    /// True if the reaction is taken back.
    pub is_removal: bool,
    /// Same for each attempt at the change.
    pub key: String,
    /// Time after which the change must not be made, in Unix milliseconds.
    pub deadline_ts: u64,
    /// Message as the gateway has sent it.
    pub body: Map<String, Value>,
}

/// A conversation to make within another one, such as a thread in a channel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConversationOrder {
    /// Conversation that is to contain the new one.
    pub parent_conversation_id: String,
    /// One line, at most 100 characters.
    pub name: String,
    /// Message that the conversation begins with, if the platform can do that.
    pub reply_to: Option<String>,
    /// Same for each attempt.
    pub key: String,
    /// Time after which the conversation must not be made, in Unix milliseconds.
    pub deadline_ts: u64,
    /// Message as the gateway has sent it.
    pub body: Map<String, Value>,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Edit,
    Delete,
    React,
}

/// An order whose outcome is reported to the gateway.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReportedOrder {
    Part(Box<PartOrder>),
    Change(ChangeKind, ChangeOrder),
    Conversation(ConversationOrder),
}

/// A signal, whose outcome nobody waits for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SignalOrder {
    Typing { conversation_id: String, is_on: bool },
    Preview(Box<PartOrder>),
    DeletePreview { conversation_id: String, key: String },
}

/// An order of the gateway.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AdapterOrder {
    Reported(ReportedOrder),
    Signal(SignalOrder),
}

// === impl AdapterOrder ===

impl AdapterOrder {
    /// Reads an order; none if the message is another one, or lacks what every order has.
    pub(crate) fn parse(frame: &IncomingMessage) -> Option<Self> {
        let conversation_id = || place_id(frame, "conversation", "conversation_id");
        let order = match frame.kind() {
            "deliver" => return Self::parse_deliver(frame),
            "create_conversation" => Self::Reported(ReportedOrder::Conversation(conversation_order(frame)?)),
            "typing" => {
                let is_on = frame.text("state") == Some("on");
                Self::Signal(SignalOrder::Typing { conversation_id: conversation_id()?, is_on })
            }
            "delete_message" => {
                let key = frame.string("key")?;
                Self::Signal(SignalOrder::DeletePreview { conversation_id: conversation_id()?, key })
            }
            _ => return None,
        };
        Some(order)
    }

    fn parse_deliver(frame: &IncomingMessage) -> Option<Self> {
        let change = match frame.text("kind")? {
            "edit" => ChangeKind::Edit,
            "delete" => ChangeKind::Delete,
            "reaction" => ChangeKind::React,
            "preview" => return Some(Self::Signal(SignalOrder::Preview(Box::new(part_order(frame)?)))),
            _ => return Some(Self::Reported(ReportedOrder::Part(Box::new(part_order(frame)?)))),
        };
        Some(Self::Reported(ReportedOrder::Change(change, change_order(frame)?)))
    }
}

// === impl ReportedOrder ===

impl ReportedOrder {
    /// Returns the message as the gateway has sent it.
    pub(crate) fn body(&self) -> &Map<String, Value> {
        match self {
            Self::Part(part) => &part.body,
            Self::Change(_, change) => &change.body,
            Self::Conversation(order) => &order.body,
        }
    }

    /// Returns the name under which the outcome is remembered: orders with the same name are one message.
    pub(crate) fn memory_key(&self) -> String {
        match self {
            Self::Part(part) => format!("deliver {}", part.key),
            Self::Change(_, change) => format!("deliver {}", change.key),
            Self::Conversation(order) => format!("create {}", order.key),
        }
    }

    pub(crate) fn deadline_ts(&self) -> u64 {
        match self {
            Self::Part(part) => part.deadline_ts,
            Self::Change(_, change) => change.deadline_ts,
            Self::Conversation(order) => order.deadline_ts,
        }
    }

    pub(crate) fn attempt(&self) -> u64 {
        self.body().get("attempt").and_then(Value::as_u64).unwrap_or(1)
    }
}

// === impl SignalOrder ===

impl SignalOrder {
    pub(crate) fn conversation_id(&self) -> &str {
        match self {
            Self::Typing { conversation_id, .. } | Self::DeletePreview { conversation_id, .. } => conversation_id,
            Self::Preview(part) => &part.conversation_id,
        }
    }
}

fn place_id(frame: &IncomingMessage, place: &str, field: &str) -> Option<String> {
    frame.get(place)?.get(field)?.as_str().map(str::to_owned)
}

fn deadline(frame: &IncomingMessage) -> u64 {
    frame.number("deadline_ts").unwrap_or(u64::MAX)
}

fn part_order(frame: &IncomingMessage) -> Option<PartOrder> {
    frame.text("delivery_id")?;
    let field = |button: &Value, key| button.get(key).and_then(Value::as_str).map(str::to_owned);
    let button =
        |it: &Value| Some(ButtonOrder { id: field(it, "id")?, label: field(it, "label")?, style: field(it, "style") });
    let buttons = frame.get("buttons").and_then(Value::as_array);
    let attachment = |it: &Value| {
        let is_inline = it.get("inline").and_then(Value::as_bool).unwrap_or(false);
        Some(AttachmentOrder {
            name: field(it, "name")?,
            sha256: field(it, "sha256")?,
            url: field(it, "url")?,
            is_inline,
        })
    };
    let attachments = frame.get("attachments").and_then(Value::as_array);
    Some(PartOrder {
        conversation_id: place_id(frame, "conversation", "conversation_id")?,
        parent_conversation_id: place_id(frame, "conversation", "parent_conversation_id"),
        kind: frame.string("kind")?,
        text: frame.string("text").unwrap_or_default(),
        key: frame.string("key")?,
        reply_to: frame.string("reply_to"),
        buttons: buttons.map(|them| them.iter().filter_map(button).collect()).unwrap_or_default(),
        attachments: attachments.map(|them| them.iter().filter_map(attachment).collect()).unwrap_or_default(),
        file_token: frame.string("file_token").unwrap_or_default(),
        part: frame.number("part")?,
        parts: frame.number("parts").unwrap_or(1),
        attempt: frame.number("attempt").unwrap_or(1),
        deadline_ts: deadline(frame),
        body: frame.body().clone(),
    })
}

fn change_order(frame: &IncomingMessage) -> Option<ChangeOrder> {
    frame.text("delivery_id")?;
    frame.number("part")?;
    let target = frame.get("target")?;
    let target_id = target.get("external_id").or_else(|| target.get("message_id"))?.as_str()?;
    let reaction = frame.get("reaction");
    let emoji = reaction.and_then(|it| it.get("emoji")?.as_str());
    Some(ChangeOrder {
        conversation_id: place_id(frame, "conversation", "conversation_id")?,
        target_id: target_id.to_owned(),
        text: frame.string("text").unwrap_or_default(),
        emoji: emoji.unwrap_or_default().to_owned(),
        is_removal: reaction.and_then(|it| it.get("remove")?.as_bool()).unwrap_or(false),
        key: frame.string("key")?,
        deadline_ts: deadline(frame),
        body: frame.body().clone(),
    })
}

fn conversation_order(frame: &IncomingMessage) -> Option<ConversationOrder> {
    frame.text("delivery_id")?;
    Some(ConversationOrder {
        parent_conversation_id: place_id(frame, "parent", "conversation_id")?,
        name: frame.string("name").unwrap_or_default(),
        reply_to: frame.string("reply_to"),
        key: frame.string("key")?,
        deadline_ts: deadline(frame),
        body: frame.body().clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn part(more: Value) -> PartOrder {
        let mut message = json!({
            "type": "deliver", "delivery_id": "d", "part": 1, "kind": "final", "text": "", "key": "k",
            "conversation": {"channel": "rooms", "account_id": "main", "conversation_id": "lobby"},
        });
        let fields = message.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        let frame = IncomingMessage::parse(&message.to_string()).expect("a message");
        part_order(&frame).expect("a part")
    }

    /// Covers: PR-24.
    #[test]
    fn files_of_a_part_are_parsed() {
        let file = json!({"name": "a cat", "sha256": "ab", "url": "/v1/sessions/s1/blobs/ab", "inline": true});
        // An object without one of the fields is no file.
        let order = part(json!({"attachments": [file, {"name": "b"}], "file_token": "twfile_a"}));
        let expected = AttachmentOrder {
            name: "a cat".to_owned(),
            sha256: "ab".to_owned(),
            url: "/v1/sessions/s1/blobs/ab".to_owned(),
            is_inline: true,
        };
        assert_eq!((order.attachments, order.file_token.as_str()), (vec![expected], "twfile_a"));
        let without = part(json!({}));
        assert!(without.attachments.is_empty() && without.file_token.is_empty());
    }
}
