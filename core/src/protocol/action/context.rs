//! The state of actions that an agent is sent along with an input.
use super::ToolError;
use crate::id::{AgentEventId, AgentId, EventId, RunId, ToolName};
use crate::protocol::json::Json;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// Open and ended actions, sent to an agent with an input as `context.open_actions` and `context.ended_actions`.
/// Derived from the log alone (EV-C6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionsContext {
    /// Open actions of the whole session.
    pub open_actions: Vec<OpenAction>,
    /// Ended actions of this agent that the agent may not know to have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended_actions: Vec<EndedAction>,
}

/// An open action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAction {
    pub action_id: EventId,
    /// The agent's own name for the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<AgentEventId>,
    /// The agent that requested the action.
    pub agent_id: AgentId,
    pub run_id: RunId,
    pub tool: ToolName,
    pub state: OpenState,
    /// Set for a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_id: Option<EventId>,
    /// The time at which the action has ended at the latest.
    pub deadline_ts: Millis,
}

/// The progress of an open action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OpenState {
    /// No runner has started it.
    Requested,
    /// A runner has started it.
    Running,
}

/// An ended action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedAction {
    pub action_id: EventId,
    /// The agent's own name for the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<AgentEventId>,
    pub tool: ToolName,
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
}
