//! What an agent says of a run, from JSON to words: the same words in the events of an HTTP agent's answer and in the
//! messages of one that has dialed in (protocol.md §1.6, §2; hardening S-27, S-48).
use super::wish;
use crate::channel::json::strict;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;
use turnway_core::id::{AgentId, MessageId, QualifiedRun, SaidId};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::action::ActionWish;
use turnway_core::protocol::agent::{AgentFailure, StopReason, TextKind};
use turnway_core::protocol::handover::HandoverWish;
use turnway_core::protocol::json::Json;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::protocol::steer::SteerOutcome;

/// The word of a state, and the code of an error.
const WORD_BYTES_MAX: usize = 256;
/// The message of an error: what is longer is cut, an error stays an error.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// One event of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// A piece of text.
    Delta {
        /// Of which text.
        kind: TextKind,
        /// The piece.
        text: String,
        /// What the agent calls it.
        id: Option<SaidId>,
    },
    /// A state.
    State {
        /// The agent's own word for it.
        state: String,
        /// What the agent says to it.
        detail: Option<Json>,
        /// What the agent calls it.
        id: Option<SaidId>,
    },
    /// What it makes of an input that it was handed on the way.
    Steered {
        /// Which.
        message_id: MessageId,
        /// What.
        outcome: SteerOutcome,
    },
    /// It asks that another agent answer.
    Handover {
        /// Who, and why.
        wish: Box<HandoverWish>,
        /// What the agent calls it.
        id: Option<SaidId>,
    },
    /// It wants something done.
    Action {
        /// What.
        wish: Box<ActionWish>,
        /// What the agent calls the event.
        id: Option<SaidId>,
    },
    /// It wants to be told of such facts while it answers.
    Subscribe {
        /// Of which types.
        types: Arc<[Pattern]>,
    },
    /// The end.
    Done {
        /// Why.
        stop: StopReason,
        /// What it cost.
        usage: Option<Json>,
    },
    /// An error of its own, which is an end too.
    Failed(AgentFailure),
    /// Nothing this gateway knows.
    Unknown,
    /// A comment, or a part of an event: no event, but a sign of life.
    Alive,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
    #[serde(default)]
    kind: TextKind,
    #[serde(default, borrow)]
    run_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct State<'a> {
    state: String,
    #[serde(default, borrow)]
    detail: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct SteerAck<'a> {
    message_id: String,
    #[serde(default, borrow)]
    outcome: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct HandoverRequest {
    to: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    summary: String,
}

#[derive(Deserialize)]
struct Subscribe {
    types: Vec<String>,
}

#[derive(Deserialize)]
struct Done<'a> {
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default)]
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct Failed {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// Reads one event. Errors never repeat what the agent wrote (S-38).
///
/// `id` is what the event is called, where events have names; none: in this run they have none.
///
/// The agent may name the run, and processes of its session, in their bare or in their qualified forms.
pub fn read(
    kind: &str,
    data: &str,
    id: Option<Option<&str>>,
    run: &QualifiedRun,
) -> Result<Said, AgentFailure> {
    let id = || id.map(name).transpose();
    match kind {
        "delta" => {
            let delta: Delta<'_> = parse("delta", data)?;
            if delta.run_id.is_some_and(|named| !run.is_named(&named)) {
                // An agent that mixes its runs up must not show one person's answer to another.
                return Err(broken("a delta of another run"));
            }
            Ok(Said::Delta { kind: delta.kind, text: delta.text.into_owned(), id: id()? })
        }
        "state" => {
            let State { state, detail } = parse("state", data)?;
            if state.is_empty() || state.len() > WORD_BYTES_MAX || state.chars().any(char::is_control) {
                return Err(broken("a state that is no word"));
            }
            Ok(Said::State { state, detail: carried(detail)?, id: id()? })
        }
        "steer_ack" => {
            let SteerAck { message_id, outcome } = parse("steer_ack", data)?;
            let message_id =
                MessageId::parse(&message_id).map_err(|_| broken("a steer_ack of no message"))?;
            // Words that nobody knows are not a yes: the input becomes a turn of its own, and is not lost.
            let word = outcome.and_then(|outcome| serde_json::from_str::<String>(outcome.get()).ok());
            let outcome = word.and_then(|word| SteerOutcome::parse(&word));
            let outcome = outcome.unwrap_or(SteerOutcome::Refused);
            Ok(Said::Steered { message_id, outcome })
        }
        "handover_request" => {
            let HandoverRequest { to, reason, summary } = parse("handover_request", data)?;
            let to = AgentId::parse(&to).map_err(|_| broken("a handover_request to no agent"))?;
            if reason.len() > limits::REASON_BYTES_MAX || summary.len() > limits::HANDOVER_SUMMARY_BYTES_MAX {
                return Err(AgentFailure::TooLarge);
            }
            let wish = HandoverWish { to, reason: Private(reason), summary: Private(summary) };
            Ok(Said::Handover { wish: Box::new(wish), id: id()? })
        }
        "done" => {
            let Done { usage, stop_reason } = parse("done", data)?;
            let stop = stop_reason.map_or_else(StopReason::default, |word| stop(&word));
            Ok(Said::Done { stop, usage: carried(usage)? })
        }
        "error" => {
            let Failed { mut code, mut message } = parse("error", data)?;
            code.retain(|c| !c.is_control());
            code.truncate(code.floor_char_boundary(WORD_BYTES_MAX));
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            Ok(Said::Failed(AgentFailure::Reported { code, message: Private(message) }))
        }
        "subscribe" => Ok(Said::Subscribe { types: types(data)? }),
        "action" => Ok(Said::Action { wish: Box::new(action(data, run)?), id: id()? }),
        // None of ours (a reader ignores what it does not know, or no agent could ever say more).
        _ => Ok(Said::Unknown),
    }
}

/// What an agent that can be asked for the rest calls an event.
fn name(id: Option<&str>) -> Result<SaidId, AgentFailure> {
    let id = id.ok_or_else(|| broken("an event without an id, and its run is to outlive its owner"))?;
    SaidId::parse(id).map_err(|_| broken("an event whose id is not 1 to 128 visible ASCII characters"))
}

fn parse<'a, T: Deserialize<'a>>(name: &str, data: &'a str) -> Result<T, AgentFailure> {
    serde_json::from_str(data).map_err(|_| AgentFailure::Broken(format!("malformed {name} event")))
}

/// A word this gateway does not know is an ordinary end: the agent did say `done`.
fn stop(word: &str) -> StopReason {
    match word {
        "max_tokens" => StopReason::MaxTokens,
        "refusal" => StopReason::Refusal,
        "cancelled" => StopReason::Cancelled,
        "error" => StopReason::Error,
        "timeout" => StopReason::Timeout,
        _ => StopReason::EndTurn,
    }
}

/// JSON that is carried on as it came, within limits (S-13).
pub(super) fn carried(raw: Option<&RawValue>) -> Result<Option<Json>, AgentFailure> {
    let Some(raw) = raw else { return Ok(None) };
    if raw.get().len() > limits::AGENT_DETAIL_BYTES_MAX {
        return Err(AgentFailure::TooLarge);
    }
    // Whatever this returns can be stored in a fact and read back: depth, size, keys.
    strict::value(raw.get())
        .map(|value| Some(Json(value)))
        .map_err(|_| broken("JSON nested too deep or malformed"))
}

pub(super) fn broken(what: &str) -> AgentFailure {
    AgentFailure::Broken(what.to_owned())
}

/// What an agent wants to be told of.
pub(super) fn types(data: &str) -> Result<Arc<[Pattern]>, AgentFailure> {
    let Subscribe { types } = parse("subscribe", data)?;
    if types.len() > limits::SUBSCRIBE_TYPES_MAX {
        return Err(broken("a subscribe to too many types"));
    }
    let patterns = types.iter().map(|text| Pattern::parse(text)).collect::<Result<_, _>>();
    patterns.map_err(|_| broken("a subscribe whose types are no patterns"))
}

/// What an agent wants done.
fn action(data: &str, run: &QualifiedRun) -> Result<ActionWish, AgentFailure> {
    wish::read(parse("action", data)?, run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{MessageId, RunId, SessionId, SessionKey, TenantId, UserId};

    fn check(name: &str, data: &str, said: &str) {
        let key = SessionKey {
            tenant: TenantId::default_tenant(),
            session: SessionId::parse("s1").expect("a name"),
        };
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m1").expect("a name"));
        let data = data.replace("$RUN", run_id.as_str());
        let got = format!("{:?}", read(name, &data, None, &QualifiedRun::of(&key, &run_id)));
        assert!(got.contains(said), "{name} {data}: {got}");
    }

    /// Covers: MP-G4, MP-G5, MP-G6, MP-G7, MP-G9, ST-19, ST-23.
    #[test]
    fn each_event_is_read() {
        check("delta", r#"{"text":"a\n\u00e9"}"#, r#"Delta { kind: Text, text: "a\né", id: None }"#);
        check("delta", r#"{"text":"a","run_id":"$RUN"}"#, r#"text: "a""#);
        check("delta", r#"{"text":"a","kind":"reasoning","more":1}"#, "kind: Reasoning");
        check("state", r#"{"state":"thinking","detail":{"a":1}}"#, "detail: Some(<object>)");
        check("state", r#"{"state":"thinking"}"#, "detail: None");
        check("done", "{}", "Done { stop: EndTurn, usage: None }");
        check(
            "done",
            r#"{"stop_reason":"refusal","usage":{"tokens":3}}"#,
            "stop: Refusal, usage: Some(<object>)",
        );
        check("done", r#"{"stop_reason":"bored"}"#, "stop: EndTurn");
        check("error", r#"{"code":"quota","message":"secret"}"#, r#"code: "quota", message: <6 bytes>"#);
        check("action", r#"{"type":"action","action_type":"say","text":"hm"}"#, "Say { text: <2 bytes> }");
        check("action", r#"{"type":"say","text":"hm"}"#, "Say { text: <2 bytes> }");
        check(
            "action",
            r#"{"type":"tool_call","action_id":"a1","tool":"process.spawn","args":{"argv":["ls"]},"timeout_ms":5}"#,
            "ActionWish { name: Some(SaidId(\"a1\")), what: ToolCall { tool: ToolName(\"process.spawn\"), args: <object> }, timeout: Some(5ms) }",
        );
        check("action", r#"{"tool":"t"}"#, "args: <object> }, timeout: None");
        check(
            "handover_request",
            r#"{"to":"bob","reason":"sums","summary":"2+2"}"#,
            "HandoverWish { to: AgentId(\"bob\"), reason: <4 bytes>, summary: <3 bytes> }",
        );
        check("handover_request", r#"{"to":"bob"}"#, "reason: <0 bytes>");
        check("subscribe", r#"{"types":["run.*",">"]}"#, r#"types: [Pattern("run.*"), Pattern(">")]"#);
        check("subscribe", r#"{"types":[]}"#, "types: []");
        check("whatever", "{}", "Unknown");
    }

    /// Covers: ST-8, ST-9.
    #[test]
    fn steer_ack_that_is_not_understood_is_refused() {
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
    fn what_is_not_the_protocol_is_told_without_content() {
        check("delta", r#"{"text":"canary"#, "malformed delta event");
        check("delta", r#"{"text":3}"#, "malformed delta event");
        check("delta", "{}", "malformed delta event");
        check("delta", r#"{"text":"a","kind":"song"}"#, "malformed delta event");
        check("delta", r#"{"text":"a","text":"b"}"#, "malformed delta event");
        check("delta", r#"{"text":"\ud800"}"#, "malformed delta event");
        check("delta", r#"{"text":"a","run_id":"s1.other"}"#, "another run");
        check("state", r#"{"state":"a\u0000b"}"#, "no word");
        check("state", &format!(r#"{{"state":"{}"}}"#, "x".repeat(257)), "no word");
        check("state", &format!(r#"{{"state":"x","detail":"{}"}}"#, "x".repeat(17_000)), "TooLarge");
        check(
            "state",
            &format!(r#"{{"state":"x","detail":{}{}}}"#, "[".repeat(65), "]".repeat(65)),
            "too deep",
        );
        check("action", "{}", "an action without a tool");
        check("action", r#"{"type":"dance"}"#, "an action of no kind");
        check("action", r#"{"tool":"no tool!"}"#, "an action of no tool");
        check("action", r#"{"tool":"t","action_id":"a b"}"#, "whose name is");
        check("action", &format!(r#"{{"tool":"t","args":"{}"}}"#, "x".repeat(17_000)), "TooLarge");
        check("subscribe", "{}", "malformed subscribe event");
        check("subscribe", r#"{"types":["a b"]}"#, "no patterns");
        check("subscribe", &format!(r#"{{"types":["a"{}]}}"#, r#","a""#.repeat(32)), "too many types");
        check("handover_request", "{}", "malformed handover_request event");
        check("handover_request", r#"{"to":"no agent"}"#, "to no agent");
        let long = format!(r#"{{"to":"bob","summary":"{}"}}"#, "x".repeat(16 * 1024 + 1));
        check("handover_request", &long, "TooLarge");
        check("done", &format!(r#"{{"usage":{}"#, "[".repeat(60_000)), "malformed done event");
        check("error", &format!(r#"{{"code":"{}","message":"x"}}"#, "é".repeat(200)), &"é".repeat(128));
    }
}
