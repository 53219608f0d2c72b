//! Bindings of conversations to sessions: the record that stores keep and APIs show, and the rules of its expiry. Decides
//! nothing about places of answers.
use crate::id::{BadName, ConversationId, Nonce, SessionId};
use crate::limits;
use crate::protocol::conversation::ConversationRef;
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The version of a conversation's binding: changes at every bind and never repeats. A hybrid of a counter and the
/// store's clock in milliseconds; below 2^53.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// The id of a binding within one account: its generation and the conversation it was made for, so that a binding is
/// found by its id without an index. Written `GENERATION.CONVERSATION`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BindingId {
    pub generation: Generation,
    pub conversation: ConversationId,
}

/// The role of the session that a conversation is bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// A session that people talk to.
    #[default]
    Session,
    /// A session that an agent has spawned.
    Subagent,
    /// A session of an agent that speaks the Agent Client Protocol.
    Acp,
}

/// The state of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindingStatus {
    /// Messages and answers go by it.
    Active,
    /// It has ended, which its session's log does not say yet.
    Ending,
    /// It has ended.
    Ended,
}

/// The reason why a binding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnbindReason {
    /// Somebody asked for it.
    Manual,
    /// No message was routed for the idle timeout.
    IdleExpired,
    /// It reached its maximum age, or the time at which it was to end.
    MaxAgeExpired,
    /// The platform archived the conversation: nothing may be sent there.
    ConversationArchived,
    /// The platform deleted the conversation: nothing may be sent there.
    ConversationDeleted,
    SessionClosed,
    /// The conversation was bound to another session.
    Rebound,
    /// The session does not exist any more.
    StaleSession,
}

/// The times by which a binding expires. All of them are optional: a binding without any lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiryRules {
    /// Milliseconds without a routed message after which the binding ends.
    #[serde(default, rename = "idle_timeout_ms", skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<u64>,
    /// Milliseconds from the bind after which the binding ends.
    #[serde(default, rename = "max_age_ms", skip_serializing_if = "Option::is_none")]
    pub max_age: Option<u64>,
    /// The time at which the binding ends at the latest; no message moves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
}

/// A binding of a conversation to a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    pub generation: Generation,
    /// The conversation, with its parent as of the bind.
    pub conversation: ConversationRef,
    pub session: SessionId,
    #[serde(default)]
    pub target_kind: TargetKind,
    pub bound_at: Millis,
    /// The time of the last routed message, which is recorded at most every [`Binding::touch_interval`].
    pub last_activity_at: Millis,
    #[serde(default)]
    pub expiry: ExpiryRules,
    /// The conversation also gets the answers of turns that plain clients began in the session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// Texts of whoever bound it, such as the name of a persona. No secrets: everybody who sees the binding sees them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Chosen by the caller of the bind, which recognises its own repeated bind by it.
    pub nonce: Nonce,
}

/// A binding that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedBinding {
    pub binding: Binding,
    pub reason: UnbindReason,
    pub ended_at: Millis,
}

/// The binding that a conversation gets as soon as the platform has made it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedBinding {
    pub target_kind: TargetKind,
    #[serde(flatten)]
    pub expiry: ExpiryRules,
    /// As in [`Binding::mirror`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// As in [`Binding::metadata`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// A new binding, as the log of its session records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingChange {
    pub binding_id: BindingId,
    pub conversation: ConversationRef,
    pub target_kind: TargetKind,
    /// The time of the bind, by the store's clock.
    pub bound_at: Millis,
    /// As in [`Binding::mirror`]; absent: no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<bool>,
}

/// The end of a binding, as the log of its session records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingEnd {
    pub binding_id: BindingId,
    pub conversation: ConversationRef,
    pub reason: UnbindReason,
    /// The time of the end, by the store's clock.
    pub ended_at: Millis,
}

impl PlannedBinding {
    /// Returns the bytes of its texts.
    pub fn bytes(&self) -> usize {
        self.metadata.iter().map(|(name, text)| name.len() + text.len()).sum()
    }
}

impl Binding {
    /// Returns the binding's id.
    pub fn id(&self) -> BindingId {
        BindingId { generation: self.generation, conversation: self.conversation.conversation_id.clone() }
    }

    /// Returns the time at which the binding expires, and the reason; `None` if it lasts. The earliest time counts.
    pub fn expiry(&self) -> Option<(Millis, UnbindReason)> {
        let after = |from: Millis, wait: Option<u64>| wait.map(|wait| Millis(from.0.saturating_add(wait)));
        let ExpiryRules { idle_timeout, max_age, expires_at } = self.expiry;
        // A touch that was not stored, because another one had just been, must not make the binding end early.
        let idle = after(self.last_activity_at.after(self.touch_interval()), idle_timeout);
        let idle = idle.map(|at| (at, UnbindReason::IdleExpired));
        let ages = [after(self.bound_at, max_age), expires_at];
        let age = ages.into_iter().flatten().min().map(|at| (at, UnbindReason::MaxAgeExpired));
        // The age wins a tie, because no message could have moved it.
        match (idle, age) {
            (Some(idle), Some(age)) => Some(if idle.0 < age.0 { idle } else { age }),
            (idle, age) => age.or(idle),
        }
    }

    /// Returns whether the binding routes messages: one whose time is over does not, although nobody has ended it yet.
    pub fn stands(&self, now: Millis) -> bool {
        self.expiry().is_none_or(|(at, _)| at > now)
    }

    /// Returns the shortest time between two stored touches: a tenth of the idle timeout, but at most a minute. A binding
    /// ends up to so much later than the idle timeout says.
    pub fn touch_interval(&self) -> Duration {
        let idle = self.expiry.idle_timeout.map_or(Duration::MAX, Duration::from_millis);
        (idle / 10).min(limits::BINDING_TOUCH_INTERVAL)
    }
}

// === impl TargetKind ===

impl TargetKind {
    /// All kinds, for parsers and the schema.
    pub const ALL: [Self; 3] = [Self::Session, Self::Subagent, Self::Acp];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Subagent => "subagent",
            Self::Acp => "acp",
        }
    }
}

// === impl UnbindReason ===

impl UnbindReason {
    /// The reasons that a request may give; the others are the gateway's own.
    pub const OF_REQUESTS: [Self; 3] = [Self::Manual, Self::ConversationArchived, Self::ConversationDeleted];
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Manual,
        Self::IdleExpired,
        Self::MaxAgeExpired,
        Self::ConversationArchived,
        Self::ConversationDeleted,
        Self::SessionClosed,
        Self::Rebound,
        Self::StaleSession,
    ];

    /// Returns whether the conversation gets a last word. One that was archived or deleted takes none, one that was bound
    /// anew goes on, and a session that is closed or gone has nothing to say.
    pub const fn permits_farewell(self) -> bool {
        match self {
            Self::Manual | Self::IdleExpired | Self::MaxAgeExpired => true,
            Self::ConversationArchived
            | Self::ConversationDeleted
            | Self::SessionClosed
            | Self::Rebound
            | Self::StaleSession => false,
        }
    }

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::IdleExpired => "idle_expired",
            Self::MaxAgeExpired => "max_age_expired",
            Self::ConversationArchived => "conversation_archived",
            Self::ConversationDeleted => "conversation_deleted",
            Self::SessionClosed => "session_closed",
            Self::Rebound => "rebound",
            Self::StaleSession => "stale_session",
        }
    }
}

// === impl BindingId ===

impl BindingId {
    /// Parses an id as it is printed.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        const NOT_AN_ID: BadName = BadName { kind: "binding_id" };
        let (generation, conversation) = text.split_once('.').ok_or(NOT_AN_ID)?;
        // Only one text is the id: no sign, no zeros in front.
        let number: u64 = generation.parse().map_err(|_| NOT_AN_ID)?;
        let conversation = ConversationId::parse(conversation).map_err(|_| NOT_AN_ID)?;
        let id = Self { generation: Generation(number), conversation };
        if id.to_string() == text { Ok(id) } else { Err(NOT_AN_ID) }
    }
}

impl fmt::Display for BindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation.0, self.conversation)
    }
}

impl TryFrom<String> for BindingId {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        Self::parse(&text)
    }
}

impl From<BindingId> for String {
    fn from(id: BindingId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests;
