//! Simulated agents that can resume: their events have ids, and they repeat the events after a given one.
use turnway_core::id::AgentEventId;
use turnway_core::limits::CHECKPOINT_BYTES;
use turnway_core::private::Private;
use turnway_core::protocol::agent::{AgentEvent, TextKind};

/// Adds an id to each event; splits large texts into pieces, as the gateway reports them.
pub(crate) fn named(says: Vec<AgentEvent>) -> Vec<AgentEvent> {
    let mut named = Vec::new();
    for (n, event) in says.into_iter().enumerate() {
        let id = AgentEventId::parse(&format!("e{n}")).ok();
        match event {
            AgentEvent::Delta { kind, text: Private(mut text), .. } => {
                while text.len() > CHECKPOINT_BYTES {
                    let rest = text.split_off(text.floor_char_boundary(CHECKPOINT_BYTES));
                    named.push(AgentEvent::Delta { kind, text: Private(text), id: None });
                    text = rest;
                }
                named.push(AgentEvent::Delta { kind, text: Private(text), id });
            }
            AgentEvent::State { state, detail, .. } => named.push(AgentEvent::State { state, detail, id }),
            AgentEvent::Handover { request, .. } => named.push(AgentEvent::Handover { request, id }),
            AgentEvent::Action { request, .. } => named.push(AgentEvent::Action { request, id }),
            AgentEvent::Acked
            | AgentEvent::Done { .. }
            | AgentEvent::Steered { .. }
            | AgentEvent::Subscribed(_)
            | AgentEvent::Alive
            | AgentEvent::CancelAcked
            | AgentEvent::Failed(_) => {
                named.push(event);
            }
        }
    }
    named
}

fn name(event: &AgentEvent) -> Option<&AgentEventId> {
    match event {
        AgentEvent::Delta { id, .. }
        | AgentEvent::State { id, .. }
        | AgentEvent::Handover { id, .. }
        | AgentEvent::Action { id, .. } => id.as_ref(),
        AgentEvent::Acked
        | AgentEvent::Done { .. }
        | AgentEvent::Steered { .. }
        | AgentEvent::Subscribed(_)
        | AgentEvent::Alive
        | AgentEvent::CancelAcked
        | AgentEvent::Failed(_) => None,
    }
}

/// Returns the events after a given one, or all; acknowledges again if the agent acknowledged before.
pub(crate) fn rest(mut says: Vec<AgentEvent>, after: Option<&AgentEventId>) -> Vec<AgentEvent> {
    if let Some(after) = after {
        let known = says.iter().position(|event| name(event) == Some(after));
        let known = known.unwrap_or_else(|| panic!("G6: an agent is asked for what follows one of its events"));
        let acked = says.contains(&AgentEvent::Acked);
        says.drain(..=known);
        if acked {
            says.insert(0, AgentEvent::Acked);
        }
    }
    says
}

/// Joins the first two pieces of text, because the split of a text is not guaranteed.
pub(crate) fn joined(mut says: Vec<AgentEvent>) -> Vec<AgentEvent> {
    let pair = says.windows(2).position(|pair| pair.iter().all(is_text));
    if let Some(at) = pair {
        let first = says.remove(at);
        if let (AgentEvent::Delta { text: Private(first), .. }, Some(AgentEvent::Delta { text, .. })) =
            (first, says.get_mut(at))
        {
            text.0.insert_str(0, &first);
        }
    }
    says
}

fn is_text(event: &AgentEvent) -> bool {
    matches!(event, AgentEvent::Delta { kind: TextKind::Text, .. })
}
