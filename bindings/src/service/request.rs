//! The state of a request about bindings between two replies of the store, and the actions that it leads to.
use super::BindingAsker;
use super::several::SeveralLookups;
use std::collections::VecDeque;
use turnway_core::id::{DeliveryId, Nonce, Principal, SessionId};
use turnway_core::limits;
use turnway_core::protocol::binding::{Binding, EndedBinding, ExpiryRules, Generation, PlannedBinding, UnbindReason};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::store::binding::{BindingAction, NewBinding, UnnamedFields};
use turnway_core::time::{Mono, Now};
use turnway_wire::channel::binding::{BindChildCommand, BindCommand, BindingCandidate, BindingReply, ExpiryChange};

/// A request that waits for a reply of the store.
#[derive(Debug)]
pub(super) struct BindingRequest {
    /// `None`: the gateway's own request, which is repeated until it is performed.
    pub(super) asker: Option<BindingAsker>,
    pub(super) step: RequestStep,
    /// The time since which the outcome of the present op is not known.
    pub(super) unknown_since: Option<Mono>,
}

/// The reply that a request waits for, and what it has learnt so far.
#[derive(Debug)]
pub(super) enum RequestStep {
    Bind {
        new: Box<NewBinding>,
        /// The number of aliases that were followed.
        aliases: u32,
    },
    /// The start of a move; the upkeep finishes it.
    Move,
    /// The binding that a task is for.
    FindOne(BindingTask, Generation),
    /// The bindings of a session, which a task is for.
    Find(BindingTask),
    /// The change of one binding; more are left.
    Change {
        task: BindingTask,
        left: VecDeque<Binding>,
        /// The request names this binding: it must be as the request says.
        is_one: bool,
        done: Vec<Binding>,
        ended: Vec<EndedBinding>,
    },
    LookUp {
        /// The conversation whose row is awaited.
        conversation: ConversationRef,
        explain: bool,
        found: Option<Binding>,
        candidates: Vec<BindingCandidate>,
        aliases: u32,
        /// The store was asked to end a binding whose time is over; its clock decides whether it is.
        was_tended: bool,
        /// The row of the parent is awaited.
        is_parent: bool,
    },
    /// The rows of several conversations, and those of their present ids.
    LookUpAll(Box<SeveralLookups>),
    List,
}

/// A change of one or more bindings.
#[derive(Clone, Copy, Debug)]
pub(super) enum BindingTask {
    /// With a last word to the conversation, or without.
    Unbind {
        reason: UnbindReason,
        farewell: bool,
    },
    Touch,
    SetExpiry(ExpiryChange),
}

// === impl BindingRequest ===

impl BindingRequest {
    /// Returns whether some of the changes are made.
    pub(super) fn has_changed(&self) -> bool {
        matches!(&self.step, RequestStep::Change { done, ended, .. } if !done.is_empty() || !ended.is_empty())
    }
}

// === impl RequestStep ===

impl RequestStep {
    /// Waits for the change of the one binding that the request names.
    pub(super) fn change_one(task: BindingTask) -> Self {
        Self::Change { task, left: VecDeque::new(), is_one: true, done: Vec::new(), ended: Vec::new() }
    }

    /// Waits for the row of a conversation.
    pub(super) fn look_up(conversation: ConversationRef, explain: bool) -> Self {
        Self::LookUp {
            conversation,
            explain,
            found: None,
            candidates: Vec::new(),
            aliases: 0,
            was_tended: false,
            is_parent: false,
        }
    }
}

// === impl BindingTask ===

impl BindingTask {
    /// Returns the action on a binding that has these times of expiry, as far as the task needs them.
    pub(super) fn action(self, now: Now, generation: Generation, expiry: Option<&ExpiryRules>) -> BindingAction {
        match self {
            Self::Unbind { reason, farewell } => BindingAction::Unbind { generation, reason, farewell },
            Self::Touch => BindingAction::Touch { generation, at: now.store },
            Self::SetExpiry(change) => {
                let expiry = apply_change(expiry.copied().unwrap_or_default(), change);
                BindingAction::SetExpiry { generation, expiry }
            }
        }
    }

    /// Returns the reply to the request.
    pub(super) fn reply(self, done: Vec<Binding>, ended: Vec<EndedBinding>) -> BindingReply {
        match self {
            Self::Unbind { .. } => BindingReply::Unbound(ended),
            Self::Touch | Self::SetExpiry(_) => BindingReply::Updated(done),
        }
    }
}

/// Returns the binding that a request asks for. A binding without times of its own ends when it is idle for
/// [`limits::BINDING_IDLE_TIMEOUT`].
pub(super) fn new_binding(principal: Principal, bind: BindCommand, nonce: u128) -> NewBinding {
    NewBinding {
        conversation: bind.conversation,
        session: bind.session,
        principal,
        target_kind: bind.target_kind,
        expected: bind.expected,
        expiry: expiry_of_new(bind.expiry),
        unnamed: UnnamedFields {
            idle_timeout: bind.expiry.idle_timeout.is_none(),
            max_age: bind.expiry.max_age.is_none(),
            metadata: bind.metadata.is_empty(),
            mirror: bind.mirror.is_none(),
        },
        mirror: bind.mirror.unwrap_or(false),
        metadata: bind.metadata,
        nonce: bind.nonce.unwrap_or(Nonce(nonce)),
    }
}

/// Returns the times by which a new binding expires.
fn expiry_of_new(change: ExpiryChange) -> ExpiryRules {
    let idle_timeout = u64::try_from(limits::BINDING_IDLE_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
    apply_change(ExpiryRules { idle_timeout: Some(idle_timeout), ..ExpiryRules::default() }, change)
}

/// Returns the binding that a new conversation is to get.
pub fn planned_binding(command: &BindChildCommand) -> PlannedBinding {
    PlannedBinding {
        target_kind: command.target_kind,
        expiry: expiry_of_new(command.expiry),
        mirror: command.mirror,
        metadata: command.metadata.clone(),
    }
}

/// Returns the request that binds a conversation as it was planned. A repetition for the same delivery has no further
/// effect while the binding stands.
pub fn planned_bind(
    delivery_id: &DeliveryId,
    (conversation, session): (ConversationRef, SessionId),
    planned: &PlannedBinding,
) -> BindCommand {
    let PlannedBinding { target_kind, expiry, mirror, metadata } = planned.clone();
    BindCommand {
        conversation,
        session,
        target_kind,
        expected: None,
        expiry: ExpiryChange {
            idle_timeout: Some(expiry.idle_timeout.unwrap_or(0)),
            max_age: Some(expiry.max_age.unwrap_or(0)),
            expires_at: Some(expiry.expires_at.unwrap_or_default()),
        },
        mirror: Some(mirror),
        metadata,
        nonce: Some(delivery_id.nonce()),
    }
}

/// Changes the times that a request names; 0 means never.
fn apply_change(rules: ExpiryRules, change: ExpiryChange) -> ExpiryRules {
    let time = |old: Option<u64>, new: Option<u64>| new.map_or(old, |new| (new > 0).then_some(new));
    ExpiryRules {
        idle_timeout: time(rules.idle_timeout, change.idle_timeout),
        max_age: time(rules.max_age, change.max_age),
        expires_at: change.expires_at.map_or(rules.expires_at, |new| (new.0 > 0).then_some(new)),
    }
}
