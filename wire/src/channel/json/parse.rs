//! Parses one JSON object from a client into one [`ClientMessage`], and validates every id.
//! Clients of the protocol's first form work unchanged: unknown fields are ignored, and `null` counts as absent.
use crate::channel::command::{CancelTarget, InvokeCommand, LinkCommand, SubscribeCommand, TextCursor};
use crate::channel::hello::{ConnectionRole, Credential, DialInCapabilities, HelloRequest, RunnerHello};
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::{Malformed, MalformedReason};
use crate::channel::json::{account, adapter, binding, delivery, mention, strict};
use serde_json::Value;
use turnway_core::id::{
    AgentId, Epoch, EventId, MessageId, RequestId, RunId, RunnerId, Seq, SessionId, ToolName, UserId,
};
use turnway_core::limits::{
    ANNOTATION_CHARACTERS_MAX, LINK_SUBSCRIPTIONS_MAX, REASON_BYTES_MAX, RUNNER_TOOLS_MAX, SESSION_AGENTS_MAX,
    SUBSCRIBE_TYPES_MAX,
};
use turnway_core::private::Private;
use turnway_core::protocol::input::{self, ControlRequest, Message, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::trace::is_traceparent;

/// Maximum number of runs in one `subscribe`: more than can be open, because a client may not know which runs have
/// ended.
pub const SUBSCRIBE_RUNS_MAX: usize = 64;

/// Every `type` that a client may send, and whether this release supports it.
pub const MESSAGE_TYPES: &[(&str, bool)] = &[
    ("hello", true),
    ("session_open", true),
    ("session_close", true),
    ("session_label", true),
    ("subscribe", true),
    ("unsubscribe", true),
    ("agent_invoke", true),
    ("cancel_run", true),
    ("INTERRUPT", true),
    ("refresh", true),
    ("ping", true),
    ("tool_result", false),
    ("approval_decision", false),
    ("switch_agent", true),
    ("invite_agent", true),
    ("remove_agent", true),
    ("handover_decision", true),
    ("settle_delivery", true),
    ("list_deliveries", true),
    ("send_message", true),
    ("register_tools", false),
    ("bind", true),
    ("bind_child", true),
    ("unbind", true),
    ("touch", true),
    ("set_binding_expiry", true),
    ("resolve", true),
    ("list_bindings", true),
    ("pause_account", true),
    ("resume_account", true),
    ("list_paused_accounts", true),
    ("show_account", true),
    ("inbound", true),
    ("prepare_files", true),
    ("delivered", true),
    ("conversation_created", true),
    ("capabilities", true),
];

/// A well-formed message of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientMessage {
    /// The first message: the client's identity and the subscriptions that it resumes.
    Hello {
        hello: HelloRequest,
        /// Subscriptions, answered right after `welcome`.
        resume: Vec<SubscribeCommand>,
    },
    Command(LinkCommand),
    /// The next credential of the same user.
    Refresh {
        request_id: Option<RequestId>,
        token: Credential,
    },
    /// Requests a `pong`.
    Ping {
        request_id: Option<RequestId>,
    },
    /// A known type that this release does not support.
    Unsupported {
        type_name: &'static str,
        request_id: Option<RequestId>,
    },
}

/// Parses one message. Never panics; the work is bounded by the limits of a message.
pub fn parse(text: &str) -> Result<ClientMessage, Malformed> {
    let malformed = |request_id, flaw| Malformed { request_id, reason: flaw };
    let mut fields = strict::object(text).map_err(|flaw| malformed(None, flaw))?;
    let request_id = fields::name(&mut fields, "request_id", RequestId::parse).map_err(|flaw| malformed(None, flaw))?;
    message(request_id.clone(), &mut fields).map_err(|flaw| malformed(request_id, flaw))
}

/// Parses the body of `POST /v1/sessions/{id}/turns`: an `agent_invoke` whose type and session are given by the
/// request's path. If the body repeats them, the values must be equal.
pub fn parse_turn(text: &str, session: &SessionId) -> Result<InvokeCommand, Malformed> {
    let malformed = |request_id, flaw| Malformed { request_id, reason: flaw };
    let mut fields = strict::object(text).map_err(|flaw| malformed(None, flaw))?;
    let request_id = fields::name(&mut fields, "request_id", RequestId::parse).map_err(|flaw| malformed(None, flaw))?;
    turn(request_id.clone(), &mut fields, session).map_err(|flaw| malformed(request_id, flaw))
}

fn turn(
    request_id: Option<RequestId>,
    fields: &mut Fields,
    session: &SessionId,
) -> Result<InvokeCommand, MalformedReason> {
    if fields::text(fields, "type")?.is_some_and(|kind| kind != "agent_invoke") {
        return Err(MalformedReason::InvalidField("type"));
    }
    let invoke = invoke(request_id, fields)?;
    if invoke.session.as_ref().is_some_and(|named| named != session) {
        return Err(MalformedReason::InvalidField("session_id"));
    }
    Ok(InvokeCommand { session: Some(session.clone()), ..invoke })
}

fn message(request_id: Option<RequestId>, fields: &mut Fields) -> Result<ClientMessage, MalformedReason> {
    let kind = required(fields::text(fields, "type")?, "type")?;
    let command = match kind.as_str() {
        "hello" => return hello(fields),
        "ping" => return Ok(ClientMessage::Ping { request_id }),
        "refresh" => {
            let token = Credential(required(fields::text(fields, "token")?, "token")?);
            return Ok(ClientMessage::Refresh { request_id, token });
        }
        "session_open" => open(request_id, fields)?,
        "session_close" => {
            LinkCommand::Control { request_id, session: session(fields)?, request: ControlRequest::Close }
        }
        "session_label" => LinkCommand::Control { request_id, session: session(fields)?, request: label(fields)? },
        "subscribe" => LinkCommand::Subscribe(subscribe(request_id, fields)?),
        "unsubscribe" => LinkCommand::Unsubscribe { request_id, session: session(fields)? },
        "agent_invoke" => LinkCommand::Invoke(Box::new(invoke(request_id, fields)?)),
        "cancel_run" | "INTERRUPT" => LinkCommand::Cancel { request_id, target: target(fields)?, wants_receipt: false },
        "switch_agent" | "invite_agent" | "remove_agent" => members(kind.as_str(), request_id, fields)?,
        "handover_decision" => decision(request_id, fields)?,
        "settle_delivery" => delivery::parse_settlement(request_id, fields)?,
        "send_message" => LinkCommand::Send(Box::new(delivery::parse_send(request_id, None, fields)?)),
        "list_deliveries" => LinkCommand::ListDeliveries { request_id, session: session(fields)? },
        "bind_child" => LinkCommand::BindChild(Box::new(binding::parse_bind_child(request_id, fields)?)),
        "bind" | "unbind" | "touch" | "set_binding_expiry" | "resolve" | "list_bindings" => {
            LinkCommand::Binding { request_id, command: binding::parse_command(kind.as_str(), fields)? }
        }
        "pause_account" | "resume_account" | "list_paused_accounts" | "show_account" => {
            LinkCommand::Account { request_id, command: account::parse_account_command(kind.as_str(), fields)? }
        }
        "inbound" => LinkCommand::Inbound(Box::new(adapter::parse_inbound(request_id, fields)?)),
        "conversation_created" => LinkCommand::Delivered(Box::new(adapter::parse_conversation_created(fields)?)),
        "delivered" => LinkCommand::Delivered(Box::new(adapter::parse_delivered(fields)?)),
        "prepare_files" => LinkCommand::PrepareFiles(Box::new(adapter::parse_prepare_files(request_id, fields)?)),
        "capabilities" => LinkCommand::Capabilities(Box::new(adapter::parse_change(request_id, fields)?)),
        other => {
            let known = MESSAGE_TYPES.iter().find(|(name, _)| *name == other);
            let (type_name, _) = known.ok_or(MalformedReason::UnknownType)?;
            return Ok(ClientMessage::Unsupported { type_name, request_id });
        }
    };
    Ok(ClientMessage::Command(command))
}

fn session(fields: &mut Fields) -> Result<SessionId, MalformedReason> {
    required(fields::name(fields, "session_id", SessionId::parse)?, "session_id")
}

fn label(fields: &mut Fields) -> Result<ControlRequest, MalformedReason> {
    let label = required(fields::text(fields, "label")?, "label")?;
    if label.chars().count() > ANNOTATION_CHARACTERS_MAX || label.chars().any(char::is_control) {
        return Err(MalformedReason::InvalidField("label"));
    }
    Ok(ControlRequest::Label { label: Private(label) })
}

fn hello(fields: &mut Fields) -> Result<ClientMessage, MalformedReason> {
    let user = fields::name(fields, "user_id", UserId::parse_person)?;
    let key = fields::text(fields, "api_key")?;
    let token = fields::text(fields, "token")?;
    let role = match fields::text(fields, "role")?.as_deref() {
        None | Some("user") => ConnectionRole::User,
        Some("adapter") => ConnectionRole::Adapter,
        Some("agent") => ConnectionRole::Agent,
        Some("tool_runner") => ConnectionRole::ToolRunner,
        Some(_) => return Err(MalformedReason::InvalidField("role")),
    };
    let agent_id = fields::name(fields, "agent_id", AgentId::parse)?;
    let adapter = if role == ConnectionRole::Adapter { Some(Box::new(adapter::parse_hello(fields)?)) } else { None };
    let capabilities = if adapter.is_some() { DialInCapabilities::default() } else { capabilities(fields)? };
    let runner = if role == ConnectionRole::ToolRunner { Some(Box::new(runner(fields)?)) } else { None };
    let streams = fields::flag(fields, "streams")?.unwrap_or(true);
    let mut resume = Vec::new();
    for item in fields::list(fields, "resume", LINK_SUBSCRIPTIONS_MAX)? {
        let Value::Object(mut body) = item else { return Err(MalformedReason::InvalidField("resume")) };
        let request_id = fields::name(&mut body, "request_id", RequestId::parse)?;
        resume.push(subscribe(request_id, &mut body)?);
    }
    let credential = key.or(token).map(Credential);
    let hello = HelloRequest { user, credential, role, agent_id, capabilities, adapter, runner, streams };
    Ok(ClientMessage::Hello { hello, resume })
}

/// Parses a tool runner's id and tools; a tool is a name or an object with a name.
fn runner(fields: &mut Fields) -> Result<RunnerHello, MalformedReason> {
    let runner_id = required(fields::name(fields, "runner_id", RunnerId::parse)?, "runner_id")?;
    let tools = fields::list(fields, "tools", RUNNER_TOOLS_MAX)?.into_iter().map(|item| {
        let name = match item {
            Value::String(name) => Some(name),
            Value::Object(mut body) => fields::text(&mut body, "name")?,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
        };
        name.and_then(|name| ToolName::parse(&name).ok()).ok_or(MalformedReason::InvalidField("tools"))
    });
    Ok(RunnerHello { runner_id, tools: tools.collect::<Result<_, _>>()? })
}

/// Parses an agent's capabilities. Unknown capabilities are ignored.
fn capabilities(fields: &mut Fields) -> Result<DialInCapabilities, MalformedReason> {
    let mut capabilities = fields::object(fields, "capabilities")?.unwrap_or_default();
    let usual = DialInCapabilities::default();
    Ok(DialInCapabilities {
        steer: fields::flag(&mut capabilities, "capabilities.steer")?.unwrap_or(usual.steer),
        resume: fields::flag(&mut capabilities, "capabilities.resume")?.unwrap_or(usual.resume),
        cancel: fields::flag(&mut capabilities, "capabilities.cancel")?.unwrap_or(usual.cancel),
    })
}

fn open(request_id: Option<RequestId>, fields: &mut Fields) -> Result<LinkCommand, MalformedReason> {
    let session = fields::name(fields, "session_id", SessionId::parse)?;
    let active = fields::name(fields, "active_agent", AgentId::parse)?;
    let agents = fields::list(fields, "agents", SESSION_AGENTS_MAX)?;
    let parse = |agent: &Value| agent.as_str().and_then(|id| AgentId::parse(id).ok());
    let agents = agents.iter().map(parse).collect::<Option<_>>().ok_or(MalformedReason::InvalidField("agents"))?;
    Ok(LinkCommand::Open { request_id, session, agents, active })
}

/// Parses a member request. The agent is named by `agent_id` or, for an invitation, by `agent_spec`: an id, or an
/// object with an id.
fn members(kind: &str, request_id: Option<RequestId>, fields: &mut Fields) -> Result<LinkCommand, MalformedReason> {
    let session = session(fields)?;
    let named = fields::name(fields, "agent_id", AgentId::parse)?;
    let specified = match fields::any(fields, "agent_spec").filter(|_| kind == "invite_agent") {
        Some(Value::String(id)) => Some(AgentId::parse(&id).map_err(|_| MalformedReason::InvalidField("agent_spec"))?),
        Some(Value::Object(mut spec)) => fields::name(&mut spec, "agent_id", AgentId::parse)?,
        Some(_) => return Err(MalformedReason::InvalidField("agent_spec")),
        None => None,
    };
    let agent_id = required(named.or(specified), "agent_id")?;
    let reason = fields::text(fields, "reason")?;
    if reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
        return Err(MalformedReason::InvalidField("reason"));
    }
    let activate = fields::flag(fields, "active")?.unwrap_or(false);
    let request = match kind {
        "switch_agent" => ControlRequest::Switch { agent_id, reason },
        "invite_agent" => ControlRequest::Invite { agent_id, reason, activate },
        _ => ControlRequest::Remove { agent_id, reason },
    };
    Ok(LinkCommand::Control { request_id, session, request })
}

fn decision(request_id: Option<RequestId>, fields: &mut Fields) -> Result<LinkCommand, MalformedReason> {
    let session = session(fields)?;
    let handover_id = required(fields::name(fields, "handover_id", EventId::parse)?, "handover_id")?;
    let confirm = fields::is_first_of(fields, "decision", ["confirm", "reject"])?;
    Ok(LinkCommand::Control { request_id, session, request: ControlRequest::Handover { handover_id, confirm } })
}

fn subscribe(request_id: Option<RequestId>, fields: &mut Fields) -> Result<SubscribeCommand, MalformedReason> {
    let session = session(fields)?;
    let after_seq = fields::integer(fields, "after_seq")?.map(Seq);
    let after_epoch = fields::integer(fields, "after_epoch")?.map(Epoch);
    let cursors = fields::object(fields, "runs")?.unwrap_or_default();
    if cursors.len() > SUBSCRIBE_RUNS_MAX {
        return Err(MalformedReason::TooManyItems("runs"));
    }
    let runs = cursors.into_iter().map(text_cursor).collect::<Result<_, _>>()?;
    let types = fields::list(fields, "types", SUBSCRIBE_TYPES_MAX)?;
    let parse = |pattern: &Value| pattern.as_str().and_then(|text| Pattern::parse(text).ok());
    let types = types.iter().map(parse).collect::<Option<_>>().ok_or(MalformedReason::InvalidField("types"))?;
    Ok(SubscribeCommand { request_id, session, after_seq, after_epoch, runs, types })
}

fn text_cursor((run_id, cursor): (String, Value)) -> Result<TextCursor, MalformedReason> {
    let run_id = RunId::parse(&run_id).map_err(|_| MalformedReason::InvalidField("runs"))?;
    let Value::Object(mut cursor) = cursor else { return Err(MalformedReason::InvalidField("runs")) };
    let attempt = required(fields::integer(&mut cursor, "runs.attempt")?, "runs.attempt")?;
    let attempt = u32::try_from(attempt).map_err(|_| MalformedReason::InvalidField("runs.attempt"))?;
    let offset = required(fields::integer(&mut cursor, "runs.offset")?, "runs.offset")?;
    Ok(TextCursor { run_id, attempt, offset })
}

fn invoke(request_id: Option<RequestId>, fields: &mut Fields) -> Result<InvokeCommand, MalformedReason> {
    let session = fields::name(fields, "session_id", SessionId::parse)?;
    let mut body = required(fields::object(fields, "message")?, "message")?;
    // Clients send user messages only; agent and system messages do not enter through this protocol.
    if fields::text(&mut body, "message.role")?.is_some_and(|role| role != "user") {
        return Err(MalformedReason::InvalidField("message.role"));
    }
    let message_id = fields::name(&mut body, "message.message_id", MessageId::parse)?;
    let content = required(fields::any(&mut body, "message.content"), "message.content")?;
    let content = mention::parse_content(content)?;
    let metadata = fields::object(fields, "metadata")?.map(Value::Object);
    let agent_id = mention::parse_addressee(fields, metadata.as_ref(), &content)?;
    let strategy = fields::text(fields, "strategy")?.as_deref().map(strategy).transpose()?;
    let replaces = fields::name(fields, "replaces", RunId::parse)?;
    // A trace context that cannot be parsed starts a new trace and is no reason to refuse (W3C Trace Context,
    // §3.2).
    let traceparent = fields::text(fields, "traceparent")?.filter(|text| is_traceparent(text));
    let message = Message { role: input::Role::User, content };
    let metadata = metadata.map(Json);
    // A client of this protocol leaves the conversation's history to the gateway (MP-C3).
    let history = None;
    Ok(InvokeCommand {
        request_id,
        session,
        agent_id,
        message,
        history,
        message_id,
        strategy,
        replaces,
        metadata,
        traceparent,
    })
}

fn strategy(name: &str) -> Result<Strategy, MalformedReason> {
    match name {
        "steer" => Ok(Strategy::Steer),
        "enqueue" => Ok(Strategy::Enqueue),
        "interrupt" => Ok(Strategy::Interrupt),
        "rollback" => Ok(Strategy::Rollback),
        "reject" => Ok(Strategy::Reject),
        _ => Err(MalformedReason::InvalidField("strategy")),
    }
}

/// Parses the target of a cancel. The run counts if both are named, because it is the narrower target.
fn target(fields: &mut Fields) -> Result<CancelTarget, MalformedReason> {
    let run = fields::name(fields, "run_id", RunId::parse)?;
    let session = fields::name(fields, "session_id", SessionId::parse)?;
    run.map(CancelTarget::Run).or(session.map(CancelTarget::Session)).ok_or(MalformedReason::MissingField("run_id"))
}

#[cfg(test)]
mod tests;
