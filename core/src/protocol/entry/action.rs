//! Facts of actions: tools, processes and their machines. Called through [`super::Fact`].
use super::family::{FactKind, fact_family};
use crate::protocol::action::{ActionRequested, ProcessReported, SystemReported, ToolInvoked, ToolResult};
use crate::protocol::json::json_bytes;
use serde::{Deserialize, Serialize};

fact_family! {
    /// Facts about actions of agents: tools, processes, and the machines that they run on.
    pub enum ActionFact {
        /// An agent requests an action (EV-E3); the fact's id is the action's id (EV-C3).
        "agent.action" -> "" [starts_transaction] => Requested(ActionRequested),
        /// A tool runner has started the action (EV-E4).
        "tool.invoke" -> "tool_event tool.invoke" => Invoked(ToolInvoked),
        /// The action has ended (EV-E5).
        "tool.result" -> "tool_event tool.result" => Ended(ToolResult),
        /// A process was started (EV-E6).
        "process.spawned" -> "" => ProcessSpawned(ProcessReported),
        /// A runner reports progress of an action (EV-E8).
        "process.progress" -> "" => ProcessProgress(ProcessReported),
        /// The process has ended by itself.
        "process.exited" -> "" => ProcessExited(ProcessReported),
        /// The process has ended because it was cancelled.
        "process.canceled" -> "" => ProcessCanceled(ProcessReported),
        /// An event of a machine that tools run on (EV-E7).
        "system.event" -> "" => SystemEvent(SystemReported),
    }
}

impl ActionFact {
    /// Returns the bytes of content, in addition to the fixed weight of a fact.
    pub(super) fn content_bytes(&self) -> usize {
        match self {
            Self::Requested(requested) => requested.what.weight(),
            Self::Invoked(invoked) => json_bytes(&invoked.args),
            Self::Ended(ended) => json_bytes(&(&ended.result, &ended.error)),
            Self::ProcessSpawned(reported)
            | Self::ProcessProgress(reported)
            | Self::ProcessExited(reported)
            | Self::ProcessCanceled(reported) => json_bytes(&reported.data),
            Self::SystemEvent(reported) => json_bytes(&reported.data),
        }
    }
}
