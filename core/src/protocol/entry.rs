//! Facts: what a session's log consists of. Stored as the JSON envelope of the protocol, because
//! they outlive releases.
mod envelope;
mod kind;
mod reading;

use crate::id::{AgentId, MessageId, RequestId, RunId, UserId};
use crate::private::Private;
use crate::protocol::action::{ActionAsked, ProcessTold, SystemTold, ToolEnded, ToolInvoked};
use crate::protocol::agent::{Mark, StopReason};
use crate::protocol::handover::{HandoverAsked, HandoverConfirmed, HandoverRejected};
use crate::protocol::input::{Message, Strategy};
use crate::protocol::json::Json;
use crate::protocol::member::{ChangeAsked, ChangeDone, ChangeFailed};
use crate::protocol::refusal::Code;
use crate::protocol::steer::SteerOutcome;
use crate::time::Millis;
pub use envelope::{Entry, Envelope};
use serde::{Deserialize, Serialize};

/// Why a turn was cancelled whose input another stands in for, as if only that had been said.
pub const REPLACED: &str = "replaced";
/// Why a turn was cancelled that is left out of the transcript, question and answer; its facts stay (ST-6).
pub const ROLLED_BACK: &str = "rollback";

/// What the owner decided to do with an accepted input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// It starts at once.
    Run,
    /// It waits.
    Queued,
    /// It cancels what runs and starts next.
    Interrupts,
    /// It is handed to what runs.
    Steered,
}

/// Whose state a `run.state` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The run's, in the gateway's words.
    Run,
    /// The agent's own, unchanged.
    Agent,
}

/// One durable fact. The variants' names on the wire are the `type`s of protocol.md §4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum Fact {
    /// The session exists and is open (again).
    #[serde(rename = "session.opened")]
    SessionOpened {
        /// Whose it is.
        user: UserId,
        /// Its members, in order.
        agents: Vec<AgentId>,
        /// Who answers where nobody is addressed.
        active_agent: AgentId,
        /// Of the request that opened it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// Closing has begun: what speaks is cancelled, what waits is ended.
    #[serde(rename = "session.closing")]
    SessionClosing {
        /// Of the request that closes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// It is closed; inputs are refused until it is opened again.
    #[serde(rename = "session.closed")]
    SessionClosed {
        /// Of the request that closed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// Something to tell everyone that changes nothing, such as `NO_ACTIVE_SPEAKING` (SR-C2).
    #[serde(rename = "session.notice")]
    SessionNotice {
        /// Its name on the wire.
        name: String,
        /// Of the request that caused it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// Another member answers from now on (SR-W4).
    #[serde(rename = "agent.switched")]
    AgentSwitched {
        /// Who did.
        from: AgentId,
        /// Who does.
        to: AgentId,
        /// Why.
        reason: String,
        /// What caused it.
        trigger: String,
        /// Of the request, where one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// An agent is to become a member (SR-E2).
    #[serde(rename = "agent.adding")]
    AgentAdding(ChangeAsked),
    /// It is one.
    #[serde(rename = "agent.added")]
    AgentAdded(ChangeDone),
    /// It is none.
    #[serde(rename = "agent.add_failed")]
    AgentAddFailed(ChangeFailed),
    /// A member is to leave, and is asked nothing new from here on (SR-D3, SR-D5).
    #[serde(rename = "agent.removing")]
    AgentRemoving(ChangeAsked),
    /// It has left.
    #[serde(rename = "agent.removed")]
    AgentRemoved(ChangeDone),
    /// It has not, and everything is as it was (RX-9).
    #[serde(rename = "agent.remove_failed")]
    AgentRemoveFailed(ChangeFailed),
    /// An agent asks that another one answer, and a person is asked (SR-F1, SR-F2).
    #[serde(rename = "handover.requested")]
    HandoverRequested(HandoverAsked),
    /// They agree: the other answers from here on (SR-F5).
    #[serde(rename = "handover.confirmed")]
    HandoverConfirmed(HandoverConfirmed),
    /// It came to nothing, and nothing has changed (SR-F9).
    #[serde(rename = "handover.rejected")]
    HandoverRejected(HandoverRejected),
    /// An agent wants something done (EV-E3); its id is the action's name (EV-C3).
    #[serde(rename = "agent.action")]
    AgentAction(ActionAsked),
    /// A tool runner has begun it (EV-E4).
    #[serde(rename = "tool.invoke")]
    ToolInvoke(ToolInvoked),
    /// It is over (EV-E5).
    #[serde(rename = "tool.result")]
    ToolResult(ToolEnded),
    /// A process was started (EV-E6).
    #[serde(rename = "process.spawned")]
    ProcessSpawned(ProcessTold),
    /// A runner tells how far something is (EV-E8).
    #[serde(rename = "process.progress")]
    ProcessProgress(ProcessTold),
    /// The process has ended.
    #[serde(rename = "process.exited")]
    ProcessExited(ProcessTold),
    /// It has ended because somebody wanted it to.
    #[serde(rename = "process.canceled")]
    ProcessCanceled(ProcessTold),
    /// Something of a machine that tools run on (EV-E7).
    #[serde(rename = "system.event")]
    SystemEvent(SystemTold),
    /// Somebody said something.
    #[serde(rename = "user.message")]
    UserMessage {
        /// Its name.
        message_id: MessageId,
        /// Of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
        /// Who.
        user: UserId,
        /// What.
        message: Message,
        /// SHA-256 of what was said before, hex; the text itself is the agent's alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        history_sha256: Option<String>,
        /// To whom, if to somebody.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_id: Option<AgentId>,
        /// What it asked to do while a run is open.
        #[serde(default)]
        strategy: Strategy,
        /// As it came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Json>,
    },
    /// What becomes of it.
    #[serde(rename = "turn.admitted")]
    TurnAdmitted {
        /// Who will answer.
        agent_id: AgentId,
        /// How.
        strategy: Admission,
        /// Inputs before it, where it waits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        position: Option<u32>,
        /// The run that it is handed to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host_run_id: Option<RunId>,
        /// The run whose place it has: that has ended, and was never asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<RunId>,
    },
    /// What the agent that it was handed to makes of an input (ST-8).
    #[serde(rename = "agent.steer.acked")]
    AgentSteerAcked {
        /// Which agent.
        agent_id: AgentId,
        /// In which run.
        host_run_id: RunId,
        /// In which attempt at that.
        attempt: u32,
        /// What it makes of it.
        outcome: SteerOutcome,
    },
    /// The first attempt begins; written before the agent hears of it.
    #[serde(rename = "run.started")]
    RunStarted {
        /// Who answers.
        agent_id: AgentId,
        /// 1.
        attempt: u32,
        /// Of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
        /// When the whole run is over at the latest; a restart does not move it.
        deadline_ms: Millis,
        /// Another owner may let this attempt go on: its agent's events have names.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resumable: bool,
    },
    /// Another attempt begins, with text from 0.
    #[serde(rename = "run.restarted")]
    RunRestarted {
        /// Who answers.
        agent_id: AgentId,
        /// From 2.
        attempt: u32,
        /// Why.
        reason: String,
        /// As of `run.started`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resumable: bool,
    },
    /// The same attempt goes on under another owner; written before its agent is asked for the rest.
    #[serde(rename = "run.resumed")]
    RunResumed {
        /// Who answers.
        agent_id: AgentId,
        /// Which attempt.
        attempt: u32,
        /// Why it had to be.
        reason: String,
    },
    /// The agent has the input (INPUT_ACK).
    #[serde(rename = "agent.invoke.started")]
    AgentInvokeStarted {
        /// Which agent.
        agent_id: AgentId,
        /// Which attempt.
        attempt: u32,
    },
    /// A stretch of the answer, recorded.
    #[serde(rename = "agent.stream.delta")]
    AgentStreamDelta {
        /// Which attempt.
        attempt: u32,
        /// Bytes of this attempt's text before it.
        offset: u64,
        /// The stretch.
        text: Private<String>,
        /// How far the attempt is recorded with it, where that can be said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Mark>,
    },
    /// The agent has said its last word.
    #[serde(rename = "agent.invoke.done")]
    AgentInvokeDone {
        /// Which agent.
        agent_id: AgentId,
        /// Which attempt.
        attempt: u32,
    },
    /// A state on the way.
    #[serde(rename = "run.state")]
    RunState {
        /// Whose.
        scope: Scope,
        /// The word.
        state: String,
        /// More of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<Json>,
        /// How far the attempt is recorded with it, where that can be said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<Mark>,
    },
    /// The attempt was stopped by a node that leaves; it does not count (ownership.md §2.5).
    #[serde(rename = "run.suspended")]
    RunSuspended {
        /// Which attempt.
        attempt: u32,
        /// Why.
        reason: String,
    },
    /// CANCEL was sent; CANCEL_ACK is awaited until the deadline.
    #[serde(rename = "run.cancelling")]
    RunCancelling {
        /// What caused it: `user`, `interrupt`, `rollback`, `session_close`.
        reason: String,
        /// When it is cancelled by force.
        deadline_ms: Millis,
        /// Of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<RequestId>,
    },
    /// The turn is completed. Its text is this attempt's checkpoints, joined.
    #[serde(rename = "run.done")]
    RunDone {
        /// Whose text is the answer.
        attempt: u32,
        /// Why the agent stopped.
        stop_reason: StopReason,
        /// Bytes of the text.
        text_bytes: u64,
        /// SHA-256 of the text, hex.
        text_sha256: String,
        /// As the agent counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Json>,
        /// The run that the input has become part of (ST-7).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host_run_id: Option<RunId>,
    },
    /// The turn has failed.
    #[serde(rename = "run.failed")]
    RunFailed {
        /// The last attempt; 0 if there was none.
        attempt: u32,
        /// Why.
        code: Code,
        /// For a person.
        message: String,
        /// What the agent called it, or the plugin that refused it, where they did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_code: Option<String>,
        /// When to ask again, milliseconds, where the agent said so (`Retry-After`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// The beginning of the agent's error, for operators only: see [`Entry::for_users`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_body: Option<Private<String>>,
        /// Bytes of the partial text, which stays in the transcript, marked incomplete; unless it was rolled back.
        text_bytes: u64,
    },
    /// The turn was cancelled.
    #[serde(rename = "run.cancelled")]
    RunCancelled {
        /// The last attempt; 0 if it never began.
        attempt: u32,
        /// What caused it: `user`, `interrupt`, [`ROLLED_BACK`], [`REPLACED`], `session_close`.
        reason: String,
        /// The agent did not acknowledge in time.
        #[serde(default)]
        forced: bool,
        /// Bytes of the partial text, which stays in the transcript, marked incomplete.
        text_bytes: u64,
    },
}

#[cfg(test)]
mod tests;
