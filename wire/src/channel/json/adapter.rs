//! Messages of adapters as JSON.
use crate::channel::adapter::{
    AdapterCapabilities, AdapterHello, AdapterOutcome, CapabilitiesCommand, Capability, DeliveredCommand,
    InboundCommand, InboundEvent, MessageEdit, PrepareFilesCommand, PressedButton,
};
use crate::channel::json::conversation::{
    CONVERSATION, PLACE, parse_account, parse_conversation, parse_new_id, parse_optional,
};
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::MalformedReason;
use crate::channel::json::mention;
use serde_json::Value;
use turnway_core::id::{DeliveryId, MessageId, RequestId};
use turnway_core::limits::{ADAPTER_CAPABILITIES_MAX, SENDER_CHARACTERS_MAX};
use turnway_core::protocol::delivery::{ButtonSet, DeliveryErrorClass, Sender, TextUnit};
use turnway_core::time::Millis;

/// Parses the fields of an adapter's `hello`.
pub fn parse_hello(fields: &mut Fields) -> Result<AdapterHello, MalformedReason> {
    let (channel, account) = parse_account(fields, ["channel", "account_id"])?;
    Ok(AdapterHello {
        channel,
        account,
        platform_bot_id: fields::name(fields, "platform_bot_id", RequestId::parse)?,
        instance_id: fields::name(fields, "instance_id", RequestId::parse)?,
        capabilities: parse_capabilities(fields)?,
    })
}

/// Parses a change of capabilities.
pub fn parse_change(
    request_id: Option<RequestId>,
    fields: &mut Fields,
) -> Result<CapabilitiesCommand, MalformedReason> {
    let conversation = parse_optional(fields, CONVERSATION)?;
    if fields.get("capabilities").is_none_or(Value::is_null) {
        return Err(MalformedReason::MissingField("capabilities"));
    }
    Ok(CapabilitiesCommand { request_id, conversation, capabilities: parse_capabilities(fields)? })
}

/// Parses a request for the right to add files.
pub fn parse_prepare_files(
    request_id: Option<RequestId>,
    fields: &mut Fields,
) -> Result<PrepareFilesCommand, MalformedReason> {
    Ok(PrepareFilesCommand { request_id, conversation: parse_conversation(fields, CONVERSATION)? })
}

/// Parses capabilities by name: a level, or an object with a level, a limit and its unit.
fn parse_capabilities(fields: &mut Fields) -> Result<AdapterCapabilities, MalformedReason> {
    const BAD: MalformedReason = MalformedReason::InvalidField("capabilities");
    let object = fields::object(fields, "capabilities")?.unwrap_or_default();
    if object.len() > ADAPTER_CAPABILITIES_MAX {
        return Err(MalformedReason::TooManyItems("capabilities"));
    }
    let parse = |(name, value): (String, Value)| {
        RequestId::parse(&name).map_err(|_| BAD)?;
        parse_capability(value).map(|capability| (name, capability))
    };
    object.into_iter().map(parse).collect::<Result<_, _>>().map(AdapterCapabilities)
}

fn parse_capability(value: Value) -> Result<Capability, MalformedReason> {
    let Value::Object(mut object) = value else {
        return Ok(Capability { level: parse_level(&value)?, max: None, unit: None });
    };
    let level = parse_level(&object.remove("level").unwrap_or(Value::Null))?;
    let max = fields::integer(&mut object, "capabilities.max")?;
    let max = max.map(u32::try_from).transpose().map_err(|_| MalformedReason::InvalidField("capabilities.max"))?;
    let unit = fields::word(&mut object, "capabilities.unit", &TextUnit::ALL, TextUnit::as_str)?;
    Ok(Capability { level, max, unit })
}

fn parse_level(value: &Value) -> Result<i8, MalformedReason> {
    let number = value.as_i64().or_else(|| value.as_f64().filter(|it| it.fract() == 0.0).map(|it| it as i64));
    let level = number.and_then(|level| i8::try_from(level).ok()).filter(|level| (-2..=2).contains(level));
    level.ok_or(MalformedReason::InvalidField("capabilities.level"))
}

/// Parses an inbound event.
pub fn parse_inbound(request_id: Option<RequestId>, fields: &mut Fields) -> Result<InboundCommand, MalformedReason> {
    let conversation = parse_conversation(fields, CONVERSATION)?;
    let sender = parse_sender(fields)?;
    let mut message = required(fields::object(fields, "message")?, "message")?;
    let message_id = fields::name(&mut message, "message.message_id", MessageId::parse)?;
    // Every field is checked, also if the event does not need it.
    let edit_id = fields::name(&mut message, "message.edit_id", RequestId::parse)?;
    let content = fields::any(&mut message, "message.content").map(mention::parse_content).transpose()?;
    let moved_to = parse_new_id(&conversation, fields, "moved_to")?;
    let decision = fields::object(fields, "decision")?.map(parse_decision).transpose()?;
    let event = match fields::text(fields, "event")?.as_deref() {
        None | Some("message") => InboundEvent::Message(required(content, "message.content")?),
        Some("edit") => InboundEvent::Edit(content.map(|content| Box::new(MessageEdit { content, edit_id }))),
        Some("delete") => InboundEvent::Delete,
        Some("reaction") => InboundEvent::Reaction,
        Some("decision") => InboundEvent::Decision(Box::new(required(decision, "decision")?)),
        Some("conversation_closed") => InboundEvent::Closed,
        Some("moved") => InboundEvent::Moved(required(moved_to, "moved_to")?),
        Some(_) => return Err(MalformedReason::InvalidField("event")),
    };
    Ok(InboundCommand {
        request_id,
        conversation,
        sender,
        message_id: required(message_id, "message.message_id")?,
        platform_time: fields::integer(fields, "platform_time")?.map(Millis),
        event,
    })
}

fn parse_decision(mut object: Fields) -> Result<PressedButton, MalformedReason> {
    let press_id = required(fields::name(&mut object, "decision.press_id", RequestId::parse)?, "decision.press_id")?;
    let button_id = required(fields::text(&mut object, "decision.button_id")?, "decision.button_id")?;
    if !ButtonSet::is_button_id(&button_id) {
        return Err(MalformedReason::InvalidField("decision.button_id"));
    }
    let delivery_id = fields::name(&mut object, "decision.delivery_id", DeliveryId::parse)?;
    Ok(PressedButton { press_id, button_id, delivery_id })
}

fn parse_sender(fields: &mut Fields) -> Result<Sender, MalformedReason> {
    let mut object = required(fields::object(fields, "sender")?, "sender")?;
    let id = required(fields::text(&mut object, "sender.id")?, "sender.id")?;
    let name = fields::text(&mut object, "sender.name")?;
    let is_bot = fields::flag(&mut object, "sender.is_bot")?.unwrap_or(false);
    let is_line = |text: &str| text.chars().count() <= SENDER_CHARACTERS_MAX && !text.chars().any(char::is_control);
    if id.is_empty() || !is_line(&id) {
        return Err(MalformedReason::InvalidField("sender.id"));
    }
    if name.as_deref().is_some_and(|name| !is_line(name)) {
        return Err(MalformedReason::InvalidField("sender.name"));
    }
    Ok(Sender { id, name, is_bot })
}

/// Parses an adapter's report about a conversation that it was to make.
pub fn parse_conversation_created(fields: &mut Fields) -> Result<DeliveredCommand, MalformedReason> {
    let delivery_id = required(fields::name(fields, "delivery_id", DeliveryId::parse)?, "delivery_id")?;
    let conversation = parse_optional(fields, CONVERSATION)?;
    let class = fields::word(fields, "code", &DeliveryErrorClass::ALL, DeliveryErrorClass::as_str)?;
    let retry_after_ms = fields::integer(fields, "retry_after_ms")?;
    let outcome = match required(fields::text(fields, "outcome")?, "outcome")?.as_str() {
        "created" => {
            let place = required(conversation, "conversation")?;
            let external_id = MessageId::parse(place.conversation_id.as_str());
            let external_id = external_id.map_err(|_| MalformedReason::InvalidField("conversation"))?;
            AdapterOutcome::Sent { external_id, place }
        }
        "not_created" => AdapterOutcome::NotSent,
        "unknown" => AdapterOutcome::Unknown,
        "rejected" => AdapterOutcome::Rejected { class: required(class, "code")?, retry_after_ms },
        _ => return Err(MalformedReason::InvalidField("outcome")),
    };
    // The only part of the order.
    Ok(DeliveredCommand { delivery_id, part: 1, outcome })
}

/// Parses an adapter's report about a part.
pub fn parse_delivered(fields: &mut Fields) -> Result<DeliveredCommand, MalformedReason> {
    let delivery_id = required(fields::name(fields, "delivery_id", DeliveryId::parse)?, "delivery_id")?;
    let part = required(fields::integer(fields, "part")?, "part")?;
    let part = u32::try_from(part).map_err(|_| MalformedReason::InvalidField("part"))?;
    let external_id = fields::name(fields, "external_id", MessageId::parse)?;
    let place = parse_optional(fields, PLACE)?;
    let class = fields::word(fields, "code", &DeliveryErrorClass::ALL, DeliveryErrorClass::as_str)?;
    let retry_after_ms = fields::integer(fields, "retry_after_ms")?;
    let outcome = match required(fields::text(fields, "outcome")?, "outcome")?.as_str() {
        "sent" => match external_id {
            Some(external_id) => AdapterOutcome::Sent { external_id, place: required(place, "place")? },
            // A success without the platform's id proves nothing.
            None => AdapterOutcome::Unknown,
        },
        "not_sent" => AdapterOutcome::NotSent,
        "unknown" => AdapterOutcome::Unknown,
        "rejected" => AdapterOutcome::Rejected { class: required(class, "code")?, retry_after_ms },
        _ => return Err(MalformedReason::InvalidField("outcome")),
    };
    Ok(DeliveredCommand { delivery_id, part, outcome })
}
