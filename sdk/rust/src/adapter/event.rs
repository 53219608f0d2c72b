//! Events of a platform that an adapter brings, and the gateway's final answers to them.
use crate::adapter::place::{AccountPlace, is_conversation_id, is_platform_id};
use crate::error::ClientError;
use crate::frame::IncomingMessage;
use serde_json::{Value, json};

/// Maximum characters of a sender's name, as the protocol allows them.
const SENDER_NAME_MAX: usize = 256;

/// One event in a conversation of the account: a message of a person, or what happened to one.
#[derive(Clone, Debug, PartialEq)]
pub struct PlatformEvent {
    pub conversation_id: String,
    /// Conversation that contains this one, if the platform has such.
    pub parent_conversation_id: Option<String>,
    /// Platform's id of the message. The gateway accepts it once for each conversation.
    pub message_id: String,
    pub sender_id: String,
    /// Name of the sender, for people.
    pub sender_name: Option<String>,
    /// True if the sender is a bot; none if the platform does not say.
    pub is_bot: Option<bool>,
    /// Unix milliseconds, by the platform's clock.
    pub platform_time: Option<u64>,
    pub kind: PlatformEventKind,
}

/// The kind of an event, with its own data.
#[derive(Clone, Debug, PartialEq)]
pub enum PlatformEventKind {
    /// A text, or OpenAI content parts.
    Message { content: Value },
    /// The new content, and the platform's id of this edit if it has one.
    Edit { content: Value, edit_id: Option<String> },
    /// The message was deleted.
    Delete,
    /// Somebody reacted to the message.
    Reaction,
    /// The button `button_id` below the message was pressed.
    Decision {
        /// Platform's id of the press.
        press_id: String,
        button_id: String,
        /// Delivery with the button; none: the message tells it.
        delivery_id: Option<String>,
    },
    /// The conversation was closed or archived.
    ConversationClosed,
    /// The conversation has a new id.
    Moved { to: String },
}

/// A step in the platform's stream of events: the offset after it, and the event, if it is of interest.
#[derive(Clone, Debug, PartialEq)]
pub struct PlatformUpdate {
    /// One line of text.
    pub offset: String,
    pub event: Option<PlatformEvent>,
}

/// The consequence of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disposition {
    /// An input of a session.
    Run,
    /// Recorded without a turn.
    Recorded,
    /// Nothing follows from the event.
    Ignored,
    /// Refused for good: the same event would be refused again.
    Refused,
    /// A word that this version does not know.
    Other(String),
}

/// The gateway's final answer to an event: durably accepted, or refused for good. Only this crate creates it, after the
/// answer, so that no offset is saved earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledEvent {
    disposition: Disposition,
    reason: Option<String>,
    session_id: Option<String>,
    run_id: Option<String>,
    is_duplicate: bool,
}

// === impl PlatformEvent ===

impl PlatformEvent {
    /// Creates a message of a person.
    pub fn message(
        conversation_id: impl Into<String>,
        message_id: impl Into<String>,
        sender_id: impl Into<String>,
        text: impl Into<String>,
    ) -> Self {
        Self {
            conversation_id: conversation_id.into(),
            parent_conversation_id: None,
            message_id: message_id.into(),
            sender_id: sender_id.into(),
            sender_name: None,
            is_bot: None,
            platform_time: None,
            kind: PlatformEventKind::Message { content: Value::String(text.into()) },
        }
    }

    /// Checks the ids as the gateway does.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        let moved_to = match &self.kind {
            PlatformEventKind::Moved { to } => Some(to),
            PlatformEventKind::Message { .. }
            | PlatformEventKind::Edit { .. }
            | PlatformEventKind::Delete
            | PlatformEventKind::Reaction
            | PlatformEventKind::Decision { .. }
            | PlatformEventKind::ConversationClosed => None,
        };
        let mut places =
            [Some(&self.conversation_id), self.parent_conversation_id.as_ref(), moved_to].into_iter().flatten();
        if !places.all(|id| is_conversation_id(id)) {
            return Err(ClientError::BadName { what: "conversation id" });
        }
        if !is_platform_id(&self.message_id) {
            return Err(ClientError::BadName { what: "message id" });
        }
        if !is_platform_id(&self.sender_id) {
            return Err(ClientError::BadName { what: "sender id" });
        }
        Ok(())
    }

    /// Encodes the event; every repeat sends the same bytes.
    pub(crate) fn to_wire(&self, account: &AccountPlace, request_id: &str) -> String {
        let mut sender = json!({ "id": self.sender_id });
        if let Some(name) = &self.sender_name {
            // A person chooses the name, and the gateway refuses a message with a name of several lines.
            let name: String = name.chars().filter(|c| !c.is_control()).take(SENDER_NAME_MAX).collect();
            sender["name"] = name.into();
        }
        if let Some(is_bot) = self.is_bot {
            sender["is_bot"] = is_bot.into();
        }
        let place = account.conversation(&self.conversation_id, self.parent_conversation_id.as_deref());
        let mut body = json!({
            "type": "inbound", "request_id": request_id, "conversation": place, "sender": sender,
            "message": { "message_id": self.message_id },
        });
        if let Some(time) = self.platform_time {
            body["platform_time"] = time.into();
        }
        self.kind.write(&mut body);
        body.to_string()
    }
}

// === impl PlatformEventKind ===

impl PlatformEventKind {
    fn write(&self, body: &mut Value) {
        let name = match self {
            Self::Message { content } => {
                body["message"]["content"] = content.clone();
                "message"
            }
            Self::Edit { content, edit_id } => {
                body["message"]["content"] = content.clone();
                if let Some(edit_id) = edit_id {
                    body["message"]["edit_id"] = edit_id.clone().into();
                }
                "edit"
            }
            Self::Delete => "delete",
            Self::Reaction => "reaction",
            Self::Decision { press_id, button_id, delivery_id } => {
                body["decision"] = json!({ "press_id": press_id, "button_id": button_id });
                if let Some(delivery_id) = delivery_id {
                    body["decision"]["delivery_id"] = delivery_id.clone().into();
                }
                "decision"
            }
            Self::ConversationClosed => "conversation_closed",
            Self::Moved { to } => {
                body["moved_to"] = to.clone().into();
                "moved"
            }
        };
        body["event"] = name.into();
    }
}

// === impl PlatformUpdate ===

impl PlatformUpdate {
    /// Creates a step with an event.
    pub fn new(offset: impl ToString, event: PlatformEvent) -> Self {
        Self { offset: offset.to_string(), event: Some(event) }
    }

    /// Creates a step without an event of interest.
    pub fn skip(offset: impl ToString) -> Self {
        Self { offset: offset.to_string(), event: None }
    }
}

// === impl SettledEvent ===

impl SettledEvent {
    /// Reads the message `inbound_accepted`.
    pub(crate) fn accepted(frame: &IncomingMessage) -> Self {
        let disposition = match frame.text("disposition") {
            Some("run") => Disposition::Run,
            Some("recorded") => Disposition::Recorded,
            Some("ignored") => Disposition::Ignored,
            other => Disposition::Other(other.unwrap_or_default().to_owned()),
        };
        Self {
            disposition,
            reason: frame.string("reason"),
            session_id: frame.string("session_id"),
            run_id: frame.string("run_id"),
            is_duplicate: frame.flag("duplicate"),
        }
    }

    /// Creates the answer to an event that is refused for good, with the code of the error.
    pub(crate) fn refused(code: String) -> Self {
        let reason = Some(code);
        Self { disposition: Disposition::Refused, reason, session_id: None, run_id: None, is_duplicate: false }
    }

    /// Returns the consequence of the event.
    pub fn disposition(&self) -> &Disposition {
        &self.disposition
    }

    /// Returns the reason why the event was ignored, or the code of the error.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Returns the session that has the event as an input.
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// Returns the run that answers the event.
    pub fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    /// Returns whether the event had been accepted before.
    pub fn is_duplicate(&self) -> bool {
        self.is_duplicate
    }
}
