//! Messages between a node and an adapter, which brings a platform's conversations to the gateway: what people wrote, and
//! what is to be sent to them.
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{
    AccountId, ChannelName, ConversationId, DeliveryId, MessageId, NodeId, RequestId, RunId, SessionId,
};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{DeliveryErrorClass, DeliveryOrder, Sender, TextLimit, TextUnit};
use turnway_core::protocol::input::Content;
use turnway_core::time::Millis;

/// The capability of an adapter to send texts; its limit counts for one message.
const TEXT: &str = "text";
/// The capability of a platform, or of the adapter, to recognise a message that is sent again with the same key.
const KEY: &str = "key";

/// The claim of an adapter in its `hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterHello {
    pub channel: ChannelName,
    pub account: AccountId,
    /// The platform's own id of the login, for operators who read the lease.
    pub platform_bot_id: Option<RequestId>,
    /// The adapter's process, by a name that its next start has too: a new connection of the same instance replaces the
    /// old one at once.
    pub instance_id: Option<RequestId>,
    pub capabilities: AdapterCapabilities,
}

/// The capabilities of an adapter on its platform, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterCapabilities(pub BTreeMap<String, Capability>);

/// The level of a capability, with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// −2 rejected, −1 dropped, 0 fallback, 1 partial, 2 full.
    pub level: i8,
    /// The limit, for a capability that has one.
    pub max: Option<u32>,
    pub unit: Option<TextUnit>,
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
    /// Somebody changed a message.
    Edit,
    /// Somebody deleted a message.
    Delete,
    /// Somebody reacted to a message.
    Reaction,
    /// The platform closed the conversation: its binding ends.
    Closed,
    /// The platform gave the conversation another id: its binding moves there.
    Moved(ConversationId),
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

/// A part that an adapter is to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliverMessage {
    pub order: Arc<DeliveryOrder>,
    /// From 2 if the part may have been sent before.
    pub attempt: u32,
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

/// The reason why a message was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoreReason {
    /// The message is older than the channel's `stale_after`.
    Stale,
}

/// The state of an adapter's connection: one connection of an account sends, the others stand by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterState {
    pub is_active: bool,
    /// The node of the connection that sends.
    pub holder: Option<NodeId>,
    /// The time since which it sends.
    pub since: Option<Millis>,
}

// === impl AdapterCapabilities ===

impl AdapterCapabilities {
    /// Returns the maximum length of one message.
    pub fn text_limit(&self) -> TextLimit {
        let usual = TextLimit::default();
        let Some(text) = self.0.get(TEXT) else { return usual };
        TextLimit { max: text.max.unwrap_or(usual.max), unit: text.unit.unwrap_or(usual.unit) }
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
    pub const NAMES: [&str; 6] = ["message", "edit", "delete", "reaction", "conversation_closed", "moved"];
}

// === impl IgnoreReason ===

impl IgnoreReason {
    /// All reasons, for the schema.
    pub const ALL: [Self; 1] = [Self::Stale];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stale => "stale",
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
