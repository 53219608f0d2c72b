//! What an agent is told around an input: the same over HTTP and over a connection of its own (protocol.md §1.6, §2).
use serde::Serialize;
use turnway_core::id::UserId;
use turnway_core::protocol::action::ActionsContext;
use turnway_core::protocol::agent::Invoke;
use turnway_core::protocol::handover::HandoverContext;
use turnway_core::protocol::steer::Steer;

/// `context` of an `invoke` or a `steer`.
#[derive(Debug, Serialize)]
pub struct Context<'a> {
    user_id: &'a UserId,
    #[serde(skip_serializing_if = "Option::is_none")]
    handover: Option<&'a HandoverContext>,
    /// `open_actions`, `ended_actions` (EV-C6).
    #[serde(flatten)]
    actions: Option<&'a ActionsContext>,
    /// What plugins of the node tell it of itself (TP-N11).
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<&'a str>,
}

impl<'a> Context<'a> {
    /// Of an attempt.
    pub fn of(invoke: &'a Invoke) -> Self {
        let system_prompt = invoke.system_prompt.as_ref().map(|text| text.reveal());
        let (handover, actions) = (invoke.handover.as_deref(), invoke.actions.as_deref());
        Self { user_id: &invoke.user, handover, actions, system_prompt }
    }

    /// Of what is said on the way: the rest its agent knows.
    pub fn on_the_way(steer: &'a Steer) -> Self {
        let actions = steer.actions.as_deref();
        Self { user_id: &steer.user, handover: None, actions, system_prompt: None }
    }
}
