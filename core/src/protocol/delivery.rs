//! Deliveries: what the gateway sends to conversations by itself, and what adapters report about it. The session machine
//! decides on deliveries, the node's adapters carry them out, and the log records them.
mod button;
mod change;
mod files;
mod pause;
mod preview;
mod split;

use crate::id::{AccountId, ChannelName, DeliveryId, MessageId, RunId, SessionKey, TenantId};
use crate::planted::{Planted, planted};
use crate::private::Private;
use crate::protocol::binding::{Generation, PlannedBinding};
use crate::protocol::conversation::ConversationRef;
use crate::protocol::route::{DeliveryRoute, RouteReason};
use crate::protocol::task::TaskOrigin;
use crate::time::Millis;
pub use button::{Button, ButtonDisplay, ButtonPress, ButtonSet, ButtonStyle};
pub use change::{MessageChange, Reaction};
pub use files::{FileReference, name_file_references, take_file_references};
pub use pause::{AccountPause, MisplacedPart, PauseReason, PausedAccount};
pub use preview::{PreviewText, preview_text};
use serde::{Deserialize, Serialize};
pub use split::{TextUnit, split_text};
use std::fmt;
use std::sync::Arc;

/// One account of the gateway on a platform, within a tenant: what an adapter serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AccountKey {
    pub tenant: TenantId,
    pub channel: ChannelName,
    pub account: AccountId,
}

/// The place that an input came from, as its fact records it. The answer goes there and nowhere else, whatever is bound
/// meanwhile and whichever node owns the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputOrigin {
    pub conversation: ConversationRef,
    /// The message, as the platform names it.
    pub message_id: MessageId,
    pub sender: Sender,
    /// The time of the message by the platform's clock, if the adapter gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform_time: Option<Millis>,
    /// The length of one message that the adapter can send there.
    pub text_limit: TextLimit,
    /// The task that the input gives, if an agent gave it: the conversation is then that of the message that led to the
    /// task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskOrigin>,
    /// The time for which the message waits for further ones of its sender, in milliseconds: the channel's setting when
    /// the message was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debounce_ms: Option<u64>,
    /// The level of the capability `buttons` there when the message was accepted; absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buttons: Option<i8>,
    /// The button that was pressed, if the input is a press and no message. `message_id` is then the message with the
    /// button.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Box<ButtonPress>>,
}

/// The person or program that wrote a message on a platform. It names somebody and grants nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// The platform's id.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_bot: bool,
}

/// The maximum length of a message on a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextLimit {
    pub max: u32,
    pub unit: TextUnit,
}

impl Default for TextLimit {
    /// Returns the limit of an adapter that declares none: the smallest of the large platforms (Discord: 2,000).
    fn default() -> Self {
        Self { max: 2_000, unit: TextUnit::Utf16 }
    }
}

/// The kind of a delivery; a message of one kind never takes the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryKind {
    /// The answer to a message of the conversation.
    Final,
    /// The end of a task that a session was spawned for.
    TaskCompletion,
    /// A message that is no answer: a notice of the gateway, such as of a turn that has failed, or a text that a client
    /// sends by itself.
    Notice,
    /// A last word to a conversation whose binding has ended.
    Farewell,
    /// No message: the platform is to make a conversation within this one, for a task or for a binding. Its name is the
    /// only part.
    Conversation,
    /// The new text of a message that was sent.
    Edit,
    /// The removal of the messages of a delivery that was sent, one with each part.
    Delete,
    /// A reaction to a message that somebody wrote, or its removal.
    Reaction,
}

impl DeliveryKind {
    /// All kinds, for the schema.
    pub const ALL: [Self; 8] = [
        Self::Final,
        Self::TaskCompletion,
        Self::Notice,
        Self::Farewell,
        Self::Conversation,
        Self::Edit,
        Self::Delete,
        Self::Reaction,
    ];
    /// The kinds that are messages.
    pub const MESSAGES: [Self; 4] = [Self::Final, Self::TaskCompletion, Self::Notice, Self::Farewell];
    /// The kinds that change what a message looks like. The platform has the same state after each repetition.
    pub const CHANGES: [Self; 3] = [Self::Edit, Self::Delete, Self::Reaction];

    /// Returns whether a delivery of this kind is a message of its own.
    pub fn is_message(self) -> bool {
        Self::MESSAGES.contains(&self)
    }

    /// Returns whether a delivery of this kind changes a message.
    pub fn is_change(self) -> bool {
        Self::CHANGES.contains(&self)
    }

    /// Returns whether the platform has put a part where it belongs: a message into the conversation that was ordered; a
    /// new conversation into the same account, with the id that the receipt has.
    pub fn is_at_its_place(self, ordered: &ConversationRef, external_id: &MessageId, place: &ConversationRef) -> bool {
        match self {
            Self::Final
            | Self::TaskCompletion
            | Self::Notice
            | Self::Farewell
            | Self::Edit
            | Self::Delete
            | Self::Reaction => place.is_same_place(ordered),
            Self::Conversation => {
                let is_new = place.conversation_id.as_str() == external_id.as_str();
                is_new && place.is_same_account(ordered) && !place.is_same_place(ordered)
            }
        }
    }

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Final => "final",
            Self::TaskCompletion => "task_completion",
            Self::Notice => "notice",
            Self::Farewell => "farewell",
            Self::Conversation => "conversation",
            Self::Edit => "edit",
            Self::Delete => "delete",
            Self::Reaction => "reaction",
        }
    }
}

/// The class of an adapter's error. Decided by the adapter from a typed code of its platform, never from a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryErrorClass {
    /// The platform fails for now.
    Transient,
    /// The platform asks to wait.
    RateLimit,
    /// The adapter's credential is not accepted.
    Auth,
    /// The account may not write there.
    Permission,
    /// The conversation does not exist any more.
    Gone,
    /// The platform refuses this message.
    Invalid,
    /// The place has changed, such as an archived thread.
    Conflict,
}

impl DeliveryErrorClass {
    /// All classes, for parsers and the schema.
    pub const ALL: [Self; 7] =
        [Self::Transient, Self::RateLimit, Self::Auth, Self::Permission, Self::Gone, Self::Invalid, Self::Conflict];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::RateLimit => "rate_limit",
            Self::Auth => "auth",
            Self::Permission => "permission",
            Self::Gone => "gone",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
        }
    }

    /// Returns whether the same message may succeed later without anybody's help.
    pub fn may_pass(self) -> bool {
        match self {
            Self::Transient | Self::RateLimit | Self::Auth => true,
            Self::Permission | Self::Gone | Self::Invalid | Self::Conflict => false,
        }
    }
}

/// The reason for which a delivery ended without being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryFailure {
    /// The platform refused it for good.
    Permission,
    Gone,
    Invalid,
    Conflict,
    /// It was tried [`crate::limits::DELIVERY_ATTEMPTS_MAX`] times.
    TooManyAttempts,
    /// It is older than [`crate::limits::DELIVERY_AGE_MAX`].
    TooOld,
    /// The session has [`crate::limits::DELIVERIES_OPEN_MAX`] open deliveries.
    TooMany,
    /// The adapter sent it to another place than it was told.
    Misplaced,
    /// The binding by which it was routed has ended.
    Rebound,
    /// An operator has dropped it.
    Dropped,
    /// An earlier delivery to the place failed with `permission` or `gone`, and nobody has written there since.
    Suppressed,
    /// The adapter has not declared that it can change a message in this way.
    NotSupported,
    /// The platform has made the conversation, and it could not be bound to the session.
    NotBound,
}

impl DeliveryFailure {
    /// All reasons, for metrics and the schema.
    pub const ALL: [Self; 13] = [
        Self::Permission,
        Self::Gone,
        Self::Invalid,
        Self::Conflict,
        Self::TooManyAttempts,
        Self::TooOld,
        Self::TooMany,
        Self::Misplaced,
        Self::Rebound,
        Self::Dropped,
        Self::Suppressed,
        Self::NotSupported,
        Self::NotBound,
    ];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Permission => "permission",
            Self::Gone => "gone",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::TooManyAttempts => "too_many_attempts",
            Self::TooOld => "too_old",
            Self::TooMany => "too_many",
            Self::Misplaced => "misplaced",
            Self::Rebound => "rebound",
            Self::Dropped => "dropped",
            Self::Suppressed => "suppressed",
            Self::NotSupported => "not_supported",
            Self::NotBound => "not_bound",
        }
    }

    /// Returns whether later deliveries to the same place would fail as well.
    pub fn concerns_place(self) -> bool {
        match self {
            Self::Permission | Self::Gone => true,
            Self::Invalid
            | Self::Conflict
            | Self::TooManyAttempts
            | Self::TooOld
            | Self::TooMany
            | Self::Misplaced
            | Self::Rebound
            | Self::Dropped
            | Self::Suppressed
            | Self::NotSupported
            | Self::NotBound => false,
        }
    }

    /// Returns the failure of a refused delivery; `None` if it is tried again.
    pub fn of_class(class: DeliveryErrorClass) -> Option<Self> {
        match class {
            DeliveryErrorClass::Transient | DeliveryErrorClass::RateLimit | DeliveryErrorClass::Auth => None,
            DeliveryErrorClass::Permission => Some(Self::Permission),
            DeliveryErrorClass::Gone => Some(Self::Gone),
            DeliveryErrorClass::Invalid => Some(Self::Invalid),
            DeliveryErrorClass::Conflict => Some(Self::Conflict),
        }
    }
}

/// The order to send one part of a delivery.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryOrder {
    pub key: SessionKey,
    pub delivery_id: DeliveryId,
    /// Counts from 1; a repetition after an unknown outcome has a higher number and the same `dedupe_key`.
    pub attempt: u32,
    /// The part, from 1.
    pub part: u32,
    pub parts: u32,
    pub kind: DeliveryKind,
    pub conversation: ConversationRef,
    /// The message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<MessageId>,
    pub text: Private<String>,
    /// The buttons below the last part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buttons: Option<Arc<ButtonSet>>,
    /// The change of a message, if the order is no message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Arc<MessageChange>>,
    pub requested_at: Millis,
    /// The time after which the part is not sent any more.
    pub deadline: Millis,
    /// Somebody else may have had the part sent: the adapter's node sends it only if it knows that this did not happen,
    /// or if the platform recognises the key.
    pub may_be_sent: bool,
}

impl DeliveryOrder {
    /// Returns the account that is to send the part.
    pub fn account(&self) -> AccountKey {
        AccountKey::of(&self.key.tenant, &self.conversation)
    }

    /// Returns the key by which a platform recognises a repeated part: at most 25 characters (Discord's `nonce`), the same
    /// for every attempt, and another for each part and kind.
    pub fn dedupe_key(&self) -> String {
        self.delivery_id.dedupe_key(self.kind.as_str(), self.part)
    }

    /// Returns the message that the part changes.
    pub fn target(&self) -> Option<&MessageId> {
        let targets = &self.change.as_ref()?.targets;
        let index = if planted(Planted::ChangeOfFirstTarget) { 0 } else { self.part.checked_sub(1)? };
        targets.get(index as usize)
    }
}

impl fmt::Debug for DeliveryOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delivery_id, attempt, part, parts, text, .. } = self;
        write!(f, "DeliveryOrder({delivery_id}, attempt {attempt}, part {part} of {parts}, {text:?})")
    }
}

impl AccountKey {
    /// Returns the account that a conversation belongs to.
    pub fn of(tenant: &TenantId, conversation: &ConversationRef) -> Self {
        Self { tenant: tenant.clone(), channel: conversation.channel.clone(), account: conversation.account_id.clone() }
    }
}

impl fmt::Display for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.tenant, self.channel, self.account)
    }
}

/// The result of one attempt to send a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryOutcome {
    /// The platform has the part.
    Sent {
        /// The platform's id of the message.
        external_id: MessageId,
        /// The conversation that the platform put it into.
        place: ConversationRef,
    },
    /// Every try failed before the platform could get the part.
    NotSent,
    /// The platform may have the part.
    Unknown {
        /// The platform recognises the key of a repeated part.
        may_repeat: bool,
    },
    /// The platform refused the part.
    Rejected {
        class: DeliveryErrorClass,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// The adapter was not asked: it has not declared that it can change a message in this way.
    NotSupported,
}

/// The result of an attempt, as the adapter's node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryReport {
    pub delivery_id: DeliveryId,
    pub part: u32,
    pub attempt: u32,
    pub outcome: DeliveryOutcome,
}

/// A requested delivery, as the session's log records it, with all its parts: no later step makes them again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRequested {
    pub delivery_id: DeliveryId,
    pub kind: DeliveryKind,
    pub conversation: ConversationRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<MessageId>,
    /// The run whose end caused the delivery; `None`: no run did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about_run: Option<RunId>,
    /// The router's answer, if the router chose the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<DeliveryRoute>,
    /// The version of the binding that the delivery is for, if no router chose it: the delivery is sent only while that
    /// binding stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The buttons below the last part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buttons: Option<Arc<ButtonSet>>,
    /// The change of a message, for the kinds that are no messages. An empty text stands for each part without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Arc<MessageChange>>,
    /// The binding that the new conversation is to get, if the delivery makes one for a binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Arc<PlannedBinding>>,
    /// The length of one message there. Present in answers since sessions remember their latest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_limit: Option<TextLimit>,
    pub parts: Vec<Private<String>>,
}

/// A text that a client sends to a conversation of a session without a turn, with the place that the router chose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageSend {
    pub delivery_id: DeliveryId,
    /// The client's name for the message: a message of a user with the same name in the same session is the same.
    pub message_id: MessageId,
    pub conversation: ConversationRef,
    pub route: DeliveryRoute,
    pub text: Private<String>,
}

/// A conversation that the platform is to make within another one, and that is then bound to the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationCreation {
    pub delivery_id: DeliveryId,
    /// The client's name for it: a creation by a user with the same name in the same session is the same.
    pub creation_id: MessageId,
    pub parent: ConversationRef,
    /// The name of the new conversation: one line of at most [`crate::limits::TASK_TITLE_CHARACTERS_MAX`].
    pub name: Private<String>,
    pub binding: Arc<PlannedBinding>,
}

/// A completion that is sent nowhere, because the router refused to choose a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRefused {
    /// The run whose end is not shown.
    pub about_run: RunId,
    pub reason: RouteReason,
    /// The conversation of the message that led to the task.
    pub requester: ConversationRef,
}

/// A further attempt at the next part of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryAttempted {
    pub delivery_id: DeliveryId,
    pub part: u32,
    /// From 2: the first attempt is part of the request.
    pub attempt: u32,
}

/// The receipt of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliverySent {
    pub delivery_id: DeliveryId,
    pub part: u32,
    pub parts: u32,
    /// The platform's id of the message.
    pub external_id: MessageId,
    /// The session's number of undelivered messages from now on, if the receipt has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undelivered: Option<u32>,
}

/// A part of which nobody knows whether it was sent, and which cannot be repeated safely. An operator decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryHeld {
    pub delivery_id: DeliveryId,
    pub part: u32,
    /// The number of deliveries of the session that are held, or have failed and are kept, from now on.
    pub undelivered: u32,
}

/// The end of a delivery that was not sent, or not whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryFailed {
    pub delivery_id: DeliveryId,
    /// The part that was not sent.
    pub part: u32,
    pub reason: DeliveryFailure,
    /// As in [`DeliveryHeld`].
    pub undelivered: u32,
}

/// An operator's decision that a held or failed delivery is sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRedriven {
    pub delivery_id: DeliveryId,
    /// As in [`DeliveryHeld`].
    pub undelivered: u32,
}
