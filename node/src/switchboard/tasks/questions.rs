//! Questions of sessions about their bindings: the router answers for completions, and the conversation's row tells
//! whether the binding of a delivery still stands. A conversation that was made for a session is bound in the same way.
use turnway_bindings::router::{BindingLookup, Requester, RouteQuery, RoutedEvent, resolve_destination};
use turnway_bindings::service::planned_bind;
use turnway_core::id::SessionKey;
use turnway_core::protocol::route::{DeliveryRoute, RouteAnswer, RouteQuestion};
use turnway_core::time::Now;
use turnway_wire::channel::binding::{BindingCommand, BindingReply};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// A question whose bindings are being read.
#[derive(Debug)]
pub(super) struct PendingQuestion {
    /// The session that asks.
    pub(super) key: SessionKey,
    pub(super) question: RouteQuestion,
}

/// The reply to the request about bindings.
#[derive(Debug)]
pub(super) enum LookupReply {
    Found(BindingReply),
    /// The store does not answer, or refuses for good.
    Refused {
        is_final: bool,
    },
}

impl LookupReply {
    /// Returns the reply that a notification brings; `None` if it is no reply.
    pub(super) fn of(notification: Notification) -> Option<Self> {
        match notification {
            Notification::Reply(CommandReply::Binding { reply, .. }) => Some(Self::Found(reply)),
            Notification::Reply(CommandReply::Refused { refusal, .. }) => {
                Some(Self::Refused { is_final: !refusal.code.retryable() })
            }
            Notification::Reply(_)
            | Notification::Fact { .. }
            | Notification::Chunk { .. }
            | Notification::ProcessOutput { .. }
            | Notification::Deliver(_)
            | Notification::Signal(_)
            | Notification::AdapterState(_)
            | Notification::LimitReached(_)
            | Notification::GoAway { .. } => None,
        }
    }
}

impl PendingQuestion {
    /// Returns the request about bindings that the answer needs.
    pub(super) fn command(&self) -> BindingCommand {
        match &self.question {
            RouteQuestion::Completion { .. } => BindingCommand::List { session: self.key.session.clone() },
            RouteQuestion::Standing { conversation, .. } => {
                BindingCommand::Resolve { conversation: conversation.clone(), explain: false }
            }
            RouteQuestion::Bind { delivery_id, conversation, binding } => {
                let place = (conversation.clone(), self.key.session.clone());
                BindingCommand::Bind(Box::new(planned_bind(delivery_id, place, binding)))
            }
        }
    }

    /// Answers the question by the reply to the request.
    pub(super) fn answer(self, now: Now, reply: LookupReply) -> (SessionKey, RouteAnswer) {
        let Self { key, question } = self;
        let answer = match question {
            RouteQuestion::Completion { run_id, requester, fail_closed } => {
                let bindings = match reply {
                    LookupReply::Found(BindingReply::Listed(bindings)) => Some(bindings),
                    LookupReply::Found(_) | LookupReply::Refused { .. } => None,
                };
                let bindings = bindings.map(|bindings| {
                    bindings.into_iter().filter(|binding| binding.stands(now.store)).collect::<Vec<_>>()
                });
                let lookup = bindings.as_deref().map_or(BindingLookup::Unavailable, BindingLookup::Found);
                let requester = Requester::Known(requester);
                let destination = resolve_destination(&RouteQuery {
                    event: RoutedEvent::TaskCompletion,
                    target: Some(&key.session),
                    bindings: lookup,
                    requester: &requester,
                    fail_closed,
                });
                let generation = destination.binding.map(|binding| binding.generation);
                let route = DeliveryRoute { mode: destination.mode, reason: destination.reason, generation };
                RouteAnswer::Completion { run_id, route, place: destination.place.cloned() }
            }
            RouteQuestion::Standing { delivery_id, generation, .. } => {
                let stands = match reply {
                    LookupReply::Found(BindingReply::Resolved(found)) => {
                        Some(found.binding.is_some_and(|it| it.generation == generation && it.session == key.session))
                    }
                    LookupReply::Found(_) | LookupReply::Refused { .. } => None,
                };
                RouteAnswer::Standing { delivery_id, stands }
            }
            RouteQuestion::Bind { delivery_id, .. } => {
                let is_bound = match reply {
                    LookupReply::Found(BindingReply::Bound(_)) => Some(true),
                    LookupReply::Found(_) | LookupReply::Refused { is_final: true } => Some(false),
                    LookupReply::Refused { is_final: false } => None,
                };
                RouteAnswer::Bind { delivery_id, is_bound }
            }
        };
        (key, answer)
    }
}
