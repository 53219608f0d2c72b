//! The router: a pure function from a session's bindings and a requester to the place of a completion. It chooses a place
//! and never makes content; whoever sends something asks it first and sends to its answer only.
use serde::Serialize;
use turnway_core::id::SessionId;
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
    /// The request came from no conversation.
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
            Destination { mode: RouteMode::Bound, reason, binding: Some(binding), place: Some(&binding.conversation) }
        }
        // A binding that cannot be seen now may be the place of the message.
        Err(reason) if query.fail_closed || reason == RouteReason::LookupUnavailable => {
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
    let BindingLookup::Found(bindings) = query.bindings else { return Err(RouteReason::LookupUnavailable) };
    let mut bindings = bindings.iter().filter(|binding| binding.session == *target).peekable();
    bindings.peek().ok_or(RouteReason::NoActiveBinding)?;
    let requester = match query.requester {
        Requester::Missing => return Err(RouteReason::MissingRequester),
        Requester::Invalid => return Err(RouteReason::InvalidRequester),
        Requester::Known(requester) => requester,
    };
    let of_account: Vec<&Binding> =
        bindings.filter(|binding| binding.conversation.is_same_account(requester)).collect();
    if let Some(exact) = of_account.iter().find(|binding| binding.conversation.is_same_place(requester)) {
        return Ok((exact, RouteReason::RequesterMatch));
    }
    match of_account[..] {
        [only] if only.conversation.parent_conversation_id.as_ref() == Some(&requester.conversation_id) => {
            Ok((only, RouteReason::OnlyBindingOnAccount))
        }
        [] | [_] => Err(RouteReason::NoRequesterMatch),
        [..] => Err(RouteReason::Ambiguous),
    }
}

#[cfg(test)]
mod tests;
