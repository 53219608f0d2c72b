//! The context that an agent receives with an input; the same over HTTP and over a dial-in connection (protocol.md
//! §1.6, §2).
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use turnway_core::id::{SessionKey, TenantId, UserId};
use turnway_core::protocol::action::{ActionsContext, FactDelivery};
use turnway_core::protocol::agent::Invoke;
use turnway_core::protocol::entry::{Entry, Envelope};
use turnway_core::protocol::handover::HandoverContext;
use turnway_core::protocol::qualified;
use turnway_core::protocol::steer::Steer;

/// The field `context` of an `invoke` or a `steer`. Ids of runs, actions and processes are written in their
/// qualified forms.
#[derive(Debug)]
pub struct InputContext<'a> {
    key: &'a SessionKey,
    body: InputContextBody<'a>,
}

#[derive(Debug, Serialize)]
struct InputContextBody<'a> {
    tenant: &'a TenantId,
    user_id: &'a UserId,
    #[serde(skip_serializing_if = "Option::is_none")]
    handover: Option<&'a HandoverContext>,
    /// `open_actions`, `ended_actions` (EV-C6).
    #[serde(flatten)]
    actions: Option<&'a ActionsContext>,
    /// Text that the node's plugins add to the system prompt (TP-N11).
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<&'a str>,
}

/// A fact for an agent: the shape of `GET …/events`, with ids in their qualified forms.
#[derive(Debug)]
pub struct EventEnvelope<'a> {
    key: &'a SessionKey,
    body: Envelope<&'a Entry>,
}

// === impl InputContext ===

impl<'a> InputContext<'a> {
    /// Returns the context of a new attempt.
    pub fn for_invoke(invoke: &'a Invoke) -> Self {
        let system_prompt = invoke.system_prompt.as_ref().map(|text| text.reveal());
        let handover = invoke.handover.as_deref();
        let actions = invoke.actions.as_deref();
        let key = &invoke.key;
        let user_id = &invoke.user;
        Self { key, body: InputContextBody { tenant: &key.tenant, user_id, handover, actions, system_prompt } }
    }

    /// Returns the context of a steered input; the agent knows the rest from the attempt's start.
    pub fn for_steer(steer: &'a Steer) -> Self {
        let key = &steer.key;
        let user_id = &steer.user;
        let actions = steer.actions.as_deref();
        let body = InputContextBody { tenant: &key.tenant, user_id, handover: None, actions, system_prompt: None };
        Self { key, body }
    }
}

// === impl EventEnvelope ===

impl<'a> EventEnvelope<'a> {
    /// Returns the envelope of the fact.
    pub fn new(delivery: &'a FactDelivery) -> Self {
        let FactDelivery { key, seq, epoch, entry, .. } = delivery;
        Self { key, body: entry.with_position(&key.session, *seq, *epoch) }
    }
}

impl Serialize for InputContext<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize_qualified(self.key, &self.body, qualified::qualify_context, to)
    }
}

impl Serialize for EventEnvelope<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize_qualified(self.key, &self.body, qualified::qualify_event, to)
    }
}

/// Serialises a body with its ids in their qualified forms. In the default tenant the qualified forms equal the
/// plain ones, so the body is serialised once.
fn serialize_qualified<S: Serializer>(
    key: &SessionKey,
    body: &impl Serialize,
    rewrite: fn(&SessionKey, String) -> String,
    to: S,
) -> Result<S::Ok, S::Error> {
    use serde::ser::Error;
    if key.tenant.is_default() {
        return body.serialize(to);
    }
    let json = serde_json::to_string(body).map_err(S::Error::custom)?;
    RawValue::from_string(rewrite(key, json)).map_err(S::Error::custom)?.serialize(to)
}
