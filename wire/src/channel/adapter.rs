//! Messages between a node and an adapter, which brings a platform's conversations to the gateway: what people wrote, and
//! what is to be sent to them.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{
    AccountId, ChannelName, ConversationId, DeliveryId, MessageId, NodeId, RequestId, RunId, SessionId, SessionKey,
    UserId,
};
use turnway_core::private::Private;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{
    AccountPause, DeliveryErrorClass, DeliveryKind, DeliveryOrder, Sender, TextLimit, TextUnit,
};
use turnway_core::protocol::input::Content;
use turnway_core::time::Millis;

/// The capability of an adapter to send texts; its limit counts for one message.
const TEXT: &str = "text";
/// The capability of an adapter to make a conversation within another one, such as a thread in a channel.
const CREATE_CONVERSATION: &str = "create_conversation";
/// The capability of a platform, or of the adapter, to recognise a message that is sent again with the same key.
const KEY: &str = "key";

/// The capability to show that an answer is being written.
const TYPING: &str = "typing";
/// The capability to post an answer that is still being written, to change it, and to remove it.
const PREVIEW: &str = "preview";
/// The capability to show buttons below a message, and to report who presses them.
const BUTTONS: &str = "buttons";

/// The capability to give a message that was sent another text.
const EDIT: &str = "edit";
/// The capability to delete a message that was sent.
const DELETE: &str = "delete";
/// The capability to react to a message, and to take a reaction back.
const REACTION: &str = "reaction";
/// The capability to send files with a message.
const ATTACHMENTS: &str = "attachments";

/// The `kind` of a preview, which is no kind of a delivery.
pub const PREVIEW_KIND: &str = "preview";

/// The claim of an adapter in its `hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterHello {
    pub channel: ChannelName,
    pub account: AccountId,
    /// The platform's own id of the login: one account at a time acts as it.
    pub platform_bot_id: Option<RequestId>,
    /// The adapter's process, by a name that its next start has too: a new connection of the same instance replaces the
    /// old one at once.
    pub instance_id: Option<RequestId>,
    pub capabilities: AdapterCapabilities,
}

/// The capabilities of an adapter on its platform, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterCapabilities(pub BTreeMap<String, Capability>);

/// The level of a capability, with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// −2 rejected, −1 dropped, 0 fallback, 1 partial, 2 full.
    pub level: i8,
    /// The limit, for a capability that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<TextUnit>,
}

/// A change of what an adapter can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilitiesCommand {
    pub request_id: Option<RequestId>,
    /// The conversation that differs from the others; absent: the whole connection.
    pub conversation: Option<ConversationRef>,
    /// Takes the place of what was declared before.
    pub capabilities: AdapterCapabilities,
}

/// A request for the right to add files to the session of a conversation, for a message that is to name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrepareFilesCommand {
    pub request_id: Option<RequestId>,
    pub conversation: ConversationRef,
}

/// The session that a message of a conversation goes to now, and the right to add files to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedFiles {
    pub request_id: Option<RequestId>,
    pub key: SessionKey,
    /// The user as whom the adapter adds them.
    pub user: UserId,
    /// The token with which the adapter adds files, and its end. The machines mint none: the connection's task does.
    pub token: Option<UploadToken>,
}

/// The right to add files to one session, until a time of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadToken {
    pub text: Private<String>,
    pub ends: Millis,
}

/// Something that happened in a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct InboundCommand {
    pub request_id: Option<RequestId>,
    pub conversation: ConversationRef,
    pub sender: Sender,
    /// The message that it is about, as the platform names it.
    pub message_id: MessageId,
    /// The time by the platform's clock.
    pub platform_time: Option<Millis>,
    pub event: InboundEvent,
}

/// The kind of an inbound event.
#[derive(Clone, Debug, PartialEq)]
pub enum InboundEvent {
    /// Somebody wrote a message.
    Message(Content),
    /// Somebody changed a message; without the new content nothing follows.
    Edit(Option<Box<MessageEdit>>),
    /// Somebody deleted a message.
    Delete,
    /// Somebody reacted to a message.
    Reaction,
    /// Somebody pressed a button below a message.
    Decision(Box<PressedButton>),
    /// The platform closed the conversation: its binding ends.
    Closed,
    /// The platform gave the conversation another id: its binding moves there.
    Moved(ConversationId),
}

/// A button that somebody has pressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressedButton {
    /// The platform's id of the press.
    pub press_id: RequestId,
    pub button_id: String,
    /// The delivery of the message; absent: the message's id tells it.
    pub delivery_id: Option<DeliveryId>,
}

/// The new content of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageEdit {
    pub content: Content,
    /// The platform's name of this edit, such as its time; absent: edits to the same content are one edit.
    pub edit_id: Option<RequestId>,
}

/// An adapter's report about a part that it was to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveredCommand {
    pub delivery_id: DeliveryId,
    pub part: u32,
    pub outcome: AdapterOutcome,
}

/// The result of sending a part, by the adapter's knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterOutcome {
    /// The platform has it. A receipt without the platform's id counts as [`AdapterOutcome::Unknown`].
    Sent { external_id: MessageId, place: ConversationRef },
    /// Every try failed before anything was sent.
    NotSent,
    /// The platform may have it.
    Unknown,
    /// The platform refused it.
    Rejected { class: DeliveryErrorClass, retry_after_ms: Option<u64> },
}

/// A part that an adapter is to send, or a conversation that it is to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliverMessage {
    pub order: Arc<DeliveryOrder>,
    /// From 2 if the part may have been sent before.
    pub attempt: u32,
    /// The adapter sends files: they are named apart from the text.
    pub takes_files: bool,
    /// The token with which the adapter reads them. The machines mint none: the connection's task does.
    pub file_token: Option<Private<String>>,
}

/// The answer to an inbound event, once what follows from it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundReceipt {
    pub request_id: Option<RequestId>,
    pub disposition: InboundDisposition,
    /// The reason why an event that usually has an effect is ignored.
    pub reason: Option<IgnoreReason>,
    pub session: Option<SessionId>,
    pub run_id: Option<RunId>,
    /// The message had been accepted before.
    pub duplicate: bool,
}

/// The effect of an inbound event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundDisposition {
    /// A turn, now or after those before it.
    Run,
    /// A change of the conversation's binding.
    Recorded,
    /// Nothing follows from the event.
    Ignored,
}

/// The reason why a message or a press was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoreReason {
    /// The message is older than the channel's `stale_after`.
    Stale,
    /// A button of the same message was pressed before.
    Decided,
}

/// The state of an adapter's connection: one connection of an account sends, the others stand by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterState {
    pub is_active: bool,
    /// The node of the connection that sends.
    pub holder: Option<NodeId>,
    /// The time since which it sends.
    pub since: Option<Millis>,
    /// The pause of the account: the connection that sends gets no parts.
    pub pause: Option<Box<AccountPause>>,
}

// === impl AdapterCapabilities ===

impl AdapterCapabilities {
    /// Returns the maximum length of one message, if it is declared.
    pub fn text_limit(&self) -> Option<TextLimit> {
        let usual = TextLimit::default();
        let text = self.0.get(TEXT)?;
        Some(TextLimit { max: text.max.unwrap_or(usual.max), unit: text.unit.unwrap_or(usual.unit) })
    }

    /// Removes what has no effect in a single conversation: unknown capabilities, and those of the whole platform.
    pub fn retain_of_conversation(&mut self) {
        const NAMES: [&str; 8] = [TEXT, TYPING, PREVIEW, BUTTONS, EDIT, DELETE, REACTION, ATTACHMENTS];
        self.0.retain(|name, _| NAMES.contains(&name.as_str()));
    }

    /// Returns whether typing signals are shown, if it is declared.
    pub fn shows_typing(&self) -> Option<bool> {
        self.0.get(TYPING).map(|typing| typing.level > 0)
    }

    /// Returns whether previews are shown, if it is declared.
    pub fn shows_previews(&self) -> Option<bool> {
        self.0.get(PREVIEW).map(|preview| preview.level > 0)
    }

    /// Returns whether files are sent with messages, if it is declared.
    pub fn sends_files(&self) -> Option<bool> {
        self.0.get(ATTACHMENTS).map(|attachments| attachments.level > 0)
    }

    /// Returns the level of buttons, if it is declared.
    pub fn button_level(&self) -> Option<i8> {
        self.0.get(BUTTONS).map(|buttons| buttons.level)
    }

    /// Returns whether the adapter carries out deliveries of a kind that changes messages, if it is declared. There is no
    /// such capability for other kinds.
    pub fn changes_messages(&self, kind: DeliveryKind) -> Option<bool> {
        let name = match kind {
            DeliveryKind::Edit => EDIT,
            DeliveryKind::Delete => DELETE,
            DeliveryKind::Reaction => REACTION,
            DeliveryKind::Final
            | DeliveryKind::TaskCompletion
            | DeliveryKind::Notice
            | DeliveryKind::Farewell
            | DeliveryKind::Conversation => return None,
        };
        self.0.get(name).map(|change| change.level > 0)
    }

    /// Returns whether the adapter can make conversations.
    pub fn creates_conversations(&self) -> bool {
        self.0.get(CREATE_CONVERSATION).is_some_and(|creates| creates.level > 0)
    }

    /// Returns whether a message that is sent again with the same key appears once.
    pub fn recognises_key(&self) -> bool {
        self.0.get(KEY).is_some_and(|key| key.level > 0)
    }
}

// === impl AdapterOutcome ===

impl AdapterOutcome {
    /// The names of the outcomes on the wire.
    pub const NAMES: [&str; 4] = ["sent", "not_sent", "unknown", "rejected"];
}

// === impl InboundEvent ===

impl InboundEvent {
    /// The names of the events on the wire.
    pub const NAMES: [&str; 7] = ["message", "edit", "delete", "reaction", "decision", "conversation_closed", "moved"];
}

// === impl IgnoreReason ===

impl IgnoreReason {
    /// All reasons, for the schema.
    pub const ALL: [Self; 2] = [Self::Stale, Self::Decided];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Decided => "decided",
        }
    }
}

// === impl InboundDisposition ===

impl InboundDisposition {
    /// All dispositions, for the schema.
    pub const ALL: [Self; 3] = [Self::Run, Self::Recorded, Self::Ignored];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Recorded => "recorded",
            Self::Ignored => "ignored",
        }
    }
}
