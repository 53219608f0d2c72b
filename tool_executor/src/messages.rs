//! Messages of a tool executor as JSON: the other end of [`turnway_wire::runner`].
use crate::journal::ToolOutcome;
use crate::output_buffer::OutputPiece;
use serde::Serialize;
use serde_json::{Map, Value, json};
use turnway_core::id::{EventId, QualifiedAction, QualifiedSession};
use turnway_core::protocol::action::ToolError;
use turnway_core::protocol::json::Json;
use turnway_core::time::Millis;
use turnway_wire::channel::json::strict;

/// A message from a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayMessage {
    /// The gateway has accepted the runner.
    Welcome,
    /// Perform an action, once.
    Execute(Box<ExecuteMessage>),
    /// Stop an action.
    Signal { action_id: QualifiedAction },
    /// Report the state of an action.
    Query { action_id: QualifiedAction },
    /// The gateway has read every message before our ping.
    Pong,
    /// The gateway has rejected a message.
    Error {
        /// Stable code for programs.
        code: String,
        /// Explanation for a person.
        message: String,
    },
    /// The gateway is shutting down and will close the connection; until then it still owns its actions.
    GoAway,
    /// A message type of a later version.
    UnknownType,
}

/// A request to perform an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecuteMessage {
    pub action_id: EventId,
    /// The requesting session; other sessions cannot see the action.
    pub session: QualifiedSession,
    pub tool: String,
    pub args: Json,
    /// Time of the request by the gateway's clock.
    pub ts: Millis,
    /// Deadline by the gateway's clock.
    pub deadline: Millis,
}

/// The reason for rejecting a text, without its content (S-38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidGatewayMessage(pub &'static str);

#[derive(Serialize)]
struct ResultBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    ts: Millis,
    action_id: &'a QualifiedAction,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a ToolError>,
}

// === impl GatewayMessage ===

impl GatewayMessage {
    /// Parses a message.
    pub fn parse(text: &str) -> Result<Self, InvalidGatewayMessage> {
        let Ok(Value::Object(body)) = strict::value(text) else {
            return Err(InvalidGatewayMessage("not a JSON object within the limits"));
        };
        let word = |key: &str| body.get(key).and_then(Value::as_str);
        let action = || {
            word("action_id")
                .and_then(|id| QualifiedAction::parse(id).ok())
                .ok_or(InvalidGatewayMessage("action_id is missing or invalid"))
        };
        Ok(match word("type").ok_or(InvalidGatewayMessage("type is missing"))? {
            "welcome" => Self::Welcome,
            "execute" => Self::Execute(Box::new(parse_execute(&action()?, &body)?)),
            "signal" => Self::Signal { action_id: action()? },
            "query" => Self::Query { action_id: action()? },
            "pong" => Self::Pong,
            "go_away" => Self::GoAway,
            "error" => {
                let text = |key| word(key).unwrap_or_default().to_owned();
                Self::Error { code: text("code"), message: text("message") }
            }
            _ => Self::UnknownType,
        })
    }
}

fn parse_execute(action: &QualifiedAction, body: &Map<String, Value>) -> Result<ExecuteMessage, InvalidGatewayMessage> {
    let word = |key: &str| body.get(key).and_then(Value::as_str);
    let time = |key: &str| body.get(key).and_then(Value::as_u64).map(Millis);
    let session = word("session_id").and_then(|id| QualifiedSession::parse(id).ok());
    let session = session.ok_or(InvalidGatewayMessage("session_id is missing or invalid"))?;
    if !action.may_belong_to(session.key()) {
        return Err(InvalidGatewayMessage("action_id names another session than session_id"));
    }
    Ok(ExecuteMessage {
        action_id: action.id,
        session,
        tool: word("tool").ok_or(InvalidGatewayMessage("tool is missing"))?.to_owned(),
        args: Json(body.get("args").cloned().unwrap_or_default()),
        ts: time("ts").ok_or(InvalidGatewayMessage("ts is missing"))?,
        deadline: time("deadline_ts").ok_or(InvalidGatewayMessage("deadline_ts is missing"))?,
    })
}

/// Renders `invoked`: the action was started.
pub fn invoked(ts: Millis, action_id: &QualifiedAction, pid: Option<u64>) -> String {
    match pid {
        Some(pid) => json!({"type": "invoked", "ts": ts, "action_id": action_id, "pid": pid}),
        None => json!({"type": "invoked", "ts": ts, "action_id": action_id}),
    }
    .to_string()
}

/// Renders `result`: the action has ended.
pub fn result(ts: Millis, action_id: &QualifiedAction, outcome: &ToolOutcome) -> String {
    let ToolOutcome { ok, result, error } = outcome;
    let kind = "result";
    let ok = *ok;
    let result = result.as_ref();
    let error = error.as_ref();
    // Messages have string keys and finite numbers only, so they always serialise.
    serde_json::to_string(&ResultBody { kind, ts, action_id, ok, result, error }).unwrap_or_default()
}

/// Renders `chunk`: a piece of process output.
pub fn chunk(ts: Millis, action_id: &QualifiedAction, stream: &str, piece: &OutputPiece) -> String {
    let mut body = json!({"type": "chunk", "ts": ts, "action_id": action_id, "stream": stream,
        "offset": piece.offset, "data": piece.data, "encoding": piece.encoding.name()});
    if piece.truncated {
        body["truncated"] = true.into();
    }
    body.to_string()
}

/// Renders the event that output of a process is dropped; sent once for each process.
pub fn throttled(ts: Millis, action_id: &QualifiedAction, stream: &str) -> String {
    let data = json!({"process_id": action_id, "stream": stream});
    json!({"type": "system", "ts": ts, "name": "process.output.throttled", "action_id": action_id, "data": data})
        .to_string()
}

/// Renders `ping`, whose answer confirms that every earlier message was read.
pub fn ping(ts: Millis) -> String {
    json!({"type": "ping", "ts": ts}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::protocol::action::{OutputEncoding, OutputStream};
    use turnway_wire::runner::FromRunner;

    const ID: &str = "0190f4a0-0000-7000-8000-000000000001";

    fn id() -> EventId {
        EventId::parse(ID).expect("an id")
    }

    /// Covers: S-13.
    #[test]
    fn gateway_messages_are_parsed() {
        let execute = json!({"type": "execute", "ts": 5, "action_id": ID, "run_id": "r", "session_id": "s1", "tool": "t",
            "args": {"x": 1}, "deadline_ts": 9});
        let Ok(GatewayMessage::Execute(parsed)) = GatewayMessage::parse(&execute.to_string()) else {
            panic!("an execute")
        };
        assert_eq!((parsed.action_id, parsed.session.to_string(), parsed.tool.as_str()), (id(), "s1".to_owned(), "t"));
        assert_eq!((parsed.args, parsed.ts, parsed.deadline), (Json(json!({"x": 1})), Millis(5), Millis(9)));
        for missing in ["action_id", "session_id", "tool", "ts", "deadline_ts"] {
            let mut less = execute.clone();
            less.as_object_mut().expect("an object").remove(missing);
            assert!(GatewayMessage::parse(&less.to_string()).is_err_and(|why| why.0.contains(missing)), "{missing}");
        }
        let read = |body: Value| GatewayMessage::parse(&body.to_string());
        assert_eq!(
            read(json!({"type": "signal", "action_id": ID})),
            Ok(GatewayMessage::Signal { action_id: id().into() })
        );
        assert_eq!(
            read(json!({"type": "query", "action_id": ID})),
            Ok(GatewayMessage::Query { action_id: id().into() })
        );
        assert_eq!(read(json!({"type": "pong"})), Ok(GatewayMessage::Pong));
        assert_eq!(read(json!({"type": "news"})), Ok(GatewayMessage::UnknownType));
        assert_eq!(read(json!({})), Err(InvalidGatewayMessage("type is missing")));
        assert!(GatewayMessage::parse("x").is_err() && GatewayMessage::parse("[]").is_err());
    }

    /// Covers: LN-EV7: a gateway parses what the executor renders.
    #[test]
    fn executor_messages_are_parsed_by_the_gateway() {
        let read = |text: &str| {
            let body: Value = serde_json::from_str(text).expect("JSON");
            let kind = body["type"].as_str().expect("a type").to_owned();
            (FromRunner::parse(&kind, text).expect("a runner's").expect("well said"), body)
        };
        assert_eq!(
            read(&invoked(Millis(1), &id().into(), Some(7))).0,
            FromRunner::Invoked { action_id: id().into(), pid: Some(7) }
        );
        assert_eq!(
            read(&invoked(Millis(1), &id().into(), None)).0,
            FromRunner::Invoked { action_id: id().into(), pid: None }
        );
        let outcome = ToolOutcome { ok: false, result: Some(Json(json!(1))), error: Some(ToolError::of("c", "m")) };
        let (message, _) = read(&result(Millis(1), &id().into(), &outcome));
        let ToolOutcome { ok, result, error } = outcome;
        assert_eq!(message, FromRunner::Result { action_id: id().into(), ok, result, error });
        let piece = OutputPiece { offset: 3, data: "hi".to_owned(), encoding: OutputEncoding::Utf8, truncated: true };
        let (message, body) = read(&chunk(Millis(1), &id().into(), "stdout", &piece));
        let FromRunner::Chunk { printed, session: None } = message else { panic!("a chunk") };
        assert_eq!((printed.action_id, printed.stream, printed.offset), (id(), OutputStream::Stdout, 3));
        assert_eq!((printed.data.reveal(), printed.truncated), ("hi", true));
        assert_eq!((&body["offset"], &body["data"], &body["truncated"]), (&json!(3), &json!("hi"), &json!(true)));
        let FromRunner::System { action_id, name, .. } = read(&throttled(Millis(1), &id().into(), "stderr")).0 else {
            panic!("of its machine")
        };
        assert_eq!((action_id, name.as_str()), (Some(id().into()), "process.output.throttled"));
        assert!(ping(Millis(1)).contains("ping"));
    }
}
