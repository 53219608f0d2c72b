//! The context that an agent receives with an input; the same over HTTP and over a dial-in connection (protocol.md
//! §1.6, §2).
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use turnway_core::id::{DeliveryId, MessageId, SessionKey, TenantId, UserId};
use turnway_core::protocol::action::{ActionsContext, FactDelivery};
use turnway_core::protocol::agent::Invoke;
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{InputOrigin, Sender};
use turnway_core::protocol::entry::{Entry, Envelope};
use turnway_core::protocol::handover::HandoverContext;
use turnway_core::protocol::qualified;
use turnway_core::protocol::steer::Steer;
use turnway_core::time::Millis;

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
    /// Written by the gateway only: no field of a client's message becomes a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<OriginContext<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handover: Option<&'a HandoverContext>,
    /// `open_actions`, `ended_actions` (EV-C6).
    #[serde(flatten)]
    actions: Option<&'a ActionsContext>,
    /// Text that the node's plugins add to the system prompt (TP-N11).
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<&'a str>,
}

/// The conversation that an input came from, and who wrote it there.
#[derive(Debug, Serialize)]
struct OriginContext<'a> {
    conversation: &'a ConversationRef,
    message_id: &'a MessageId,
    sender: &'a Sender,
    #[serde(skip_serializing_if = "Option::is_none")]
    platform_time: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<DecisionContext<'a>>,
}

/// The button that was pressed, if the input is a press.
#[derive(Debug, Serialize)]
struct DecisionContext<'a> {
    delivery_id: &'a DeliveryId,
    button_id: &'a str,
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
        let origin = invoke.origin.as_deref().map(OriginContext::of);
        Self { key, body: InputContextBody { tenant: &key.tenant, user_id, origin, handover, actions, system_prompt } }
    }

    /// Returns the context of a steered input; the agent knows the rest from the attempt's start. A message of a
    /// conversation is never steered.
    pub fn for_steer(steer: &'a Steer) -> Self {
        let key = &steer.key;
        let user_id = &steer.user;
        let actions = steer.actions.as_deref();
        let body = InputContextBody {
            tenant: &key.tenant,
            user_id,
            origin: None,
            handover: None,
            actions,
            system_prompt: None,
        };
        Self { key, body }
    }
}

// === impl OriginContext ===

impl<'a> OriginContext<'a> {
    fn of(origin: &'a InputOrigin) -> Self {
        // The limit of a message there, the debounce and the level of buttons are of no use to an agent: the gateway
        // observes them.
        let InputOrigin {
            conversation,
            message_id,
            sender,
            platform_time,
            text_limit: _,
            debounce_ms: _,
            task: _,
            buttons: _,
            decision,
        } = origin;
        let decision = decision
            .as_ref()
            .map(|decision| DecisionContext { delivery_id: &decision.delivery_id, button_id: &decision.button_id });
        Self { conversation, message_id, sender, platform_time: *platform_time, decision }
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
