//! Facts: what a session's log consists of. Stored as the JSON envelope of the protocol, because
//! they outlive releases.
use crate::id::{AgentId, Epoch, EventId, MessageId, RequestId, RunId, Seq, SessionKey, UserId};
use crate::private::Private;
use crate::protocol::agent::{Mark, StopReason};
use crate::protocol::input::{Message, Strategy};
use crate::protocol::json::Json;
use crate::protocol::refusal::Code;
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
    },
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
        /// What caused it: `user`, `interrupt`, `session_close`.
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
        /// What the agent called it, where it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_code: Option<String>,
        /// Bytes of the partial text, which stays in the transcript, marked incomplete.
        text_bytes: u64,
    },
    /// The turn was cancelled.
    #[serde(rename = "run.cancelled")]
    RunCancelled {
        /// The last attempt; 0 if it never began.
        attempt: u32,
        /// What caused it: `user`, `interrupt`, `session_close`.
        reason: String,
        /// The agent did not acknowledge in time.
        #[serde(default)]
        forced: bool,
        /// Bytes of the partial text, which stays in the transcript, marked incomplete.
        text_bytes: u64,
    },
}

impl Fact {
    /// Its `type`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SessionOpened { .. } => "session.opened",
            Self::SessionClosing { .. } => "session.closing",
            Self::SessionClosed { .. } => "session.closed",
            Self::SessionNotice { .. } => "session.notice",
            Self::AgentSwitched { .. } => "agent.switched",
            Self::UserMessage { .. } => "user.message",
            Self::TurnAdmitted { .. } => "turn.admitted",
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
    /// Whether a turn ends with it.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::RunDone { .. } | Self::RunFailed { .. } | Self::RunCancelled { .. })
    }
}

/// One fact with what is said about every fact. Its place and epoch are the log's to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub id: EventId,
    /// When it was decided, by the store's clock.
    #[serde(with = "crate::time::rfc3339")]
    pub time: Millis,
    /// Who caused it: `user:<id>`, `agent:<id>` or `turnway`.
    pub source: Arc<str>,
    /// The chain it belongs to: its turn's id, or its own.
    pub correlation_id: Arc<str>,
    /// The fact it follows from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<EventId>,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Arc<str>>,
    /// The turn it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// What.
    #[serde(flatten)]
    pub fact: Fact,
}

/// A fact in its place: the envelope of protocol.md §4, a CloudEvents 1.0 shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<E> {
    /// `1.0`.
    pub specversion: String,
    /// Whose.
    pub session_id: String,
    /// Where.
    pub seq: Seq,
    /// By which ownership.
    pub epoch: Epoch,
    /// What.
    #[serde(flatten)]
    pub entry: E,
}

impl Entry {
    /// The envelope as JSON: what the store keeps and what `events` shows.
    pub fn to_json(&self, key: &SessionKey, seq: Seq, epoch: Epoch) -> String {
        let session_id = key.session.as_str().to_owned();
        let envelope = Envelope { specversion: "1.0".to_owned(), session_id, seq, epoch, entry: self };
        // Facts have string keys and finite numbers only, so they always serialise.
        serde_json::to_string(&envelope).unwrap_or_default()
    }
    /// Reads an envelope back.
    pub fn from_json(json: &str) -> Result<Envelope<Self>, serde_json::Error> {
        serde_json::from_str(json)
    }
    /// Bytes it takes in a queue, a read or a frame: an estimate that is the same everywhere.
    pub fn weight(&self) -> usize {
        let content = match &self.fact {
            Fact::UserMessage { message, .. } => match &message.content {
                crate::protocol::input::Content::Text(text) => text.len(),
                crate::protocol::input::Content::Parts(parts) => parts.len() * 512,
            },
            Fact::AgentStreamDelta { text, .. } => text.reveal().len(),
            Fact::SessionOpened { .. }
            | Fact::SessionClosing { .. }
            | Fact::SessionClosed { .. }
            | Fact::SessionNotice { .. }
            | Fact::AgentSwitched { .. }
            | Fact::TurnAdmitted { .. }
            | Fact::RunStarted { .. }
            | Fact::RunRestarted { .. }
            | Fact::RunResumed { .. }
            | Fact::AgentInvokeStarted { .. }
            | Fact::AgentInvokeDone { .. }
            | Fact::RunState { .. }
            | Fact::RunSuspended { .. }
            | Fact::RunCancelling { .. }
            | Fact::RunDone { .. }
            | Fact::RunFailed { .. }
            | Fact::RunCancelled { .. } => 0,
        };
        content + 512
    }
}

#[cfg(test)]
mod tests;
