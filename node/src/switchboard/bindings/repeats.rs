//! Requests that are refused unless they were accepted before: what a first request found may be gone when its answer is
//! asked for again. Finds out from the control lane of the session. Called by `bindings`.
use crate::switchboard::router::queries;
use crate::switchboard::router::requests::refusal_of;
use std::collections::BTreeMap;
use turnway_core::id::{ControlId, DeliveryId, LinkId, Principal, RequestId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::{Op, OpTicket, Reply, StoreError, StoreRefusal};
use turnway_wire::channel::notification::CommandReply;

/// A request that is refused, unless it repeats an accepted one.
#[derive(Debug)]
pub(in crate::switchboard) struct PossibleRepeat {
    pub(in crate::switchboard) link: LinkId,
    pub(in crate::switchboard) request_id: Option<RequestId>,
    pub(in crate::switchboard) key: SessionKey,
    pub(in crate::switchboard) principal: Principal,
    /// The id of the control entry that both requests have.
    pub(in crate::switchboard) control: ControlId,
    /// The answer if it was accepted before.
    pub(in crate::switchboard) accepted: CommandReply,
    /// The answer otherwise.
    pub(in crate::switchboard) refusal: Refusal,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) enum RepeatAnswer {
    Accepted { link: LinkId, reply: CommandReply },
    Refused(Box<PossibleRepeat>),
}

/// The requests of one node that wait for the store; at most [`limits::POSSIBLE_REPEATS_MAX`].
#[derive(Debug, Default)]
pub(super) struct RepeatLookups {
    waiting: BTreeMap<OpTicket, PossibleRepeat>,
    last_ticket: u64,
}

impl RepeatLookups {
    /// Returns the number of requests that wait; 0 when all is quiet.
    pub(super) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Begins to find out whether a request was accepted before. Returns the op that tells it, or the refused request.
    pub(super) fn begin(&mut self, request: PossibleRepeat) -> Result<Op, Box<PossibleRepeat>> {
        if planted(Planted::RepeatedSendUnplaced) {
            return Err(Box::new(request));
        }
        if self.waiting.len() >= limits::POSSIBLE_REPEATS_MAX {
            let refusal =
                Refusal::new(Code::RateLimited, "too many requests that may be repetitions wait at this node");
            let refusal = refusal.retry_after(limits::STORE_RETRY_AFTER);
            return Err(Box::new(PossibleRepeat { refusal, ..request }));
        }
        self.last_ticket += 1;
        let ticket = OpTicket(self.last_ticket);
        let PossibleRepeat { key, principal, control, .. } = &request;
        let op = Op::FindControl { key: key.clone(), principal: principal.clone(), id: control.clone(), ticket };
        self.waiting.insert(ticket, request);
        Ok(op)
    }

    /// Returns the link that waits for the answer to an op.
    pub(super) fn link_of(&self, ticket: OpTicket) -> Option<LinkId> {
        self.waiting.get(&ticket).map(|request| request.link)
    }

    /// Uses the store's answer; `None`: the request is not known.
    pub(super) fn use_found(&mut self, ticket: OpTicket, result: Result<Reply, StoreError>) -> Option<RepeatAnswer> {
        let request = self.waiting.remove(&ticket)?;
        let refusal = match result {
            Ok(Reply::ControlFound { .. }) => {
                return Some(RepeatAnswer::Accepted { link: request.link, reply: request.accepted });
            }
            Ok(Reply::Refused(StoreRefusal::NotFound)) => return Some(RepeatAnswer::Refused(Box::new(request))),
            Ok(Reply::Refused(refused)) => refusal_of(refused),
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => queries::unavailable(),
        };
        Some(RepeatAnswer::Refused(Box::new(PossibleRepeat { refusal, ..request })))
    }
}

/// Returns the id of the control entry of a message to a conversation: a repeated message is the same entry.
pub(in crate::switchboard) fn send_control(delivery_id: &DeliveryId) -> ControlId {
    named("send", delivery_id)
}

/// Returns the id of the control entry of a request for a conversation: a repeated request is the same entry.
pub(in crate::switchboard) fn creation_control(delivery_id: &DeliveryId) -> ControlId {
    named("create", delivery_id)
}

fn named(kind: &str, delivery_id: &DeliveryId) -> ControlId {
    ControlId::parse(&format!("{kind}:{delivery_id}")).unwrap_or_else(|_| unreachable!("a delivery id is a label"))
}
