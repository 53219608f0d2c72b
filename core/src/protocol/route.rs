//! Routes of completions: the answer of the router, as it is recorded with a delivery. The router is in the crate
//! `bindings`; the session machine asks it by [`RouteQuestion`].
use crate::id::{DeliveryId, RunId};
use crate::protocol::binding::{Generation, PlannedBinding};
use crate::protocol::conversation::ConversationRef;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The way in which a place was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteMode {
    /// To the conversation of a binding, and to no other.
    Bound,
    /// To the conversation of the requester, because no binding applies.
    Fallback,
    Refused,
}

/// The reason of the router's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteReason {
    /// The requester's conversation is bound to the session.
    RequesterMatch,
    /// The requester's conversation contains the only one of the account that is bound to the session.
    OnlyBindingOnAccount,
    MissingTargetSession,
    NoActiveBinding,
    MissingRequester,
    InvalidRequester,
    /// Several conversations of the account are bound to the session, and the requester's is none of them.
    Ambiguous,
    NoRequesterMatch,
    LookupUnavailable,
}

/// A route as the fact of a delivery records it. The delivery is sent only while this binding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRoute {
    pub mode: RouteMode,
    pub reason: RouteReason,
    /// The version of the binding that was chosen; `None` if the mode is not [`RouteMode::Bound`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
}

/// A question of a session about its bindings, or a request for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteQuestion {
    /// The place of the completion of a task.
    Completion { run_id: RunId, requester: ConversationRef, fail_closed: bool },
    /// The present binding of the place of a routed delivery.
    Standing { delivery_id: DeliveryId, conversation: ConversationRef, generation: Generation },
    /// Bind a conversation that the platform has made. Repeated by each owner; the same delivery is bound once.
    Bind { delivery_id: DeliveryId, conversation: ConversationRef, binding: Arc<PlannedBinding> },
}

/// The answer to a [`RouteQuestion`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAnswer {
    Completion {
        run_id: RunId,
        route: DeliveryRoute,
        /// The only conversation that the completion may be sent to; `None`: to none.
        place: Option<ConversationRef>,
    },
    Standing {
        delivery_id: DeliveryId,
        /// The binding is still that of the route; `None`: the store does not answer.
        stands: Option<bool>,
    },
    Bind {
        delivery_id: DeliveryId,
        /// The conversation is bound to the session; `None`: the store does not answer.
        is_bound: Option<bool>,
    },
}

impl RouteMode {
    /// All modes, for metrics and the schema.
    pub const ALL: [Self; 3] = [Self::Bound, Self::Fallback, Self::Refused];

    /// Returns the mode's name in facts, metrics and results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Fallback => "fallback",
            Self::Refused => "refused",
        }
    }
}

impl RouteReason {
    /// All reasons, for metrics and tests.
    pub const ALL: [Self; 9] = [
        Self::RequesterMatch,
        Self::OnlyBindingOnAccount,
        Self::MissingTargetSession,
        Self::NoActiveBinding,
        Self::MissingRequester,
        Self::InvalidRequester,
        Self::Ambiguous,
        Self::NoRequesterMatch,
        Self::LookupUnavailable,
    ];

    /// Returns the reason's name in facts, metrics and results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RequesterMatch => "requester_match",
            Self::OnlyBindingOnAccount => "only_binding_on_account",
            Self::MissingTargetSession => "missing_target_session",
            Self::NoActiveBinding => "no_active_binding",
            Self::MissingRequester => "missing_requester",
            Self::InvalidRequester => "invalid_requester",
            Self::Ambiguous => "ambiguous",
            Self::NoRequesterMatch => "no_requester_match",
            Self::LookupUnavailable => "lookup_unavailable",
        }
    }
}
