//! The router: a pure function from a session's bindings and a requester to the place of a completion. It chooses a place
//! and never makes content; whoever sends something asks it first and sends to its answer only.
use serde::Serialize;
use turnway_core::id::SessionId;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::binding::Binding;
use turnway_core::protocol::conversation::{ConversationRef, UncheckedConversationRef};
use turnway_core::protocol::route::{RouteMode, RouteReason};

/// A message that the gateway sends by itself. The reply to an input is none: it goes to the conversation of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutedEvent {
    /// The end of a task that a session was spawned for.
    TaskCompletion,
    /// A message that an agent or an operator sends without being asked.
    ProactiveSend,
}

/// The conversation of the request that led to the event, as the fact of the request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The request came from no conversation; a proactive send names none.
    Missing,
    /// The fact names something that is no conversation.
    Invalid,
    Known(ConversationRef),
}

/// The active bindings of the target session, if the store could tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingLookup<'a> {
    Found(&'a [Binding]),
    /// The store does not answer. The session may be bound.
    Unavailable,
}

/// A question to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery<'a> {
    pub event: RoutedEvent,
    pub target: Option<&'a SessionId>,
    pub bindings: BindingLookup<'a>,
    pub requester: &'a Requester,
    /// Refuse everything that is not bound.
    pub fail_closed: bool,
}

/// The router's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination<'a> {
    pub mode: RouteMode,
    pub reason: RouteReason,
    /// The binding, if the mode is [`RouteMode::Bound`]. Its generation is frozen with the delivery.
    pub binding: Option<&'a Binding>,
    /// The only conversation that the message may be sent to; `None`: to none.
    pub place: Option<&'a ConversationRef>,
}

impl Requester {
    /// Reads the requester that a fact names. A reference whose texts are all blank names nobody validly.
    pub fn from_fact(raw: Option<&UncheckedConversationRef>) -> Self {
        match raw.map(ConversationRef::parse) {
            None => Self::Missing,
            Some(Ok(conversation)) => Self::Known(conversation),
            Some(Err(_)) => Self::Invalid,
        }
    }
}

/// Returns the place of a message: the conversation of one binding, the requester's conversation if `fail_closed` is off,
/// or none. A binding of another account or channel than the requester's is never chosen.
pub fn resolve_destination<'a>(query: &RouteQuery<'a>) -> Destination<'a> {
    match find_binding(query) {
        Ok((binding, reason)) => {
            let place = match query.requester {
                Requester::Known(parent) if planted(Planted::RouterPicksParent) => parent,
                Requester::Known(_) | Requester::Missing | Requester::Invalid => &binding.conversation,
            };
            Destination { mode: RouteMode::Bound, reason, binding: Some(binding), place: Some(place) }
        }
        // A binding that cannot be seen now may be the place of the message.
        Err(reason)
            if query.fail_closed && !planted(Planted::RouterFallsBackClosed)
                || reason == RouteReason::LookupUnavailable =>
        {
            Destination { mode: RouteMode::Refused, reason, binding: None, place: None }
        }
        Err(reason) => {
            let place = match query.requester {
                Requester::Known(conversation) => Some(conversation),
                Requester::Missing | Requester::Invalid => None,
            };
            Destination { mode: RouteMode::Fallback, reason, binding: None, place }
        }
    }
}

fn find_binding<'a>(query: &RouteQuery<'a>) -> Result<(&'a Binding, RouteReason), RouteReason> {
    let target = query.target.ok_or(RouteReason::MissingTargetSession)?;
    let bindings = match query.bindings {
        BindingLookup::Found(bindings) => bindings,
        BindingLookup::Unavailable if planted(Planted::RouterUnavailableAsNone) => &[],
        BindingLookup::Unavailable => return Err(RouteReason::LookupUnavailable),
    };
    let is_of_target = |binding: &Binding| binding.session == *target || planted(Planted::RouterIgnoresSession);
    let mut bindings = bindings.iter().filter(|binding| is_of_target(binding)).peekable();
    let first = *bindings.peek().ok_or(RouteReason::NoActiveBinding)?;
    let requester = match query.requester {
        Requester::Missing if planted(Planted::RouterRequesterUnneeded) && bindings.clone().count() == 1 => {
            return Ok((first, RouteReason::OnlyBindingOnAccount));
        }
        // The sender knows the session, and means its only conversation. A completion comes from somewhere.
        Requester::Missing if query.event == RoutedEvent::ProactiveSend => {
            return match bindings.count() {
                1 => Ok((first, RouteReason::OnlyBindingOnAccount)),
                _ => Err(RouteReason::Ambiguous),
            };
        }
        Requester::Missing => return Err(RouteReason::MissingRequester),
        Requester::Invalid => return Err(RouteReason::InvalidRequester),
        Requester::Known(requester) => requester,
    };
    let of_account: Vec<&Binding> =
        bindings.filter(|binding| is_of_account(&binding.conversation, requester)).collect();
    if let Some(exact) = of_account.iter().find(|binding| binding.conversation.is_same_place(requester)) {
        return Ok((exact, RouteReason::RequesterMatch));
    }
    match of_account[..] {
        [only]
            if only.conversation.parent_conversation_id.as_ref() == Some(&requester.conversation_id)
                || planted(Planted::RouterOnlyBindingAnywhere) =>
        {
            Ok((only, RouteReason::OnlyBindingOnAccount))
        }
        [] | [_] => Err(RouteReason::NoRequesterMatch),
        [sibling, ..] if planted(Planted::RouterPicksSibling) => Ok((sibling, RouteReason::OnlyBindingOnAccount)),
        [..] => Err(RouteReason::Ambiguous),
    }
}

/// Returns whether a bound conversation belongs to the account of the requester's conversation.
fn is_of_account(bound: &ConversationRef, requester: &ConversationRef) -> bool {
    bound.is_same_account(requester)
        || planted(Planted::RouterIgnoresAccount) && bound.channel == requester.channel
        || planted(Planted::RouterIgnoresChannel) && bound.account_id == requester.account_id
}

#[cfg(test)]
mod tests;
