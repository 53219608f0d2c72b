//! Actions: what an agent wants done besides answering, who does it, and what comes of it (protocol.md §1.6, §1.7).
//!
//! An action's name is the id of the fact that it was asked for (EV-C3). The fact is durable before any runner hears of
//! it, and the same action is never asked for twice, whoever repeats what.
mod context;

pub use context::{ActionsContext, EndedAction, OpenAction, OpenState};

use crate::id::{AgentId, Epoch, EventId, RunId, RunnerId, SaidId, Seq, SessionKey, SystemName, ToolName};
use crate::private::Private;
use crate::protocol::agent::Mark;
use crate::protocol::entry::Entry;
use crate::protocol::json::Json;
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The tool whose action is open as long as the process that it starts.
pub const SPAWN: &str = "process.spawn";
/// Tools that end such a process: it was cancelled, and did not end by itself.
pub const ENDING: [&str; 2] = ["process.kill", "process.signal"];

/// What an agent asks for during its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionWish {
    /// Its own name for it: asked for again in the same run, it is the same action (EV-N5).
    pub name: Option<SaidId>,
    /// What.
    pub what: Doing,
    /// How long it may take; none: as is usual.
    pub timeout: Option<Duration>,
}

/// An agent's next step (EV-E3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", try_from = "DoingBody")]
pub enum Doing {
    /// It tells something; nobody has to do anything.
    Say {
        /// What.
        text: Private<String>,
    },
    /// A tool is to be run.
    ToolCall {
        /// Which.
        tool: ToolName,
        /// With what.
        args: Json,
    },
}

/// A [`Doing`] as it is written: serde reads an enum whose tag stands beside its fields only by way of a form that has no
/// place for every number.
#[derive(Deserialize)]
struct DoingBody {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<Private<String>>,
    #[serde(default)]
    tool: Option<ToolName>,
    #[serde(default)]
    args: Option<Json>,
}

/// An [`ActionAsked`] as it is written, for the same reason.
#[derive(Deserialize)]
struct AskedBody {
    action_id: EventId,
    #[serde(default)]
    name: Option<SaidId>,
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
    mark: Option<Mark>,
}

/// An agent has asked: `agent.action`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AskedBody")]
pub struct ActionAsked {
    /// The action: the id of this fact.
    pub action_id: EventId,
    /// What the agent calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SaidId>,
    /// Who asks.
    pub agent_id: AgentId,
    /// In which attempt.
    pub attempt: u32,
    /// What.
    #[serde(flatten)]
    pub what: Doing,
    /// When it is over at the latest, where anything is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<Millis>,
    /// How far the attempt is recorded with it, where that can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
}

/// A runner has begun: `tool.invoke`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInvoked {
    /// Which action.
    pub action_id: EventId,
    /// Which tool.
    pub tool: ToolName,
    /// With what.
    pub args: Json,
    /// Who does it.
    pub runner_id: RunnerId,
}

/// An action is over: `tool.result`. The first is the only one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEnded {
    /// Which action.
    pub action_id: EventId,
    /// What the agent calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SaidId>,
    /// Which tool.
    pub tool: ToolName,
    /// Whether it worked.
    pub ok: bool,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
}

/// Why a tool did not do what it should: the runner's own code, or one of [`crate::session::Actions`]'s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolError {
    /// Why, for programs.
    pub code: String,
    /// Why, for people.
    pub message: Private<String>,
}

/// What a process does: `process.spawned`, `process.progress`, `process.exited`, `process.canceled`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTold {
    /// Which action.
    pub action_id: EventId,
    /// Which process: named after its action, so that a repeat starts no second one (EV-N6).
    pub process_id: EventId,
    /// As its system calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// It is not known how it ended: its runner is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abnormal_exit: bool,
    /// What its runner says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
}

/// Something of the machine that an action runs on, as its runner tells it: `system.event` (EV-E7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemTold {
    /// An action of the session that runs there.
    pub action_id: EventId,
    /// Who tells it.
    pub runner_id: RunnerId,
    /// The runner's word for it, such as `battery.low`.
    pub name: SystemName,
    /// What the runner says to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
}

/// A piece of what an action's process prints: shown while it runs, and in no log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// Which action.
    pub action_id: EventId,
    /// Where.
    pub stream: Stream,
    /// Which byte of that stream is its first.
    pub offset: u64,
    /// At most [`crate::limits::CHUNK_BYTES_MAX`] bytes, as `encoding` has them.
    pub data: Private<Arc<str>>,
    /// How they are written.
    pub encoding: Encoding,
    /// Something before it was left out.
    pub truncated: bool,
}

/// Which of a process's two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// What it answers.
    Stdout,
    /// What it tells of itself.
    Stderr,
}

/// How bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// As they are: they are a text.
    Utf8,
    /// They are not: RFC 4648 §4.
    Base64,
}

/// What a session wants of tool runners. None leaves the process before the fact that justifies it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolOrder {
    /// Do this.
    Execute(Box<Execute>),
    /// It is over for the gateway: stop it.
    Signal {
        /// Which action.
        action_id: EventId,
        /// How, as systems call it.
        signal: &'static str,
        /// Who does it, where that is known.
        runner: Option<RunnerId>,
    },
    /// What has become of this? An earlier owner has asked for it.
    Query {
        /// Whose session.
        key: SessionKey,
        /// Which action.
        action_id: EventId,
        /// Which tool.
        tool: ToolName,
        /// Who does it, where that is known.
        runner: Option<RunnerId>,
        /// When it is over at the latest.
        deadline: Millis,
    },
}

/// What a runner is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execute {
    /// Whose session.
    pub key: SessionKey,
    /// In which run.
    pub run_id: RunId,
    /// Which action.
    pub action_id: EventId,
    /// Which tool.
    pub tool: ToolName,
    /// With what, as JSON.
    pub args: Private<String>,
    /// When it is over at the latest.
    pub deadline: Millis,
    /// Who has to do it: it is about a process that runs there.
    pub runner: Option<RunnerId>,
}

/// What is heard of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolReport {
    /// A runner has begun.
    Invoked {
        /// Which.
        runner: RunnerId,
        /// Of a process, as its system calls it.
        pid: Option<u64>,
    },
    /// It is on the way.
    Progress(Json),
    /// Something of its runner's machine.
    System {
        /// Which runner.
        runner: RunnerId,
        /// Its word for it.
        name: SystemName,
        /// What it says to it.
        data: Option<Json>,
    },
    /// It prints.
    Printed(Box<Printed>),
    /// It is over.
    Ended {
        /// Whether it worked.
        ok: bool,
        /// What came of it.
        result: Option<Json>,
        /// Why it did not.
        error: Option<ToolError>,
    },
    /// Those who could know of it do not.
    Unknown,
    /// Nobody is there who could do it.
    NoRunner,
    /// Whoever does it is gone and has not come back.
    Lost,
}

/// What an agent is told while it runs, of its actions and of what it has subscribed to: a fact, in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Which session.
    pub key: SessionKey,
    /// Which run.
    pub run_id: RunId,
    /// Which attempt.
    pub attempt: u32,
    /// Whom.
    pub agent_id: AgentId,
    /// Where the fact stands.
    pub seq: Seq,
    /// By which ownership.
    pub epoch: Epoch,
    /// What.
    pub entry: Arc<Entry>,
}

// === impl Doing ===

impl TryFrom<DoingBody> for Doing {
    type Error = &'static str;

    fn try_from(body: DoingBody) -> Result<Self, Self::Error> {
        match (body.kind.as_str(), body.text, body.tool) {
            ("say", Some(text), _) => Ok(Self::Say { text }),
            ("tool_call", _, Some(tool)) => Ok(Self::ToolCall { tool, args: body.args.unwrap_or_default() }),
            ("say" | "tool_call", ..) => Err("an action without its fields"),
            _ => Err("an action of no kind"),
        }
    }
}

impl TryFrom<AskedBody> for ActionAsked {
    type Error = &'static str;

    fn try_from(body: AskedBody) -> Result<Self, Self::Error> {
        let AskedBody { action_id, name, agent_id, attempt, kind, text, tool, args, deadline_ms, mark } =
            body;
        let what = Doing::try_from(DoingBody { kind, text, tool, args })?;
        Ok(Self { action_id, name, agent_id, attempt, what, deadline_ms, mark })
    }
}

impl Doing {
    /// Bytes of what the agent says in it, as a fact weighs them.
    pub fn weight(&self) -> usize {
        match self {
            Self::Say { text } => text.reveal().len(),
            Self::ToolCall { args, .. } => crate::protocol::json::json_bytes(args),
        }
    }
}

// === impl Stream ===

impl Stream {
    /// As the protocol writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

// === impl Encoding ===

impl Encoding {
    /// As the protocol writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf8",
            Self::Base64 => "base64",
        }
    }
}

// === impl ToolError ===

impl ToolError {
    /// One of the gateway's own.
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
    fn what_is_asked_for_is_kept_as_the_protocol_writes_it() {
        let asked = ActionAsked {
            action_id: EventId::new(Millis(1), 1),
            name: Some(SaidId::parse("a1").expect("a name")),
            agent_id: AgentId::parse("a").expect("a name"),
            attempt: 1,
            what: Doing::ToolCall {
                tool: ToolName::parse("sh.run").expect("a name"),
                args: Json(json!({"x": [1]})),
            },
            deadline_ms: Some(Millis(7)),
            mark: None,
        };
        let written = serde_json::to_value(&asked).expect("it is written");
        assert_eq!(
            (&written["type"], &written["tool"], &written["args"]),
            (&json!("tool_call"), &json!("sh.run"), &json!({"x": [1]}))
        );
        assert_eq!(serde_json::from_value::<ActionAsked>(written).ok(), Some(asked.clone()));
        let said =
            ActionAsked { what: Doing::Say { text: Private("hi".to_owned()) }, deadline_ms: None, ..asked };
        let written = serde_json::to_value(&said).expect("it is written");
        assert_eq!((&written["type"], &written["text"]), (&json!("say"), &json!("hi")));
        assert_eq!(serde_json::from_value::<ActionAsked>(written).ok(), Some(said));
    }
}
