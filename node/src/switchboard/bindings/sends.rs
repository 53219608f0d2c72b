//! Messages that links send to conversations of sessions without a turn: waits for the bindings of the session, and asks
//! the router for the place. Called by `bindings`; the router of requests then hands the message to the session's owner.
use super::repeats::{PossibleRepeat, send_control};
use std::collections::BTreeMap;
use turnway_bindings::router::{BindingLookup, Requester, RouteQuery, RoutedEvent, resolve_destination};
use turnway_core::id::{DeliveryId, EventId, LinkId, MessageId, Principal, RequestId, SessionId, SessionKey};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::binding::Binding;
use turnway_core::protocol::delivery::MessageSend;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::protocol::route::{DeliveryRoute, RouteMode, RouteReason};
use turnway_core::time::Now;
use turnway_wire::channel::binding::BindingReply;
use turnway_wire::channel::command::SendCommand;
use turnway_wire::channel::notification::{AcceptedSend, CommandReply};

/// The messages of one node whose bindings are being read. The service bounds them for each link, and answers each.
#[derive(Debug, Default)]
pub(super) struct PendingSends {
    sends: BTreeMap<u64, PendingSend>,
    last_number: u64,
}

#[derive(Debug)]
struct PendingSend {
    link: LinkId,
    principal: Principal,
    message_id: MessageId,
    send: SendCommand,
}

/// A message whose place is chosen.
#[derive(Debug)]
pub(in crate::switchboard) struct RoutedSend {
    pub(in crate::switchboard) link: LinkId,
    pub(in crate::switchboard) request_id: Option<RequestId>,
    pub(in crate::switchboard) principal: Principal,
    pub(in crate::switchboard) key: SessionKey,
    pub(in crate::switchboard) send: MessageSend,
}

/// A message that is not sent.
#[derive(Debug)]
pub(super) struct RefusedSend {
    pub(super) link: LinkId,
    pub(super) request_id: Option<RequestId>,
    pub(super) session: SessionId,
    pub(super) refusal: Refusal,
}

/// The result of choosing a message's place.
#[derive(Debug)]
pub(super) enum SendOutcome {
    Routed(Box<RoutedSend>),
    /// There is no place, such as after the end of the binding: the message is refused, unless it was accepted before.
    Unplaced(Box<PossibleRepeat>),
    Refused(RefusedSend),
}

/// The outcome of a message whose bindings were read.
#[derive(Debug)]
pub(super) struct SendRouting {
    pub(super) outcome: SendOutcome,
    /// The router's answer, if it was asked.
    pub(super) answer: Option<(RouteMode, RouteReason)>,
}

impl PendingSends {
    /// Returns the number of messages that wait; 0 when all is quiet.
    pub(super) fn count(&self) -> usize {
        self.sends.len()
    }

    /// Adds a message; returns its number. A message without a name is named by its request, or else by `chance`.
    pub(super) fn add(
        &mut self,
        (link, principal): (LinkId, Principal),
        send: SendCommand,
        (now, chance): (Now, u128),
    ) -> u64 {
        self.last_number += 1;
        let given = given_name(send.message_id.as_ref(), send.request_id.as_ref());
        let message_id = given.unwrap_or_else(|| random_name(now, chance));
        self.sends.insert(self.last_number, PendingSend { link, principal, message_id, send });
        self.last_number
    }

    /// Chooses the place of a message by the bindings of its session; `None`: the message is not known.
    pub(super) fn route(
        &mut self,
        now: Now,
        directory: &AgentDirectory,
        number: u64,
        reply: Result<BindingReply, Refusal>,
    ) -> Option<SendRouting> {
        let PendingSend { link, principal, message_id, send } = self.sends.remove(&number)?;
        let bindings = match reply {
            Ok(BindingReply::Listed(bindings)) => bindings,
            Ok(_) => Vec::new(),
            Err(refusal) => {
                let answer = (refusal.code == Code::StoreUnavailable)
                    .then_some((RouteMode::Refused, RouteReason::LookupUnavailable));
                let SendCommand { request_id, session, .. } = send;
                let refused = RefusedSend { link, request_id, session, refusal };
                return Some(SendRouting { outcome: SendOutcome::Refused(refused), answer });
            }
        };
        let bindings: Vec<Binding> = bindings.into_iter().filter(|binding| binding.stands(now.store)).collect();
        let requester = send.conversation.clone().map_or(Requester::Missing, Requester::Known);
        // A user who names a conversation has no right to it: only operators may leave the bindings of the session.
        let falls_back = send.conversation.as_ref().is_some_and(|place| {
            let may_leave = principal.operator || planted(Planted::SendLeavesBindings);
            may_leave && directory.channels.settings(&place.channel).falls_back
        });
        let destination = resolve_destination(&RouteQuery {
            event: RoutedEvent::ProactiveSend,
            target: Some(&send.session),
            bindings: BindingLookup::Found(&bindings),
            requester: &requester,
            fail_closed: !falls_back,
        });
        let answer = Some((destination.mode, destination.reason));
        let key = SessionKey { tenant: principal.tenant.clone(), session: send.session.clone() };
        let delivery_id = DeliveryId::of_message(&key, &principal.user, &message_id);
        let Some(place) = destination.place.cloned() else {
            let reason = destination.reason.as_str();
            let why = format!("{reason}: no conversation of the session was chosen, and nothing is sent");
            let refusal = Refusal::new(Code::NoDestination, why);
            let request_id = send.request_id;
            let control = send_control(&delivery_id);
            let accepted =
                AcceptedSend { request_id: request_id.clone(), session: send.session, message_id, delivery_id };
            let accepted = CommandReply::MessageAccepted(Box::new(accepted));
            let repeat = PossibleRepeat { link, request_id, key, principal, control, accepted, refusal };
            return Some(SendRouting { outcome: SendOutcome::Unplaced(Box::new(repeat)), answer });
        };
        let route = DeliveryRoute {
            mode: destination.mode,
            reason: destination.reason,
            generation: destination.binding.map(|binding| binding.generation),
        };
        let message = MessageSend { delivery_id, message_id, conversation: place, route, text: send.text };
        let routed = RoutedSend { link, request_id: send.request_id, principal, key, send: message };
        Some(SendRouting { outcome: SendOutcome::Routed(Box::new(routed)), answer })
    }
}

/// Returns the client's name for what it requests: the name itself, or else the request's id.
pub(in crate::switchboard) fn given_name(
    name: Option<&MessageId>,
    request_id: Option<&RequestId>,
) -> Option<MessageId> {
    name.cloned().or_else(|| MessageId::parse(request_id?.as_str()).ok())
}

/// Returns a name for what its client has not named.
pub(in crate::switchboard) fn random_name(now: Now, chance: u128) -> MessageId {
    let id = EventId::new(now.store, chance).to_string();
    MessageId::parse(&id).unwrap_or_else(|_| unreachable!("a UUID is a label"))
}
