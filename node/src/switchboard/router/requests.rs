//! The data of client requests on their way to the session's owner. The router decides about them.
use crate::switchboard::adapters::inbound::InboundSession;
use crate::switchboard::effect::BindingsCommand;
use std::sync::Arc;
use turnway_core::id::{ControlId, InboxPosition, LinkId, OwnershipSnapshot, Principal, RequestId, RunId, SessionKey};
use turnway_core::limits;
use turnway_core::protocol::binding::UnbindReason;
use turnway_core::protocol::input::{BodyHash, ControlEntry, Input};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::{RouteVersion, StoreRefusal};
use turnway_core::time::{Mono, Now};

/// The identity of a request: the same message from two links is one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::switchboard) enum RequestKey {
    /// An input, with its body's hash: another body is another request.
    Input(RunId, BodyHash),
    /// A control entry.
    Control(ControlId, Principal),
}

/// A request on its way to the session's owner.
#[derive(Debug)]
pub(in crate::switchboard) struct PendingRequest {
    pub(in crate::switchboard) key: SessionKey,
    pub(in crate::switchboard) principal: Principal,
    pub(in crate::switchboard) payload: RequestPayload,
    /// The version of a binding that leads the input to the session, if one does.
    pub(in crate::switchboard) route: Option<RouteVersion>,
    pub(in crate::switchboard) waiters: Vec<RequestWaiter>,
    pub(in crate::switchboard) owner: OwnershipSnapshot,
    pub(in crate::switchboard) position: Option<(InboxPosition, InboxPosition)>,
    pub(in crate::switchboard) offers: u32,
    /// The owner has confirmed the request before the store's reply arrived.
    pub(in crate::switchboard) accepted_by_owner: bool,
    /// Time since which the outcome is unknown: an earlier attempt may have been stored, so "nothing was accepted"
    /// could be false.
    pub(in crate::switchboard) unknown_since: Option<Mono>,
    /// The session is being opened for the input, which is submitted again afterwards.
    pub(in crate::switchboard) awaits_open: bool,
    /// The number of times that the session was opened for the input.
    pub(in crate::switchboard) opens: u32,
}

impl PendingRequest {
    /// Returns whether the outcome is unknown and every waiting client can safely repeat the request. A client that
    /// cannot would start another turn, so its request keeps waiting.
    pub(in crate::switchboard) fn may_be_repeated(&self) -> bool {
        self.position.is_none() && !self.accepted_by_owner && self.waiters.iter().all(|waiter| waiter.repeatable)
    }

    /// Returns whether the request is the press of a button.
    pub(in crate::switchboard) fn is_decision(&self) -> bool {
        matches!(&self.payload, RequestPayload::Input(input) if input.is_decision())
    }

    /// Returns whether a closed session is opened for the request: for the message of a conversation whose own session
    /// it is, unless somebody closes the session again and again.
    pub(in crate::switchboard) fn opens_session(&self) -> bool {
        let is_own = |waiter: &RequestWaiter| waiter.inbound == Some(InboundSession::Own);
        self.opens < limits::MESSAGE_OPENS_MAX && self.waiters.iter().any(is_own)
    }
}

#[derive(Clone, Debug)]
pub(in crate::switchboard) enum RequestPayload {
    Input(Arc<Input>),
    Control { control: Arc<ControlEntry>, create: bool },
}

#[derive(Debug)]
pub(in crate::switchboard) struct RequestWaiter {
    pub(in crate::switchboard) link: LinkId,
    pub(in crate::switchboard) request_id: Option<RequestId>,
    pub(in crate::switchboard) answered: bool,
    /// The client wants an acknowledgement of the cancel.
    pub(in crate::switchboard) wants_receipt: bool,
    /// The client named the request, so a repetition is recognised.
    pub(in crate::switchboard) repeatable: bool,
    /// Set if an adapter brought the message: the adapter is told so, and not subscribed.
    pub(in crate::switchboard) inbound: Option<InboundSession>,
    /// The input that waits for this request, which opens the input's session; no client waits for it.
    pub(in crate::switchboard) opens_for: Option<Box<RequestKey>>,
    pub(in crate::switchboard) since: Mono,
}

impl RequestWaiter {
    pub(in crate::switchboard) fn new(now: Now, link: LinkId, request_id: Option<RequestId>) -> Self {
        Self {
            link,
            request_id,
            answered: false,
            wants_receipt: false,
            repeatable: true,
            inbound: None,
            opens_for: None,
            since: now.mono,
        }
    }
}

/// A request of a client that is new to the router, or that repeats one.
#[derive(Debug)]
pub(in crate::switchboard) struct NewRequest {
    pub(in crate::switchboard) request_key: RequestKey,
    pub(in crate::switchboard) key: SessionKey,
    pub(in crate::switchboard) principal: Principal,
    pub(in crate::switchboard) waiter: RequestWaiter,
    pub(in crate::switchboard) payload: RequestPayload,
    /// As in [`PendingRequest`].
    pub(in crate::switchboard) route: Option<RouteVersion>,
}

impl NewRequest {
    /// Returns whether the request makes this node or another own the session.
    pub(in crate::switchboard) fn makes_work(&self) -> bool {
        matches!(&self.payload, RequestPayload::Input(_) | RequestPayload::Control { create: true, .. })
    }
}

/// Returns the refusal that an adapter is told for a message, if it differs from that of the request.
pub(in crate::switchboard) fn inbound_refusal(session: InboundSession, refusal: &Refusal) -> Option<Refusal> {
    let is_closed = refusal.code == Code::SessionClosed;
    let is_deleted = refusal.code == Code::NotFound;
    // An input of a conversation waits while a turn is open.
    let is_led_elsewhere = refusal.code == Code::Busy;
    let told = match session {
        InboundSession::Own | InboundSession::Bound | InboundSession::Earlier if is_led_elsewhere => {
            let why = "the binding of the conversation has changed; send the message again";
            Refusal::new(Code::Busy, why).retry_after(limits::INBOX_RETRY_AFTER)
        }
        InboundSession::Own if is_closed => {
            let why = "the session of the conversation could not be opened; send the message again later";
            Refusal::new(Code::SessionOpenFailed, why).retry_after(limits::INBOX_RETRY_AFTER)
        }
        InboundSession::Own if is_deleted => {
            let why = "the session of the conversation was deleted, and its id stays used; bind the conversation to \
                       another session";
            Refusal::new(Code::NotFound, why)
        }
        InboundSession::Bound if is_closed || is_deleted => {
            let why = "the session that the conversation is bound to is closed or deleted, and the binding ends; send \
                       the message again";
            Refusal::new(Code::Busy, why).retry_after(limits::INBOX_RETRY_AFTER)
        }
        InboundSession::Own | InboundSession::Bound | InboundSession::Earlier => return None,
    };
    Some(told)
}

/// Returns the command that ends the bindings to a session which has refused a message because it is closed or deleted: the
/// node that closed it may have stopped before it ended them.
pub(in crate::switchboard) fn end_of_bindings(session: SessionKey, refusal: &Refusal) -> BindingsCommand {
    let is_deleted = refusal.code == Code::NotFound;
    let reason = if is_deleted { UnbindReason::StaleSession } else { UnbindReason::SessionClosed };
    BindingsCommand::EndAll { session, reason }
}

/// Returns the refusal of a client's request that the store refused.
pub(in crate::switchboard) fn refusal_of(refused: StoreRefusal) -> Refusal {
    match refused {
        StoreRefusal::NotFound => Refusal::not_found(),
        StoreRefusal::Conflict => {
            Refusal::new(Code::IdempotencyConflict, "this message id was already used with a different body")
        }
        StoreRefusal::Closed => Refusal::new(Code::SessionClosed, "the session is closed; open it first"),
        StoreRefusal::Busy => {
            Refusal::new(Code::Busy, "a turn is already open in this session").retry_after(limits::INBOX_RETRY_AFTER)
        }
        StoreRefusal::TooMany => Refusal::new(Code::TooManyPending, "too many inputs of this session are waiting")
            .retry_after(limits::INBOX_RETRY_AFTER),
        StoreRefusal::Quota => {
            let why = "the quota of stored bytes is exhausted; delete sessions or ask the operator to raise it";
            Refusal::new(Code::QuotaExceeded, why).retry_after(limits::QUOTA_RETRY_AFTER)
        }
        StoreRefusal::Full => {
            Refusal::new(Code::StoreUnavailable, "the store is full").retry_after(limits::STORE_RETRY_AFTER)
        }
        StoreRefusal::ReadOnly => {
            let why = "the store is read-only for now; try again later";
            Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER)
        }
        StoreRefusal::Forbidden => {
            let why = "the store denies access to this node; ask the operator to check its permissions";
            Refusal::new(Code::StoreUnavailable, why).retry_after(limits::STORE_RETRY_AFTER)
        }
        StoreRefusal::Damaged => {
            let why = "records of this session are damaged; the session is quarantined until an operator repairs \
                       the store";
            Refusal::new(Code::StoreDamaged, why)
        }
    }
}
