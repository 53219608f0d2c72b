//! Actions: requests of an agent for a tool or a statement, their execution by tool runners, and their results
//! (protocol.md §1.6, §1.7). The session machine, the runner machines and the wire use these types.
mod context;

pub use context::{ActionsContext, EndedAction, OpenAction, OpenState};

use crate::id::{AgentEventId, AgentId, Epoch, EventId, RunId, RunnerId, Seq, SessionKey, SystemName, ToolName};
use crate::private::Private;
use crate::protocol::agent::EventMark;
use crate::protocol::entry::Entry;
use crate::protocol::json::Json;
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The tool whose action stays open while the process that it starts runs.
pub const SPAWN_TOOL: &str = "process.spawn";
/// Tools that end such a process; the process then counts as cancelled.
pub const KILL_TOOLS: [&str; 2] = ["process.kill", "process.signal"];

/// A request of an agent for an action during its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionRequest {
    /// The agent's own name for the action: a request with the same name in the same run is the same action (EV-N5).
    pub name: Option<AgentEventId>,
    pub what: ActionSpec,
    /// The action's time limit; `None`: the default.
    pub timeout: Option<Duration>,
}

/// The content of an action (EV-E3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", try_from = "ActionSpecFields")]
pub enum ActionSpec {
    /// A statement that needs no execution.
    Say { text: Private<String> },
    /// A call of a tool.
    ToolCall { tool: ToolName, args: Json },
}

/// The stored form of a [`ActionSpec`]. serde reads an internally tagged enum only through a buffered form that cannot
/// hold every number.
#[derive(Deserialize)]
struct ActionSpecFields {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<Private<String>>,
    #[serde(default)]
    tool: Option<ToolName>,
    #[serde(default)]
    args: Option<Json>,
}

/// The stored form of an [`ActionRequested`], for the same reason.
#[derive(Deserialize)]
struct ActionRequestedFields {
    action_id: EventId,
    #[serde(default)]
    name: Option<AgentEventId>,
    agent_id: AgentId,
    attempt: u32,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<Private<String>>,
    #[serde(default)]
    tool: Option<ToolName>,
    #[serde(default)]
    args: Option<Json>,
    #[serde(default)]
    deadline_ms: Option<Millis>,
    #[serde(default)]
    mark: Option<EventMark>,
}

/// The fact that an agent has requested an action: `agent.action`.
///
/// The id of this fact is the action's id (EV-C3). The fact is durable before any runner is asked, and a repeated
/// request never starts the same action twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ActionRequestedFields")]
pub struct ActionRequested {
    /// The id of this fact.
    pub action_id: EventId,
    /// The agent's own name for the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<AgentEventId>,
    pub agent_id: AgentId,
    pub attempt: u32,
    #[serde(flatten)]
    pub what: ActionSpec,
    /// The time at which the action has ended at the latest, if it needs execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<Millis>,
    /// The attempt's recorded position including this fact, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<EventMark>,
}

/// The fact that a runner has started an action: `tool.invoke`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInvoked {
    pub action_id: EventId,
    pub tool: ToolName,
    pub args: Json,
    pub runner_id: RunnerId,
}

/// The fact that an action has ended: `tool.result`. Only the first one of an action counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    pub action_id: EventId,
    /// The agent's own name for the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<AgentEventId>,
    pub tool: ToolName,
    pub ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
}

/// The error of a tool: the runner's own code, or one of [`crate::session::Actions`]'s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolError {
    /// A stable code, for programs.
    pub code: String,
    /// A description, for people.
    pub message: Private<String>,
}

/// A fact about a process: `process.spawned`, `process.progress`, `process.exited`, `process.canceled`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReported {
    pub action_id: EventId,
    /// The process, named after its action, so that a repeated request starts no second process (EV-N6).
    pub process_id: EventId,
    /// The operating system's process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// True if the exit status is unknown because the runner is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abnormal_exit: bool,
    /// Data from the runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
}

/// A fact about the machine that an action runs on, as reported by its runner: `system.event` (EV-E7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemReported {
    /// An action of the session that runs on that machine.
    pub action_id: EventId,
    pub runner_id: RunnerId,
    /// The runner's name for the event, such as `battery.low`.
    pub name: SystemName,
    /// Data from the runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
}

/// A chunk of output of an action's process: shown live, and never logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessOutput {
    pub action_id: EventId,
    pub stream: OutputStream,
    /// Position of the chunk's first byte in that stream.
    pub offset: u64,
    /// At most [`crate::limits::OUTPUT_CHUNK_BYTES_MAX`] bytes, in `encoding`.
    pub data: Private<Arc<str>>,
    pub encoding: OutputEncoding,
    /// True if output before this chunk was left out.
    pub truncated: bool,
}

/// An output stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// An encoding of output bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputEncoding {
    Utf8,
    /// Base64 (RFC 4648 §4), for bytes that are not UTF-8.
    Base64,
}

/// An order of a session to tool runners. It leaves the process only after the fact that justifies it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolOrder {
    Execute(Box<ToolExecution>),
    /// Stop the action: it has ended for the gateway.
    Signal {
        action_id: EventId,
        /// The POSIX name of the signal.
        signal: &'static str,
        /// The runner of the action, if known.
        runner: Option<RunnerId>,
    },
    /// Ask for the state of an action that an earlier owner has requested.
    Query {
        key: SessionKey,
        action_id: EventId,
        tool: ToolName,
        /// The runner of the action, if known.
        runner: Option<RunnerId>,
        /// The time at which the action has ended at the latest.
        deadline: Millis,
    },
}

/// An order to execute a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolExecution {
    pub key: SessionKey,
    pub run_id: RunId,
    pub action_id: EventId,
    pub tool: ToolName,
    /// Arguments as JSON.
    pub args: Private<String>,
    /// The time at which the action has ended at the latest.
    pub deadline: Millis,
    /// The runner that has to execute it, if the call is about a process there.
    pub runner: Option<RunnerId>,
}

/// A report about an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolReport {
    /// A runner has started the action.
    Invoked {
        runner: RunnerId,
        /// The operating system's process id, for a process.
        pid: Option<u64>,
    },
    /// The runner's progress data.
    Progress(Json),
    /// An event of the runner's machine.
    System {
        runner: RunnerId,
        /// The runner's name for the event.
        name: SystemName,
        /// Data from the runner.
        data: Option<Json>,
    },
    /// Output of the process.
    Output(Box<ProcessOutput>),
    /// The action has ended.
    Ended { ok: bool, result: Option<Json>, error: Option<ToolError> },
    /// No runner that could have the action knows of it.
    Unknown,
    /// No runner with the tool is connected.
    NoRunner,
    /// The runner is gone and has not come back.
    Lost,
}

/// A fact that is sent to a running agent, about the agent's actions or of a subscribed type, with its position in
/// the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactDelivery {
    pub key: SessionKey,
    pub run_id: RunId,
    pub attempt: u32,
    /// The receiving agent.
    pub agent_id: AgentId,
    pub seq: Seq,
    /// The ownership that recorded the fact.
    pub epoch: Epoch,
    pub entry: Arc<Entry>,
}

// === impl ActionSpec ===

impl TryFrom<ActionSpecFields> for ActionSpec {
    type Error = &'static str;

    fn try_from(body: ActionSpecFields) -> Result<Self, Self::Error> {
        match (body.kind.as_str(), body.text, body.tool) {
            ("say", Some(text), _) => Ok(Self::Say { text }),
            ("tool_call", _, Some(tool)) => Ok(Self::ToolCall { tool, args: body.args.unwrap_or_default() }),
            ("say" | "tool_call", ..) => Err("action has missing fields"),
            _ => Err("action has an unknown type"),
        }
    }
}

impl TryFrom<ActionRequestedFields> for ActionRequested {
    type Error = &'static str;

    fn try_from(body: ActionRequestedFields) -> Result<Self, Self::Error> {
        let ActionRequestedFields { action_id, name, agent_id, attempt, kind, text, tool, args, deadline_ms, mark } =
            body;
        let what = ActionSpec::try_from(ActionSpecFields { kind, text, tool, args })?;
        Ok(Self { action_id, name, agent_id, attempt, what, deadline_ms, mark })
    }
}

impl ActionSpec {
    /// Returns the size of the agent's content in it, in bytes, as a fact counts it.
    pub fn weight(&self) -> usize {
        match self {
            Self::Say { text } => text.reveal().len(),
            Self::ToolCall { args, .. } => crate::protocol::json::json_bytes(args),
        }
    }
}

// === impl OutputStream ===

impl OutputStream {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

// === impl OutputEncoding ===

impl OutputEncoding {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf8",
            Self::Base64 => "base64",
        }
    }
}

// === impl ToolError ===

impl ToolError {
    /// Creates an error of the gateway itself.
    pub fn of(code: &str, message: &str) -> Self {
        Self { code: code.to_owned(), message: Private(message.to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Covers: EV-E3, EV-E5.
    #[test]
    fn requested_action_serialises_in_protocol_form() {
        let requested = ActionRequested {
            action_id: EventId::new(Millis(1), 1),
            name: Some(AgentEventId::parse("a1").expect("a name")),
            agent_id: AgentId::parse("a").expect("a name"),
            attempt: 1,
            what: ActionSpec::ToolCall {
                tool: ToolName::parse("sh.run").expect("a name"),
                args: Json(json!({"x": [1]})),
            },
            deadline_ms: Some(Millis(7)),
            mark: None,
        };
        let written = serde_json::to_value(&requested).expect("it is written");
        assert_eq!(
            (&written["type"], &written["tool"], &written["args"]),
            (&json!("tool_call"), &json!("sh.run"), &json!({"x": [1]}))
        );
        assert_eq!(serde_json::from_value::<ActionRequested>(written).ok(), Some(requested.clone()));
        let text = ActionRequested {
            what: ActionSpec::Say { text: Private("hi".to_owned()) },
            deadline_ms: None,
            ..requested
        };
        let written = serde_json::to_value(&text).expect("it is written");
        assert_eq!((&written["type"], &written["text"]), (&json!("say"), &json!("hi")));
        assert_eq!(serde_json::from_value::<ActionRequested>(written).ok(), Some(text));
    }
}
