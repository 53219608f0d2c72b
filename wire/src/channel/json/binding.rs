//! Requests about bindings as JSON, over any transport, and bindings in answers. The fields of a binding are those of the
//! facts about it, where they have the same meaning.
use crate::channel::binding::{
    BindChildCommand, BindCommand, BindingCandidate, BindingCommand, BindingScope, BindingTarget, ExpiryChange,
};
use crate::channel::json::conversation::{
    CONVERSATION, CONVERSATIONS, PARENT, parse_account, parse_conversation, parse_conversations, parse_optional,
};
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::{Malformed, MalformedReason};
use crate::channel::json::strict;
use crate::channel::notification::RequestedChild;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use turnway_core::id::{DeliveryId, MessageId, RequestId, SessionId};
use turnway_core::limits::{BINDING_METADATA_CHARACTERS_MAX, BINDING_METADATA_MAX, CONVERSATIONS_RESOLVED_MAX};
use turnway_core::private::Private;
use turnway_core::protocol::binding::{
    Binding, BindingId, BindingStatus, EndedBinding, Generation, TargetKind, UnbindReason,
};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::time::Millis;

/// Maximum bytes of the title of a new conversation, of which [`turnway_core::limits::TASK_TITLE_CHARACTERS_MAX`]
/// characters are used.
const TITLE_BYTES_MAX: usize = 4096;

/// Parses the body of an HTTP request, which is a message whose type the path gives.
pub fn parse_body(kind: &str, text: &str) -> Result<BindingCommand, Malformed> {
    let command = strict::object(text).and_then(|mut fields| parse_command(kind, &mut fields));
    command.map_err(|reason| Malformed { request_id: None, reason })
}

/// Parses the fields of a message of one of the types about bindings.
pub fn parse_command(kind: &str, fields: &mut Fields) -> Result<BindingCommand, MalformedReason> {
    Ok(match kind {
        "bind" => BindingCommand::Bind(Box::new(parse_bind(fields)?)),
        "unbind" => {
            let reason = fields::word(fields, "reason", &UnbindReason::OF_REQUESTS, UnbindReason::as_str)?;
            let reason = reason.unwrap_or(UnbindReason::Manual);
            let farewell = fields::flag(fields, "farewell")?.unwrap_or(false);
            BindingCommand::Unbind { target: parse_target(fields)?, reason, farewell }
        }
        "touch" => BindingCommand::Touch {
            scope: required(parse_scope(fields)?, "scope")?,
            id: required(fields::name(fields, "binding_id", BindingId::parse)?, "binding_id")?,
        },
        "set_binding_expiry" => {
            BindingCommand::SetExpiry { change: parse_expiry(fields)?, target: parse_target(fields)? }
        }
        "resolve" if fields.get("conversations").is_some_and(|several| !several.is_null()) => parse_lookup(fields)?,
        "resolve" => {
            let explain = fields::flag(fields, "explain")?.unwrap_or(false);
            BindingCommand::Resolve { conversation: parse_conversation(fields, CONVERSATION)?, explain }
        }
        "list_bindings" => BindingCommand::List {
            session: required(fields::name(fields, "session_id", SessionId::parse)?, "session_id")?,
        },
        _ => return Err(MalformedReason::UnknownType),
    })
}

/// Parses the body of an HTTP request that looks several conversations up.
pub fn parse_lookup_body(text: &str) -> Result<BindingCommand, Malformed> {
    let command = strict::object(text).and_then(|mut fields| parse_lookup(&mut fields));
    command.map_err(|reason| Malformed { request_id: None, reason })
}

fn parse_lookup(fields: &mut Fields) -> Result<BindingCommand, MalformedReason> {
    // The fields of a lookup of one conversation are checked, and do not count.
    parse_optional(fields, CONVERSATION)?;
    fields::flag(fields, "explain")?;
    let conversations = parse_conversations(fields, CONVERSATIONS, CONVERSATIONS_RESOLVED_MAX)?;
    Ok(BindingCommand::ResolveAll { conversations })
}

fn parse_bind(fields: &mut Fields) -> Result<BindCommand, MalformedReason> {
    let target_kind = fields::word(fields, "target_kind", &TargetKind::ALL, TargetKind::as_str)?;
    let target_kind = target_kind.unwrap_or_default();
    Ok(BindCommand {
        conversation: parse_conversation(fields, CONVERSATION)?,
        session: required(fields::name(fields, "session_id", SessionId::parse)?, "session_id")?,
        target_kind,
        expected: fields::integer(fields, "expected_generation")?.map(Generation),
        expiry: parse_expiry(fields)?,
        mirror: fields::flag(fields, "mirror")?,
        metadata: parse_metadata(fields)?,
        nonce: None,
    })
}

/// Parses the body of `POST /v1/bindings/children`, which is a `bind_child`.
pub fn parse_bind_child_body(text: &str) -> Result<BindChildCommand, Malformed> {
    let command = strict::object(text).and_then(|mut fields| parse_bind_child(None, &mut fields));
    command.map_err(|reason| Malformed { request_id: None, reason })
}

/// Parses the fields of `bind_child`.
pub(super) fn parse_bind_child(
    request_id: Option<RequestId>,
    fields: &mut Fields,
) -> Result<BindChildCommand, MalformedReason> {
    let title = required(fields::text(fields, "title")?, "title")?;
    if title.trim().is_empty() || title.len() > TITLE_BYTES_MAX {
        return Err(MalformedReason::InvalidField("title"));
    }
    let target_kind = fields::word(fields, "target_kind", &TargetKind::ALL, TargetKind::as_str)?;
    Ok(BindChildCommand {
        request_id,
        parent: parse_conversation(fields, PARENT)?,
        session: required(fields::name(fields, "session_id", SessionId::parse)?, "session_id")?,
        creation_id: fields::name(fields, "creation_id", MessageId::parse)?,
        title: Private(title),
        target_kind: target_kind.unwrap_or_default(),
        expiry: parse_expiry(fields)?,
        mirror: fields::flag(fields, "mirror")?.unwrap_or(false),
        metadata: parse_metadata(fields)?,
    })
}

fn parse_expiry(fields: &mut Fields) -> Result<ExpiryChange, MalformedReason> {
    Ok(ExpiryChange {
        idle_timeout: fields::integer(fields, "idle_timeout_ms")?,
        max_age: fields::integer(fields, "max_age_ms")?,
        expires_at: fields::integer(fields, "expires_at")?.map(Millis),
    })
}

/// Parses at most [`BINDING_METADATA_MAX`] texts by name, each on one line.
fn parse_metadata(fields: &mut Fields) -> Result<BTreeMap<String, String>, MalformedReason> {
    const BAD: MalformedReason = MalformedReason::InvalidField("metadata");
    let object = fields::object(fields, "metadata")?.unwrap_or_default();
    if object.len() > BINDING_METADATA_MAX {
        return Err(MalformedReason::TooManyItems("metadata"));
    }
    let is_line =
        |text: &str| text.chars().count() <= BINDING_METADATA_CHARACTERS_MAX && !text.chars().any(char::is_control);
    let parse = |(name, value): (String, Value)| {
        // A name has the form of the other labels of the protocol.
        let text = value.as_str().filter(|text| RequestId::parse(&name).is_ok() && is_line(text));
        text.map(|text| (name.clone(), text.to_owned())).ok_or(BAD)
    };
    object.into_iter().map(parse).collect()
}

/// Parses the name of one binding, or of the session whose bindings are meant. All fields are checked, also if only some
/// of them count.
fn parse_target(fields: &mut Fields) -> Result<BindingTarget, MalformedReason> {
    let session = fields::name(fields, "session_id", SessionId::parse)?;
    let id = fields::name(fields, "binding_id", BindingId::parse)?;
    let scope = parse_scope(fields)?;
    match session {
        Some(session) => Ok(BindingTarget::Session(session)),
        None => Ok(BindingTarget::Binding { id: required(id, "binding_id")?, scope: required(scope, "scope")? }),
    }
}

fn parse_scope(fields: &mut Fields) -> Result<Option<BindingScope>, MalformedReason> {
    let Some(mut scope) = fields::object(fields, "scope")? else { return Ok(None) };
    let (channel, account) = parse_account(&mut scope, ["scope.channel", "scope.account_id"])?;
    Ok(Some(BindingScope { channel, account }))
}

/// A binding in an answer.
#[derive(Serialize)]
pub struct BindingPayload<'a> {
    binding_id: BindingId,
    generation: Generation,
    session_id: &'a SessionId,
    conversation: &'a ConversationRef,
    target_kind: TargetKind,
    status: BindingStatus,
    bound_at: Millis,
    last_activity_at: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Millis>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    mirror: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<UnbindReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Millis>,
}

/// The data of a `child_requested`.
#[derive(Serialize)]
pub(super) struct RequestedChildPayload<'a> {
    creation_id: &'a MessageId,
    delivery_id: &'a DeliveryId,
}

/// A row that a lookup has looked at, in an answer.
#[derive(Serialize)]
pub struct CandidatePayload<'a> {
    conversation: &'a ConversationRef,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    binding: Option<BindingPayload<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ended: Option<BindingPayload<'a>>,
}

// === impl BindingPayload ===

impl<'a> From<&'a Binding> for BindingPayload<'a> {
    fn from(binding: &'a Binding) -> Self {
        Self {
            binding_id: binding.id(),
            generation: binding.generation,
            session_id: &binding.session,
            conversation: &binding.conversation,
            target_kind: binding.target_kind,
            status: BindingStatus::Active,
            bound_at: binding.bound_at,
            last_activity_at: binding.last_activity_at,
            idle_timeout_ms: binding.expiry.idle_timeout,
            max_age_ms: binding.expiry.max_age,
            expires_at: binding.expiry.expires_at,
            mirror: binding.mirror,
            metadata: &binding.metadata,
            reason: None,
            ended_at: None,
        }
    }
}

impl<'a> From<&'a EndedBinding> for BindingPayload<'a> {
    fn from(ended: &'a EndedBinding) -> Self {
        let EndedBinding { binding, reason, ended_at } = ended;
        let status = BindingStatus::Ended;
        Self { status, reason: Some(*reason), ended_at: Some(*ended_at), ..Self::from(binding) }
    }
}

// === impl RequestedChildPayload ===

impl<'a> From<&'a RequestedChild> for RequestedChildPayload<'a> {
    fn from(child: &'a RequestedChild) -> Self {
        Self { creation_id: &child.creation_id, delivery_id: &child.delivery_id }
    }
}

// === impl CandidatePayload ===

impl<'a> From<&'a BindingCandidate> for CandidatePayload<'a> {
    fn from(candidate: &'a BindingCandidate) -> Self {
        Self {
            conversation: &candidate.conversation,
            verdict: candidate.verdict.as_str(),
            binding: candidate.binding.as_ref().map(BindingPayload::from),
            last_ended: candidate.last_ended.as_ref().map(BindingPayload::from),
        }
    }
}
