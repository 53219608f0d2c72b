//! Parses an agent's messages about a run, from the events of an HTTP agent's answer and from the messages of an
//! agent that has dialed in (protocol.md §1.6, §2; hardening S-27, S-48).
use super::action_request;
use crate::channel::json::fields::{self, Fields, required};
use crate::channel::json::malformed::MalformedReason;
use crate::channel::json::strict;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use turnway_core::id::{AgentEventId, AgentId, MessageId, QualifiedRun};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::action::ActionRequest;
use turnway_core::protocol::agent::{AgentFailure, StopReason, TextKind};
use turnway_core::protocol::handover::HandoverRequest;
use turnway_core::protocol::json::{Json, SurrogateHalves, json_bytes, json_prefix_len};
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::steer::SteerOutcome;

/// Maximum bytes of a state's name and of an error's code.
const NAME_BYTES_MAX: usize = 256;
/// Maximum bytes of an error's message; a longer message is truncated, because the error must still be reported.
const ERROR_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// One event from an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentMessage {
    /// A piece of text.
    Delta {
        kind: TextKind,
        text: String,
        /// The agent's id of the event.
        id: Option<AgentEventId>,
    },
    /// A state of the agent.
    State {
        /// The agent's own name of the state.
        state: String,
        detail: Option<Json>,
        /// The agent's id of the event.
        id: Option<AgentEventId>,
    },
    /// The agent's answer to a steered input.
    Steered { message_id: MessageId, outcome: SteerOutcome },
    /// A request that another agent takes over.
    Handover {
        /// `wish` in frames of version 1.
        #[serde(rename = "wish")]
        request: Box<HandoverRequest>,
        /// The agent's id of the event.
        id: Option<AgentEventId>,
    },
    /// A request to perform an action.
    Action {
        /// `wish` in frames of version 1.
        #[serde(rename = "wish")]
        request: Box<ActionRequest>,
        /// The agent's id of the event, not of the action.
        id: Option<AgentEventId>,
    },
    /// A subscription to facts while the agent answers.
    Subscribe { types: Arc<[Pattern]> },
    /// The end of the answer.
    Done { stop: StopReason, usage: Option<Json> },
    /// An error reported by the agent, which also ends the answer.
    Failed(AgentFailure),
    /// An event type that this gateway does not know.
    Unknown,
    /// Activity without an event: a comment, or a part of an event.
    Alive,
}

/// Parses one event. Errors name the invalid field and never repeat the agent's text (S-38).
///
/// `id` is the event's id; the outer `None` means that events of this run have no ids.
///
/// The agent may name the run, and processes of its session, in their plain or in their qualified forms.
pub fn parse(
    kind: &str,
    data: &str,
    id: Option<Option<&str>>,
    run: &QualifiedRun,
) -> Result<AgentMessage, AgentFailure> {
    parse_with_surrogates(kind, data, id, run).map(|(message, _)| message)
}

/// Parses one event like [`parse`], and returns the unpaired surrogates at both ends of a piece of text.
pub(super) fn parse_with_surrogates(
    kind: &str,
    data: &str,
    id: Option<Option<&str>>,
    run: &QualifiedRun,
) -> Result<(AgentMessage, SurrogateHalves), AgentFailure> {
    let id = || id.map(parse_event_id).transpose();
    let event = || parse_object(kind, data);
    let message = match kind {
        "delta" => {
            let (mut body, halves) = strict::object_halves(data, "text").map_err(|flaw| malformed(kind, flaw))?;
            let (text, kind) = delta(&mut body, run)?;
            return Ok((AgentMessage::Delta { kind, text, id: id()? }, halves));
        }
        "state" => {
            let (state, detail) = state(event()?)?;
            AgentMessage::State { state, detail, id: id()? }
        }
        "steer_ack" => parse_steer_ack(event()?)?,
        "handover_request" => AgentMessage::Handover { request: Box::new(handover(event()?)?), id: id()? },
        "done" => done(event()?)?,
        "error" => AgentMessage::Failed(parse_error(event()?)?),
        "subscribe" => AgentMessage::Subscribe { types: parse_types(data)? },
        "action" => AgentMessage::Action { request: Box::new(action_request::parse(event()?, run)?), id: id()? },
        // An unknown event is ignored, so that agents can add events in later versions.
        _ => AgentMessage::Unknown,
    };
    Ok((message, SurrogateHalves::default()))
}

fn delta(body: &mut Fields, run: &QualifiedRun) -> Result<(String, TextKind), AgentFailure> {
    const EVENT: &str = "delta";
    let named = field(EVENT, fields::text(body, "run_id"))?;
    if named.is_some_and(|named| !run.is_named(&named)) {
        // An agent that confuses its runs must not show one user's answer to another user.
        return Err(broken_message("delta names another run"));
    }
    let kind = match field(EVENT, fields::text(body, "kind"))?.as_deref() {
        None | Some("text") => TextKind::Text,
        Some("reasoning") => TextKind::Reasoning,
        Some(_) => return Err(malformed(EVENT, MalformedReason::InvalidField("kind"))),
    };
    let text = fields::text(body, "text").and_then(|text| required(text, "text"));
    Ok((field(EVENT, text)?, kind))
}

fn state(mut body: Fields) -> Result<(String, Option<Json>), AgentFailure> {
    let state = fields::text(&mut body, "state").and_then(|state| required(state, "state"));
    let state = field("state", state)?;
    if state.is_empty() || state.len() > NAME_BYTES_MAX || state.chars().any(char::is_control) {
        return Err(broken_message("state is empty, too long or contains control characters"));
    }
    Ok((state, check_size(fields::any(&mut body, "detail"))?))
}

fn parse_steer_ack(mut body: Fields) -> Result<AgentMessage, AgentFailure> {
    const EVENT: &str = "steer_ack";
    let message_id = fields::text(&mut body, "message_id").and_then(|id| required(id, "message_id"));
    let message_id = field(EVENT, message_id)?;
    let message_id = MessageId::parse(&message_id);
    let message_id = message_id.map_err(|_| broken_message("steer_ack has an invalid message_id"))?;
    // An unknown outcome is not an acceptance: the input becomes a turn of its own and is not lost.
    let outcome = fields::text(&mut body, "outcome").ok().flatten();
    let outcome = outcome.and_then(|word| SteerOutcome::parse(&word)).unwrap_or(SteerOutcome::Refused);
    Ok(AgentMessage::Steered { message_id, outcome })
}

fn handover(mut body: Fields) -> Result<HandoverRequest, AgentFailure> {
    const EVENT: &str = "handover_request";
    let to = fields::text(&mut body, "to").and_then(|to| required(to, "to"));
    let to = AgentId::parse(&field(EVENT, to)?);
    let to = to.map_err(|_| broken_message("handover_request has an invalid agent id in `to`"))?;
    let reason = field(EVENT, fields::text(&mut body, "reason"))?.unwrap_or_default();
    let summary = field(EVENT, fields::text(&mut body, "summary"))?.unwrap_or_default();
    if reason.len() > limits::REASON_BYTES_MAX || summary.len() > limits::HANDOVER_SUMMARY_BYTES_MAX {
        return Err(AgentFailure::TooLarge);
    }
    Ok(HandoverRequest { to, reason: Private(reason), summary: Private(summary) })
}

fn done(mut body: Fields) -> Result<AgentMessage, AgentFailure> {
    let stop_reason = field("done", fields::text(&mut body, "stop_reason"))?;
    let stop = stop_reason.map_or_else(StopReason::default, |word| parse_stop_reason(&word));
    Ok(AgentMessage::Done { stop, usage: check_size(fields::any(&mut body, "usage"))? })
}

fn parse_error(mut body: Fields) -> Result<AgentFailure, AgentFailure> {
    let mut code = field("error", fields::text(&mut body, "code"))?.unwrap_or_default();
    let mut message = field("error", fields::text(&mut body, "message"))?.unwrap_or_default();
    code.retain(|c| !c.is_control());
    code.truncate(code.floor_char_boundary(NAME_BYTES_MAX));
    message.truncate(json_prefix_len(&message, ERROR_MESSAGE_BYTES_MAX));
    Ok(AgentFailure::Reported { code, message: Private(message) })
}

/// Parses the id of an event of a resumable agent, which is required.
fn parse_event_id(id: Option<&str>) -> Result<AgentEventId, AgentFailure> {
    let id = id.ok_or_else(|| broken_message("event without an id; events of a resumable agent need one"))?;
    AgentEventId::parse(id).map_err(|_| broken_message("event id must be 1 to 128 visible ASCII characters"))
}

fn parse_object(name: &str, data: &str) -> Result<Fields, AgentFailure> {
    strict::object(data).map_err(|flaw| malformed(name, flaw))
}

/// Adds the event's name to the error of a field.
pub(super) fn field<T>(event: &str, field: Result<T, MalformedReason>) -> Result<T, AgentFailure> {
    field.map_err(|flaw| malformed(event, flaw))
}

fn malformed(event: &str, flaw: MalformedReason) -> AgentFailure {
    AgentFailure::Broken(format!("malformed {event} event: {flaw}"))
}

/// Parses a stop reason. An unknown reason counts as an ordinary end, because the agent did send `done`.
fn parse_stop_reason(word: &str) -> StopReason {
    match word {
        "max_tokens" => StopReason::MaxTokens,
        "refusal" => StopReason::Refusal,
        "cancelled" => StopReason::Cancelled,
        "error" => StopReason::Error,
        "timeout" => StopReason::Timeout,
        _ => StopReason::EndTurn,
    }
}

/// Checks the size of JSON that is passed on unchanged (S-13). The size is counted as serialised in facts.
pub(super) fn check_size(value: Option<Value>) -> Result<Option<Json>, AgentFailure> {
    let value = value.map(Json);
    let is_large = value.as_ref().is_some_and(|value| json_bytes(value) > limits::AGENT_DETAIL_BYTES_MAX);
    if is_large { Err(AgentFailure::TooLarge) } else { Ok(value) }
}

pub(super) fn broken_message(what: &str) -> AgentFailure {
    AgentFailure::Broken(what.to_owned())
}

/// Parses the fact types that an agent subscribes to.
pub fn parse_types(data: &str) -> Result<Arc<[Pattern]>, AgentFailure> {
    let mut body = parse_object("subscribe", data)?;
    if !body.contains_key("types") {
        return Err(malformed("subscribe", MalformedReason::MissingField("types")));
    }
    let types = match fields::list(&mut body, "types", limits::SUBSCRIBE_TYPES_MAX) {
        Err(MalformedReason::TooManyItems(_)) => {
            return Err(broken_message("subscribe names too many types"));
        }
        types => field("subscribe", types)?,
    };
    let pattern = |text: &Value| text.as_str().and_then(|text| Pattern::parse(text).ok());
    let patterns = types.iter().map(pattern).collect::<Option<_>>();
    patterns.ok_or_else(|| broken_message("subscribe contains an invalid type pattern"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{MessageId, RunId, SessionId, SessionKey, TenantId, UserId};

    fn check(name: &str, data: &str, expected: &str) {
        let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m1").expect("a name"));
        let data = data.replace("$RUN", run_id.as_str());
        let got = format!("{:?}", parse(name, &data, None, &QualifiedRun::of(&key, &run_id)));
        assert!(got.contains(expected), "{name} {data}: {got}");
    }

    /// Covers: MP-G4, MP-G5, MP-G6, MP-G7, MP-G9, ST-19, ST-23.
    #[test]
    fn each_agent_event_is_parsed() {
        check("delta", r#"{"text":"a\n\u00e9"}"#, r#"Delta { kind: Text, text: "a\né", id: None }"#);
        check("delta", r#"{"text":"a","run_id":"$RUN"}"#, r#"text: "a""#);
        check("delta", r#"{"text":"a","kind":"reasoning","more":1}"#, "kind: Reasoning");
        check("state", r#"{"state":"thinking","detail":{"a":1}}"#, "detail: Some(<object>)");
        check("state", r#"{"state":"thinking"}"#, "detail: None");
        check("done", "{}", "Done { stop: EndTurn, usage: None }");
        check("done", r#"{"stop_reason":"refusal","usage":{"tokens":3}}"#, "stop: Refusal, usage: Some(<object>)");
        check("done", r#"{"stop_reason":"bored"}"#, "stop: EndTurn");
        check("error", r#"{"code":"quota","message":"secret"}"#, r#"code: "quota", message: <6 bytes>"#);
        check("action", r#"{"type":"action","action_type":"say","text":"hm"}"#, "Say { text: <2 bytes> }");
        check("action", r#"{"type":"say","text":"hm"}"#, "Say { text: <2 bytes> }");
        check(
            "action",
            r#"{"type":"tool_call","action_id":"a1","tool":"process.spawn","args":{"argv":["ls"]},"timeout_ms":5}"#,
            "ActionRequest { name: Some(AgentEventId(\"a1\")), what: ToolCall { tool: ToolName(\"process.spawn\"), args: <object> }, timeout: Some(5ms) }",
        );
        check("action", r#"{"tool":"t"}"#, "args: <object> }, timeout: None");
        check(
            "handover_request",
            r#"{"to":"bob","reason":"sums","summary":"2+2"}"#,
            "HandoverRequest { to: AgentId(\"bob\"), reason: <4 bytes>, summary: <3 bytes> }",
        );
        check("handover_request", r#"{"to":"bob"}"#, "reason: <0 bytes>");
        check("subscribe", r#"{"types":["run.*",">"]}"#, r#"types: [Pattern("run.*"), Pattern(">")]"#);
        check("subscribe", r#"{"types":[]}"#, "types: []");
        check("whatever", "{}", "Unknown");
    }

    /// Covers: ST-8, ST-9.
    #[test]
    fn invalid_steer_ack_counts_as_refused() {
        for (outcome, expected) in [
            (r#","outcome":"accepted""#, "Accepted"),
            (r#","outcome":"pending""#, "Pending"),
            (r#","outcome":"refused""#, "Refused"),
            (r#","outcome":"rejected""#, "Refused"),
            (r#","outcome":"ACCEPTED""#, "Refused"),
            (r#","outcome":null"#, "Refused"),
            (r#","outcome":{"accepted":null}"#, "Refused"),
            (r#","outcome":true"#, "Refused"),
            ("", "Refused"),
        ] {
            check("steer_ack", &format!(r#"{{"message_id":"m2"{outcome}}}"#), expected);
        }
        check("steer_ack", r#"{"outcome":"accepted"}"#, "malformed steer_ack event");
    }

    /// Covers: S-13, S-48.
    #[test]
    fn malformed_event_is_reported_without_content() {
        check("delta", r#"{"text":"canary"#, "malformed delta event");
        check("delta", r#"{"text":3}"#, "malformed delta event: field has the wrong type or format: text");
        check("delta", "{}", "malformed delta event: field missing: text");
        check("delta", r#"{"text":"a","kind":"song"}"#, "wrong type or format: kind");
        check("delta", r#"{"text":"a","run_id":7}"#, "wrong type or format: run_id");
        check("delta", r#"{"text":"a","text":"b"}"#, "malformed delta event: an object has a duplicate key");
        check("delta", "7", "malformed delta event: not a JSON object");
        check("done", r#"{"stop_reason":7}"#, "malformed done event: field has the wrong type or format: stop_reason");
        check("error", r#"{"code":7}"#, "wrong type or format: code");
        check("action", r#"{"tool":"t","timeout_ms":"x"}"#, "wrong type or format: timeout_ms");
        check("handover_request", "{}", "field missing: to");
        check("delta", r#"{"text":"a","run_id":"s1.other"}"#, "another run");
        check("state", r#"{"state":"a\u0000b"}"#, "control characters");
        check("state", &format!(r#"{{"state":"{}"}}"#, "x".repeat(257)), "too long");
        check("state", &format!(r#"{{"state":"x","detail":"{}"}}"#, "x".repeat(17_000)), "TooLarge");
        check("state", &format!(r#"{{"state":"x","detail":{}{}}}"#, "[".repeat(65), "]".repeat(65)), "nested deeper");
        check("action", "{}", "action has no tool");
        check("action", r#"{"type":"dance"}"#, "action has an unknown type");
        check("action", r#"{"tool":"no tool!"}"#, "action has an invalid tool name");
        check("action", r#"{"tool":"t","action_id":"a b"}"#, "action_id must be");
        check("action", &format!(r#"{{"tool":"t","args":"{}"}}"#, "x".repeat(17_000)), "TooLarge");
        check("subscribe", "{}", "malformed subscribe event");
        check("subscribe", r#"{"types":["a b"]}"#, "invalid type pattern");
        check("subscribe", &format!(r#"{{"types":["a"{}]}}"#, r#","a""#.repeat(32)), "too many types");
        check("handover_request", "{}", "malformed handover_request event");
        check("handover_request", r#"{"to":"no agent"}"#, "invalid agent id");
        let long = format!(r#"{{"to":"bob","summary":"{}"}}"#, "x".repeat(16 * 1024 + 1));
        check("handover_request", &long, "TooLarge");
        check("done", &format!(r#"{{"usage":{}"#, "[".repeat(60_000)), "malformed done event");
        check("error", &format!(r#"{{"code":"{}","message":"x"}}"#, "é".repeat(200)), &"é".repeat(128));
    }
}
