//! Messages between a gateway and a tool runner as JSON (protocol.md §1.7).
use crate::channel::json::{fields, strict};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;
use turnway_core::id::{
    EventId, QualifiedAction, QualifiedRun, QualifiedSession, SessionKey, SystemName, TenantId, ToolName,
};
use turnway_core::limits::{ACTION_DATA_BYTES_MAX, OUTPUT_CHUNK_BYTES_MAX};
use turnway_core::private::Private;
use turnway_core::protocol::action::{OutputEncoding, OutputStream, ProcessOutput, ToolError, ToolExecution};
use turnway_core::protocol::json::{Json, json_bytes, json_prefix_len};
use turnway_core::protocol::qualified::qualify_processes;
use turnway_core::time::Millis;

/// The error code of a runner that does not know an action.
pub const UNKNOWN_ACTION_CODE: &str = "unknown_action";
/// The error code that replaces a result over the size limit.
pub const TOO_LARGE_CODE: &str = "too_large";
/// Exclusive upper bound of byte offsets: integers below it are exact in every language.
const OFFSET_MAX: u64 = 1 << 53;
/// Maximum bytes of an error's code; a longer code is truncated.
const CODE_BYTES_MAX: usize = 256;

/// A message to a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToRunner {
    /// Perform an action, once; a repetition queries its state.
    Execute(Box<ToolExecution>),
    /// Stop an action.
    Signal {
        /// The session of the action.
        key: SessionKey,
        action_id: EventId,
        signal: &'static str,
    },
    /// Query the state of an action.
    Query {
        /// The session of the action.
        key: SessionKey,
        action_id: EventId,
    },
}

/// A message from a runner. The runner may name an action by its plain or by its qualified id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromRunner {
    /// The action was started.
    Invoked {
        action_id: QualifiedAction,
        /// The system's process id, if the action is a process.
        pid: Option<u64>,
    },
    /// Progress of the action.
    Progress { action_id: QualifiedAction, data: Json },
    /// The action has ended.
    Result {
        action_id: QualifiedAction,
        /// True if the action succeeded.
        ok: bool,
        result: Option<Json>,
        /// The reason of a failure.
        error: Option<ToolError>,
    },
    /// A piece of process output.
    Chunk {
        /// The session of the action, if it was named.
        session: Option<SessionKey>,
        printed: Box<ProcessOutput>,
    },
    /// An event of the runner's machine.
    System {
        /// Restricts the event to the session of this action; `None`: every session with an action at the runner.
        action_id: Option<QualifiedAction>,
        /// The runner's own name of the event.
        name: SystemName,
        data: Option<Json>,
    },
}

/// The reason for rejecting a message, without its content (S-38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRunnerMessage(pub &'static str);

#[derive(Serialize)]
struct ExecuteBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    ts: Millis,
    tenant: &'a TenantId,
    action_id: QualifiedAction,
    run_id: QualifiedRun,
    session_id: QualifiedSession,
    tool: &'a ToolName,
    args: Box<RawValue>,
    deadline_ts: Millis,
}

#[derive(Serialize)]
struct ActionBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    ts: Millis,
    action_id: QualifiedAction,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<&'a str>,
}

#[derive(Deserialize)]
struct RunnerMessageBody<'a> {
    #[serde(default, borrow)]
    action_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(default)]
    pid: Option<u64>,
    #[serde(default)]
    ok: Option<bool>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    stream: Option<OutputStream>,
    #[serde(default)]
    offset: Option<u64>,
    #[serde(default)]
    encoding: Option<OutputEncoding>,
    #[serde(default)]
    truncated: Option<bool>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

// === impl ToRunner ===

impl ToRunner {
    /// Renders the message. Runners may serve all tenants, so ids are written in their qualified forms.
    pub fn to_json(&self, ts: Millis) -> String {
        let short = |kind, key: &SessionKey, action_id, signal| ActionBody {
            kind,
            ts,
            action_id: QualifiedAction::of(key, action_id),
            signal,
        };
        // Messages have string keys and finite numbers only, so they always serialise.
        match self {
            Self::Execute(execute) => {
                let ToolExecution { key, run_id, action_id, tool, args, deadline, .. } = &**execute;
                let args = qualify_processes(key, tool.as_str(), args.reveal().to_owned());
                let Ok(args) = RawValue::from_string(args) else { return String::new() };
                let body = ExecuteBody {
                    kind: "execute",
                    ts,
                    tenant: &key.tenant,
                    action_id: QualifiedAction::of(key, *action_id),
                    run_id: QualifiedRun::of(key, run_id),
                    session_id: QualifiedSession::from(key),
                    tool,
                    args,
                    deadline_ts: *deadline,
                };
                serde_json::to_string(&body).unwrap_or_default()
            }
            Self::Signal { key, action_id, signal } => {
                serde_json::to_string(&short("signal", key, *action_id, Some(signal))).unwrap_or_default()
            }
            Self::Query { key, action_id } => {
                serde_json::to_string(&short("query", key, *action_id, None)).unwrap_or_default()
            }
        }
    }
}

// === impl FromRunner ===

impl FromRunner {
    /// Parses a message of type `kind`; `None` if runners have no such message.
    pub fn parse(kind: &str, text: &str) -> Option<Result<Self, InvalidRunnerMessage>> {
        match kind {
            "invoked" | "progress" | "result" | "chunk" => Some(Self::parse_action_message(kind, text)),
            "system" => Some(Self::parse_system(text)),
            _ => None,
        }
    }

    fn parse_system(text: &str) -> Result<Self, InvalidRunnerMessage> {
        let body: RunnerMessageBody<'_> = serde_json::from_str(text).map_err(|_| InvalidRunnerMessage("malformed"))?;
        let name = body.name.as_deref().ok_or(InvalidRunnerMessage("name is missing"))?;
        let name = SystemName::parse(name).map_err(|_| InvalidRunnerMessage("name is invalid"))?;
        let action_id = body.action_id.as_deref().map(QualifiedAction::parse).transpose();
        let action_id = action_id.map_err(|_| InvalidRunnerMessage("action_id is invalid"))?;
        let data =
            body.data.map(|data| parse_json(data)?.ok_or(InvalidRunnerMessage("data is too large"))).transpose()?;
        Ok(Self::System { action_id, name, data })
    }

    fn parse_action_message(kind: &str, text: &str) -> Result<Self, InvalidRunnerMessage> {
        let body: RunnerMessageBody<'_> = serde_json::from_str(text).map_err(|_| InvalidRunnerMessage("malformed"))?;
        let action_id = body.action_id.as_deref().ok_or(InvalidRunnerMessage("action_id is missing"))?;
        let action_id = QualifiedAction::parse(action_id).map_err(|_| InvalidRunnerMessage("action_id is invalid"))?;
        Ok(match kind {
            "invoked" => Self::Invoked { action_id, pid: body.pid },
            "progress" => {
                let data = body.data.ok_or(InvalidRunnerMessage("data is missing"))?;
                Self::Progress { action_id, data: parse_json(data)?.ok_or(InvalidRunnerMessage("data is too large"))? }
            }
            "result" => {
                let ok = body.ok.ok_or(InvalidRunnerMessage("ok is missing"))?;
                let result = body.result.map(parse_json).transpose()?;
                if result == Some(None) {
                    let why = format!("the result exceeds the limit of {ACTION_DATA_BYTES_MAX} bytes");
                    let error = Some(ToolError::of(TOO_LARGE_CODE, &why));
                    return Ok(Self::Result { action_id, ok: false, result: None, error });
                }
                let error = body.error.map(parse_error).transpose()?;
                Self::Result { action_id, ok, result: result.flatten(), error }
            }
            _ => {
                let QualifiedAction { session, id } = action_id;
                Self::Chunk { session, printed: Box::new(parse_output(id, &body)?) }
            }
        })
    }
}

/// Parses a piece of process output, and checks its size and encoding.
fn parse_output(action_id: EventId, body: &RunnerMessageBody<'_>) -> Result<ProcessOutput, InvalidRunnerMessage> {
    let stream = body.stream.ok_or(InvalidRunnerMessage("stream is missing"))?;
    let offset = body.offset.filter(|offset| *offset < OFFSET_MAX);
    let offset = offset.ok_or(InvalidRunnerMessage("offset is missing or out of range"))?;
    let encoding = body.encoding.unwrap_or(OutputEncoding::Utf8);
    let data = body.data.ok_or(InvalidRunnerMessage("data is missing"))?;
    let Ok(Value::String(data)) = strict::value(data.get()) else {
        return Err(InvalidRunnerMessage("data is not a string"));
    };
    let max = match encoding {
        OutputEncoding::Utf8 => OUTPUT_CHUNK_BYTES_MAX,
        OutputEncoding::Base64 => OUTPUT_CHUNK_BYTES_MAX.div_ceil(3) * 4,
    };
    if data.len() > max {
        return Err(InvalidRunnerMessage("data is too large"));
    }
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if encoding == OutputEncoding::Base64 && !data.bytes().all(is_base64) {
        return Err(InvalidRunnerMessage("data is not base64"));
    }
    let data = Private(Arc::from(&*data));
    Ok(ProcessOutput { action_id, stream, offset, data, encoding, truncated: body.truncated.unwrap_or(false) })
}

/// Parses JSON that is passed on unchanged; `None` if the JSON is too large.
fn parse_json(raw: &RawValue) -> Result<Option<Json>, InvalidRunnerMessage> {
    let value = strict::value(raw.get()).map_err(|_| InvalidRunnerMessage("JSON nested too deep or malformed"))?;
    let value = Json(value);
    // The limit counts the size as serialised, which is the size in facts.
    Ok((json_bytes(&value) <= ACTION_DATA_BYTES_MAX).then_some(value))
}

/// Parses a runner's error, truncated to the size that a fact may hold as JSON.
fn parse_error(raw: &RawValue) -> Result<ToolError, InvalidRunnerMessage> {
    let mut body = strict::object(raw.get()).map_err(|_| InvalidRunnerMessage("error is not an object"))?;
    let mut text = |label| fields::text(&mut body, label).map(Option::unwrap_or_default);
    let mut code = text("code").map_err(|_| InvalidRunnerMessage("error.code is not a string"))?;
    let mut message = text("message").map_err(|_| InvalidRunnerMessage("error.message is not a string"))?;
    code.retain(|c| !c.is_control());
    code.truncate(code.floor_char_boundary(CODE_BYTES_MAX));
    message.truncate(json_prefix_len(&message, ACTION_DATA_BYTES_MAX));
    Ok(ToolError { code, message: Private(message) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::json::documented;
    use serde_json::json;
    use turnway_core::id::{MessageId, RunId, SessionId, SessionKey, TenantId, UserId};

    const ID: &str = "0190f4a0-0000-7000-8000-000000000001";

    /// Covers: EV-E4, EV-E5.
    #[test]
    fn runner_messages_have_the_documented_form() {
        let key = key("default");
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m").expect("a name"));
        let action_id = EventId::parse(ID).expect("an id");
        let execute = execute(&key, &run_id, "process.spawn", r#"{"argv":["ls"]}"#);
        assert_eq!(
            read(&execute),
            json!({"type": "execute", "ts": 3, "tenant": "default", "action_id": ID, "run_id": run_id.as_str(), "session_id": "s1",
                "tool": "process.spawn", "args": {"argv": ["ls"]}, "deadline_ts": 9})
        );
        let signal = ToRunner::Signal { key: key.clone(), action_id, signal: "KILL" };
        assert_eq!(read(&signal), json!({"type": "signal", "ts": 3, "action_id": ID, "signal": "KILL"}));
        let query = ToRunner::Query { key, action_id };
        assert_eq!(read(&query), json!({"type": "query", "ts": 3, "action_id": ID}));
    }

    #[test]
    fn runner_messages_qualify_every_id_by_tenant() {
        let key = key("acme");
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m").expect("a name"));
        let action_id = EventId::parse(ID).expect("an id");
        let name = format!("acme~s1.{ID}");
        let args = json!({ "process_id": ID }).to_string();
        assert_eq!(
            read(&execute(&key, &run_id, "process.kill", &args)),
            json!({"type": "execute", "ts": 3, "tenant": "acme", "action_id": name, "run_id": format!("acme~{run_id}"),
                "session_id": "acme~s1", "tool": "process.kill", "args": {"process_id": name}, "deadline_ts": 9})
        );
        assert_eq!(read(&execute(&key, &run_id, "search", &args))["args"], json!({"process_id": ID}));
        assert_eq!(read(&ToRunner::Query { key: key.clone(), action_id })["action_id"], json!(name));
        assert_eq!(read(&ToRunner::Signal { key, action_id, signal: "KILL" })["action_id"], json!(name));
    }

    fn key(tenant: &str) -> SessionKey {
        let session = SessionId::parse("s1").expect("a name");
        SessionKey { tenant: TenantId::parse(tenant).expect("a name"), session }
    }

    fn execute(key: &SessionKey, run_id: &RunId, tool: &str, args: &str) -> ToRunner {
        ToRunner::Execute(Box::new(ToolExecution {
            key: key.clone(),
            run_id: run_id.clone(),
            action_id: EventId::parse(ID).expect("an id"),
            tool: ToolName::parse(tool).expect("a name"),
            args: Private(args.to_owned()),
            deadline: Millis(9),
            runner: None,
        }))
    }

    fn read(message: &ToRunner) -> Value {
        let message = serde_json::from_str(&message.to_json(Millis(3))).expect("JSON");
        documented::assert_documented("to_tool_runner", &message);
        message
    }

    fn check(kind: &str, mut body: Value, expected: &str) {
        body["action_id"] = ID.into();
        let got = format!("{:?}", FromRunner::parse(kind, &body.to_string()));
        assert!(got.contains(expected), "{kind} {body}: {got}");
    }

    /// Covers: EV-E4, EV-E5, S-13, S-48, LN-TP29.
    #[test]
    fn runner_messages_are_parsed_within_limits() {
        check("invoked", json!({}), "pid: None");
        check("invoked", json!({"pid": 7}), "pid: Some(7)");
        check("progress", json!({"data": {"n": 1}}), "data: <object>");
        check("progress", json!({}), "data is missing");
        check("system", json!({"name": "battery.low", "data": 4}), "data: Some(<number>)");
        check("system", json!({"name": "two words"}), "name is invalid");
        check("system", json!({}), "name is missing");
        check("system", json!({"name": "x", "data": "x".repeat(17_000)}), "too large");
        check("result", json!({"ok": true, "result": [1]}), "ok: true, result: Some(<array>), error: None");
        let error = json!({"code": "no\nwork", "message": "secret"});
        check("result", json!({"ok": false, "error": error}), "code: \"nowork\", message: <6 bytes>");
        check("result", json!({}), "ok is missing");
        check("result", json!({"ok": true, "result": "x".repeat(17_000)}), "ok: false, result: None");
        check("progress", json!({"data": "x".repeat(17_000)}), "too large");
        let chunk = json!({"stream": "stdout", "offset": 3, "data": "hi", "encoding": "utf8"});
        let with = |key: &str, value: Value| {
            let mut body = chunk.clone();
            body[key] = value;
            body
        };
        check("chunk", chunk.clone(), "stream: Stdout, offset: 3, data: <2 bytes>, encoding: Utf8, truncated: false");
        check("chunk", with("truncated", true.into()), "truncated: true");
        check("chunk", with("truncated", Value::Null), "truncated: false");
        check("chunk", with("stream", "stdin".into()), "malformed");
        check("chunk", with("offset", Value::Null), "offset is missing");
        check("chunk", with("offset", (1_u64 << 53).into()), "out of range");
        check("chunk", with("data", 7.into()), "data is not a string");
        check("chunk", with("data", "x".repeat(16_385).into()), "data is too large");
        let mut base64 = with("encoding", "base64".into());
        check("chunk", base64.clone(), "encoding: Base64");
        base64["data"] = "a b".into();
        check("chunk", base64, "data is not base64");
        assert_eq!(FromRunner::parse("result", "{}"), Some(Err(InvalidRunnerMessage("action_id is missing"))));
        assert_eq!(
            FromRunner::parse("result", r#"{"action_id":"x","ok":true}"#),
            Some(Err(InvalidRunnerMessage("action_id is invalid")))
        );
        assert_eq!(FromRunner::parse("execute", "{}"), None);
    }
}
