//! What an agent is told of actions with an input.
use super::ToolError;
use crate::id::{AgentId, EventId, RunId, SaidId, ToolName};
use crate::protocol::json::Json;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// What an agent is told of actions with an input, as `context.open_actions` and `context.ended_actions`: what the log
/// says, and nothing else (EV-C6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionsContext {
    /// Those that have begun and not ended, of the whole session.
    pub open_actions: Vec<OpenAction>,
    /// Its own that have ended, and of which it may not know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended_actions: Vec<EndedAction>,
}

/// One that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAction {
    /// Its name.
    pub action_id: EventId,
    /// What its agent calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SaidId>,
    /// Who has asked.
    pub agent_id: AgentId,
    /// In which run.
    pub run_id: RunId,
    /// Which tool.
    pub tool: ToolName,
    /// How far it is.
    pub state: OpenState,
    /// Of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_id: Option<EventId>,
    /// When it is over at the latest.
    pub deadline_ts: Millis,
}

/// How far an action is that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OpenState {
    /// No runner has begun.
    Requested,
    /// One has.
    Running,
}

/// One that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedAction {
    /// Its name.
    pub action_id: EventId,
    /// What its agent calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SaidId>,
    /// Which tool.
    pub tool: ToolName,
    /// Whether it worked.
    pub ok: bool,
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// Why it did not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
}
