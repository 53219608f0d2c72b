//! Classification of facts by their type.
use super::{Fact, REPLACED, ROLLED_BACK, Scope};

impl Fact {
    /// Returns the fact's `type` on the wire.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SessionOpened { .. } => "session.opened",
            Self::SessionClosing { .. } => "session.closing",
            Self::SessionClosed { .. } => "session.closed",
            Self::SessionNotice { .. } => "session.notice",
            Self::AgentSwitched { .. } => "agent.switched",
            Self::AgentAdding(_) => "agent.adding",
            Self::AgentAdded(_) => "agent.added",
            Self::AgentAddFailed(_) => "agent.add_failed",
            Self::AgentRemoving(_) => "agent.removing",
            Self::AgentRemoved(_) => "agent.removed",
            Self::AgentRemoveFailed(_) => "agent.remove_failed",
            Self::HandoverRequested(_) => "handover.requested",
            Self::HandoverConfirmed(_) => "handover.confirmed",
            Self::HandoverRejected(_) => "handover.rejected",
            Self::AgentAction(_) => "agent.action",
            Self::ToolInvoke(_) => "tool.invoke",
            Self::ToolResult(_) => "tool.result",
            Self::ProcessSpawned(_) => "process.spawned",
            Self::ProcessProgress(_) => "process.progress",
            Self::ProcessExited(_) => "process.exited",
            Self::ProcessCanceled(_) => "process.canceled",
            Self::SystemEvent(_) => "system.event",
            Self::UserMessage { .. } => "user.message",
            Self::TurnAdmitted { .. } => "turn.admitted",
            Self::AgentSteerAcked { .. } => "agent.steer.acked",
            Self::RunStarted { .. } => "run.started",
            Self::RunRestarted { .. } => "run.restarted",
            Self::RunResumed { .. } => "run.resumed",
            Self::AgentInvokeStarted { .. } => "agent.invoke.started",
            Self::AgentStreamDelta { .. } => "agent.stream.delta",
            Self::AgentInvokeDone { .. } => "agent.invoke.done",
            Self::RunState { .. } => "run.state",
            Self::RunSuspended { .. } => "run.suspended",
            Self::RunCancelling { .. } => "run.cancelling",
            Self::RunDone { .. } => "run.done",
            Self::RunFailed { .. } => "run.failed",
            Self::RunCancelled { .. } => "run.cancelled",
        }
    }
    /// Returns whether the fact ends a turn that is to be treated as never asked.
    pub fn retracts_turn(&self) -> bool {
        matches!(self, Self::RunCancelled { reason, .. } if [ROLLED_BACK, REPLACED].contains(&reason.as_str()))
    }
    /// Returns whether a transaction begins with the fact; the fact's id then names the transaction.
    pub fn starts_transaction(&self) -> bool {
        matches!(
            self,
            Self::AgentAdding(_) | Self::AgentRemoving(_) | Self::HandoverRequested(_) | Self::AgentAction(_)
        )
    }
    /// Returns whether the fact may wait and be written with the next fact, because it only records that an attempt
    /// goes well. Effects that depend on such a fact, such as steering a started run, wait for it in the outbox.
    pub fn is_deferrable(&self) -> bool {
        matches!(self, Self::AgentInvokeStarted { .. } | Self::RunState { scope: Scope::Run, .. })
    }
    /// Returns whether the fact ends a turn.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::RunDone { .. } | Self::RunFailed { .. } | Self::RunCancelled { .. })
    }
}
