//! Facts: the entries of a session's log. Stored as the JSON envelope of the protocol, because facts outlive
//! releases. The session machine decides on them; stores, links and agents carry them.
mod envelope;
mod kind;
mod parse;

use crate::id::{AgentId, MessageId, RequestId, RunId, UserId};
use crate::private::Private;
use crate::protocol::action::{ActionRequested, ProcessReported, SystemReported, ToolInvoked, ToolResult};
use crate::protocol::agent::{EventMark, StopReason};
use crate::protocol::handover::{HandoverConfirmed, HandoverRejected, HandoverRequested};
use crate::protocol::input::{Message, Strategy};
use crate::protocol::json::Json;
use crate::protocol::member::{MemberChangeFailed, MemberChangeRequested, MemberChanged};
use crate::protocol::refusal::Code;
use crate::protocol::steer::SteerOutcome;
use crate::time::Millis;
pub use envelope::{Entry, Envelope};
use serde::{Deserialize, Serialize};

/// The reason of a cancelled turn whose input was replaced by another, as if only the other had been sent.
pub const REPLACED: &str = "replaced";
/// The reason of a cancelled turn that is left out of the transcript, question and answer; its facts stay (ST-6).
pub const ROLLED_BACK: &str = "rollback";

/// The owner's decision on an accepted input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// The input starts at once.
    Run,
    /// The input waits.
    Queued,
    /// The input cancels the open run and starts next.
    Interrupts,
    /// The input is handed to the open run.
    Steered,
}

/// The origin of a `run.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The run's state, in the gateway's words.
    Run,
    /// The agent's own state, unchanged.
    Agent,
}

/// One durable fact. The variants' names on the wire are the `type`s of protocol.md §4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum Fact {
    /// The session exists and is open (again).
    #[serde(rename = "session.opened")]
    SessionOpened {
        /// The user that owns the session.
        user: UserId,
        /// Members, in order.
        agents: Vec<AgentId>,
        /// The agent that answers inputs which address no agent.
        active_agent: AgentId,
        /// Id of the request that opened the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// Closing has started: the open run is cancelled, waiting inputs are ended.
    #[serde(rename = "session.closing")]
    SessionClosing {
        /// Id of the request that closes the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// The session is closed; inputs are refused until it is opened again.
    #[serde(rename = "session.closed")]
    SessionClosed {
        /// Id of the request that closed the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// An announcement to all subscribers that changes nothing, such as `NO_ACTIVE_SPEAKING` (SR-C2).
    #[serde(rename = "session.notice")]
    SessionNotice {
        /// The name on the wire.
        name: String,
        /// Id of the request that caused the notice.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// Another member is active from now on (SR-W4).
    #[serde(rename = "agent.switched")]
    AgentSwitched {
        /// The previous active agent.
        from: AgentId,
        /// The new active agent.
        to: AgentId,
        reason: String,
        /// The cause of the switch.
        trigger: String,
        /// Id of the request, if one caused the switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// An agent is about to become a member (SR-E2).
    #[serde(rename = "agent.adding")]
    AgentAdding(MemberChangeRequested),
    /// The agent has become a member.
    #[serde(rename = "agent.added")]
    AgentAdded(MemberChanged),
    /// The agent could not be added.
    #[serde(rename = "agent.add_failed")]
    AgentAddFailed(MemberChangeFailed),
    /// A member is about to leave, and gets no new inputs from here on (SR-D3, SR-D5).
    #[serde(rename = "agent.removing")]
    AgentRemoving(MemberChangeRequested),
    /// The member has left.
    #[serde(rename = "agent.removed")]
    AgentRemoved(MemberChanged),
    /// The member could not be removed, and nothing has changed (RX-9).
    #[serde(rename = "agent.remove_failed")]
    AgentRemoveFailed(MemberChangeFailed),
    /// An agent requests that another agent takes over, and a person is asked to decide (SR-F1, SR-F2).
    #[serde(rename = "handover.requested")]
    HandoverRequested(HandoverRequested),
    /// The handover is confirmed: the other agent is active from here on (SR-F5).
    #[serde(rename = "handover.confirmed")]
    HandoverConfirmed(HandoverConfirmed),
    /// The handover is rejected, and nothing has changed (SR-F9).
    #[serde(rename = "handover.rejected")]
    HandoverRejected(HandoverRejected),
    /// An agent requests an action (EV-E3); the fact's id is the action's id (EV-C3).
    #[serde(rename = "agent.action")]
    AgentAction(ActionRequested),
    /// A tool runner has started the action (EV-E4).
    #[serde(rename = "tool.invoke")]
    ToolInvoke(ToolInvoked),
    /// The action has ended (EV-E5).
    #[serde(rename = "tool.result")]
    ToolResult(ToolResult),
    /// A process was started (EV-E6).
    #[serde(rename = "process.spawned")]
    ProcessSpawned(ProcessReported),
    /// A runner reports progress of an action (EV-E8).
    #[serde(rename = "process.progress")]
    ProcessProgress(ProcessReported),
    /// The process has ended by itself.
    #[serde(rename = "process.exited")]
    ProcessExited(ProcessReported),
    /// The process has ended because it was cancelled.
    #[serde(rename = "process.canceled")]
    ProcessCanceled(ProcessReported),
    /// An event of a machine that tools run on (EV-E7).
    #[serde(rename = "system.event")]
    SystemEvent(SystemReported),
    /// A user's message.
    #[serde(rename = "user.message")]
    UserMessage {
        message_id: MessageId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
        user: UserId,
        message: Message,
        /// SHA-256 of the earlier messages, hex; the messages themselves are sent to the agent only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        history_sha256: Option<String>,
        /// The addressed agent, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_id: Option<AgentId>,
        /// The strategy that the client asked for.
        #[serde(default)]
        strategy: Strategy,
        /// Passed on unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Json>,
    },
    /// The owner's decision on the input.
    #[serde(rename = "turn.admitted")]
    TurnAdmitted {
        /// The agent that will answer.
        agent_id: AgentId,
        strategy: Admission,
        /// Number of inputs before this one, if it waits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        position: Option<u32>,
        /// The run that the input is handed to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host_run_id: Option<RunId>,
        /// The run whose place the input takes: that run has ended, and its agent was never asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<RunId>,
    },
    /// The answer of the running agent to an input that it was handed (ST-8).
    #[serde(rename = "agent.steer.acked")]
    AgentSteerAcked {
        agent_id: AgentId,
        host_run_id: RunId,
        /// The attempt of the host run.
        attempt: u32,
        outcome: SteerOutcome,
    },
    /// The first attempt begins; recorded before the agent gets its order.
    #[serde(rename = "run.started")]
    RunStarted {
        agent_id: AgentId,
        /// Always 1: the first attempt.
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
        /// The time at which the whole run ends at the latest; a restart does not move it.
        deadline_ms: Millis,
        /// True if another owner may resume this attempt: its agent's events have ids.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resumable: bool,
    },
    /// Another attempt begins, with text from offset 0.
    #[serde(rename = "run.restarted")]
    RunRestarted {
        agent_id: AgentId,
        /// Number of the attempt, from 2.
        attempt: u32,
        reason: String,
        /// Same as in `run.started`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resumable: bool,
    },
    /// The same attempt continues under another owner; recorded before its agent is asked for the rest.
    #[serde(rename = "run.resumed")]
    RunResumed {
        agent_id: AgentId,
        attempt: u32,
        /// The reason for the change of owner.
        reason: String,
    },
    /// The agent has the input (INPUT_ACK).
    #[serde(rename = "agent.invoke.started")]
    AgentInvokeStarted { agent_id: AgentId, attempt: u32 },
    /// A recorded part of the answer.
    #[serde(rename = "agent.stream.delta")]
    AgentStreamDelta {
        attempt: u32,
        /// Bytes of this attempt's text before the part.
        offset: u64,
        text: Private<String>,
        /// The attempt's recorded position including this part, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<EventMark>,
    },
    /// The agent has finished its answer.
    #[serde(rename = "agent.invoke.done")]
    AgentInvokeDone { agent_id: AgentId, attempt: u32 },
    /// An intermediate state.
    #[serde(rename = "run.state")]
    RunState {
        scope: Scope,
        state: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<Json>,
        /// The attempt's recorded position including this state, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<EventMark>,
    },
    /// The attempt was stopped by a draining node; it does not count (ownership.md §2.5).
    #[serde(rename = "run.suspended")]
    RunSuspended { attempt: u32, reason: String },
    /// CANCEL was sent; CANCEL_ACK is awaited until the deadline.
    #[serde(rename = "run.cancelling")]
    RunCancelling {
        /// The cause: `user`, `interrupt`, `rollback`, `session_close`.
        reason: String,
        /// The time at which the run is cancelled by force.
        deadline_ms: Millis,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// The turn is completed. Its text is this attempt's checkpoints, joined.
    #[serde(rename = "run.done")]
    RunDone {
        /// The attempt whose text is the answer.
        attempt: u32,
        stop_reason: StopReason,
        text_bytes: u64,
        /// SHA-256 of the text, hex.
        text_sha256: String,
        /// Usage as counted by the agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Json>,
        /// The run that has taken the input (ST-7).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host_run_id: Option<RunId>,
    },
    #[serde(rename = "run.failed")]
    RunFailed {
        /// The last attempt; 0 if there was none.
        attempt: u32,
        code: Code,
        /// For a person.
        message: String,
        /// The agent's own code, or the name of the plugin that refused the turn, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_code: Option<String>,
        /// Milliseconds after which to ask again, if the agent gave a time (`Retry-After`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// The beginning of the agent's error, for operators only: see [`Entry::for_users`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_body: Option<Private<String>>,
        /// Bytes of the partial text, which stays in the transcript, marked incomplete; unless the turn was rolled
        /// back.
        text_bytes: u64,
    },
    #[serde(rename = "run.cancelled")]
    RunCancelled {
        /// The last attempt; 0 if none began.
        attempt: u32,
        /// The cause: `user`, `interrupt`, [`ROLLED_BACK`], [`REPLACED`], `session_close`.
        reason: String,
        /// True if the agent did not acknowledge in time.
        #[serde(default)]
        forced: bool,
        /// Bytes of the partial text, which stays in the transcript, marked incomplete.
        text_bytes: u64,
    },
}

#[cfg(test)]
mod tests;
