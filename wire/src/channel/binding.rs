//! Requests about the bindings of conversations, and their replies. Authority is checked where they are performed.
use std::collections::BTreeMap;
use turnway_core::id::{AccountId, ChannelName, ConversationId, MessageId, Nonce, RequestId, SessionId, TenantId};
use turnway_core::private::Private;
use turnway_core::protocol::binding::{Binding, BindingId, EndedBinding, Generation, TargetKind, UnbindReason};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::protocol::delivery::AccountKey;
use turnway_core::time::Millis;

/// An estimate of the bytes of a binding on the wire, metadata included.
const BINDING_BYTES: usize = 1024;

/// A request about the bindings of conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingCommand {
    /// Bind a conversation to a session.
    Bind(Box<BindCommand>),
    /// End one binding, or all of a session; with `farewell`, the conversation gets the last word of its channel.
    Unbind { target: BindingTarget, reason: UnbindReason, farewell: bool },
    /// Record that a message was routed by a binding.
    Touch { scope: BindingScope, id: BindingId },
    /// Move a binding to the id that the platform has given its conversation. Only the event `moved` of an adapter leads to
    /// it.
    Move { scope: BindingScope, id: BindingId, to: ConversationId },
    /// Change the times by which bindings expire.
    SetExpiry { target: BindingTarget, change: ExpiryChange },
    /// Return the binding of a conversation; with `explain`, also every row that was looked at.
    Resolve { conversation: ConversationRef, explain: bool },
    /// Return the bindings of several conversations as they are at one moment, in this order.
    ResolveAll { conversations: Vec<ConversationRef> },
    /// Return the active bindings of a session.
    List { session: SessionId },
}

/// The account that a binding id belongs to: an id alone names no binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingScope {
    pub channel: ChannelName,
    pub account: AccountId,
}

/// One binding, or all bindings of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingTarget {
    Binding { scope: BindingScope, id: BindingId },
    Session(SessionId),
}

/// A request to bind a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindCommand {
    pub conversation: ConversationRef,
    pub session: SessionId,
    pub target_kind: TargetKind,
    /// The generation to replace, 0: none; absent: the conversation must be free, or bound to the same session.
    pub expected: Option<Generation>,
    pub expiry: ExpiryChange,
    /// As in [`Binding::mirror`]; absent: as before if the session stays the same, else not.
    pub mirror: Option<bool>,
    pub metadata: BTreeMap<String, String>,
    /// The same nonce again is the same bind; absent: a new one. No client chooses it.
    pub nonce: Option<Nonce>,
}

/// A request to have the platform make a conversation within another one, and to bind it to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindChildCommand {
    pub request_id: Option<RequestId>,
    /// The conversation that is to contain the new one.
    pub parent: ConversationRef,
    pub session: SessionId,
    /// The client's name for the new conversation; absent: the request's id, or else a name of its own.
    pub creation_id: Option<MessageId>,
    /// The name that people see.
    pub title: Private<String>,
    pub target_kind: TargetKind,
    pub expiry: ExpiryChange,
    /// As in [`Binding::mirror`].
    pub mirror: bool,
    pub metadata: BTreeMap<String, String>,
}

/// Times by which a binding expires; an absent one is not changed, or has its default in a new binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpiryChange {
    /// Milliseconds without a routed message until the binding ends; 0: never.
    pub idle_timeout: Option<u64>,
    /// Milliseconds until the binding ends, whatever is routed; 0: never.
    pub max_age: Option<u64>,
    /// The time at which the binding ends at the latest; 0: never.
    pub expires_at: Option<Millis>,
}

/// The reply to a request about bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingReply {
    /// The conversation is bound.
    Bound(Box<Binding>),
    /// The bindings have ended.
    Unbound(Vec<EndedBinding>),
    /// The bindings after a touch, or with their new times of expiry.
    Updated(Vec<Binding>),
    /// The active bindings of a session, in the order of their conversations.
    Listed(Vec<Binding>),
    /// The binding of a conversation.
    Resolved(Box<BindingResolution>),
    /// The bindings of several conversations, in the order of the request.
    ResolvedAll(Vec<FoundBinding>),
    /// Nothing was changed: the conversation has this binding, or none.
    NotApplied { current: Option<Box<Binding>> },
}

/// The result of a lookup, and the rows that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingResolution {
    /// The binding that messages of the conversation go by; `None`: nobody has bound it.
    pub binding: Option<Binding>,
    /// The rows that were looked at, in order; only if the request asked for them.
    pub candidates: Option<Vec<BindingCandidate>>,
}

/// A conversation that was looked up with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundBinding {
    /// As the request names it.
    pub conversation: ConversationRef,
    /// `None`: nobody has bound it, or the time of its binding is over.
    pub binding: Option<Binding>,
}

/// A row that a lookup has looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingCandidate {
    pub conversation: ConversationRef,
    pub verdict: CandidateVerdict,
    pub binding: Option<Binding>,
    /// The last binding of the conversation that ended, if that was not long ago.
    pub last_ended: Option<EndedBinding>,
}

/// The reason why a row was chosen or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateVerdict {
    /// The conversation itself is bound: chosen.
    Bound,
    /// The conversation is not bound.
    Unbound,
    /// The conversation has another id, which is the next candidate.
    Moved,
    /// The conversation contains the other one: its binding is not inherited.
    Parent,
}

// === impl BindingCommand ===

impl BindingCommand {
    /// Returns the session that the request names, if any.
    pub fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Bind(bind) => Some(&bind.session),
            Self::Unbind { target: BindingTarget::Session(session), .. }
            | Self::SetExpiry { target: BindingTarget::Session(session), .. }
            | Self::List { session } => Some(session),
            Self::Unbind { target: BindingTarget::Binding { .. }, .. }
            | Self::SetExpiry { target: BindingTarget::Binding { .. }, .. }
            | Self::Touch { .. }
            | Self::Move { .. }
            | Self::Resolve { .. }
            | Self::ResolveAll { .. } => None,
        }
    }
}

impl BindingCommand {
    /// Returns whether the request is about conversations of one account only.
    pub fn is_of_account(&self, account: &AccountKey) -> bool {
        let is_its = |channel: &ChannelName, id: &AccountId| *channel == account.channel && *id == account.account;
        match self {
            Self::Bind(bind) => is_its(&bind.conversation.channel, &bind.conversation.account_id),
            Self::Resolve { conversation, .. } => is_its(&conversation.channel, &conversation.account_id),
            Self::ResolveAll { conversations } => {
                conversations.iter().all(|conversation| is_its(&conversation.channel, &conversation.account_id))
            }
            Self::Touch { scope, .. }
            | Self::Move { scope, .. }
            | Self::Unbind { target: BindingTarget::Binding { scope, .. }, .. }
            | Self::SetExpiry { target: BindingTarget::Binding { scope, .. }, .. } => {
                is_its(&scope.channel, &scope.account)
            }
            Self::Unbind { target: BindingTarget::Session(_), .. }
            | Self::SetExpiry { target: BindingTarget::Session(_), .. }
            | Self::List { .. } => false,
        }
    }
}

// === impl BindingReply ===

impl BindingReply {
    /// Returns an estimate of the reply's size on the wire in bytes.
    pub fn weight(&self) -> usize {
        let count = match self {
            Self::Bound(_) | Self::NotApplied { .. } => 1,
            Self::Unbound(ended) => ended.len(),
            Self::Updated(bindings) | Self::Listed(bindings) => bindings.len(),
            Self::ResolvedAll(found) => found.len(),
            // A candidate has a binding and one that has ended.
            Self::Resolved(found) => 1 + 2 * found.candidates.as_ref().map_or(0, Vec::len),
        };
        512 + BINDING_BYTES * count
    }
}

// === impl BindingScope ===

impl BindingScope {
    /// Returns the key of a binding's conversation.
    pub fn key_of(&self, tenant: &TenantId, id: &BindingId) -> ConversationKey {
        ConversationKey {
            tenant: tenant.clone(),
            channel: self.channel.clone(),
            account: self.account.clone(),
            conversation: id.conversation.clone(),
        }
    }
}

// === impl CandidateVerdict ===

impl CandidateVerdict {
    /// All verdicts, for the schema.
    pub const ALL: [Self; 4] = [Self::Bound, Self::Unbound, Self::Moved, Self::Parent];

    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Unbound => "unbound",
            Self::Moved => "moved",
            Self::Parent => "parent",
        }
    }
}
