//! One turn as its facts tell it: where it is, or how it ended.
use serde::Serialize;
use turnway_core::id::{AgentId, MessageId, RunId, Seq, SessionId, UserId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::entry::{Entry, Fact, Scope};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// A turn. It knows as much as the facts that it was given say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// Which.
    pub run_id: RunId,
    /// Where.
    pub session_id: SessionId,
    /// `QUEUED`, `ROUTING`, `RUNNING`, `CANCELLING`; in the end `completed`, `failed` or `cancelled`, or
    /// only `ended`, where how it did is forgotten.
    pub status: &'static str,
    /// Who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// What opened it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// Who answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The run that its message was handed to while that was open; in the end, if it has become part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_run_id: Option<RunId>,
    /// 0 until it starts.
    pub attempt: u32,
    /// Bytes of that attempt's text that are recorded; in the end, that count.
    pub text_bytes: u64,
    /// Why the agent stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// As the agent counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Json>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Trouble>,
    /// When its message was taken up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_ts: Option<Millis>,
    /// When its first attempt began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ts: Option<Millis>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ts: Option<Millis>,
    /// Its last fact; 0 before there is one.
    pub seq: Seq,
    /// Some of its facts are forgotten.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trimmed: bool,
}

/// Why a turn failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// What kind.
    pub code: Code,
    /// For a person.
    pub message: String,
    /// Whether the same input may fare better.
    pub retryable: bool,
    /// When to try, milliseconds, where the agent said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What the agent said of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<TroubleDetail>,
}

/// What an agent said of a turn that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TroubleDetail {
    /// Its own code, or that of the plugin that refused the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_code: Option<String>,
    /// The beginning of its error's body; only operators are shown it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_body: Option<Private<String>>,
}

// === impl Run ===

impl Run {
    /// An input that was accepted and of which nothing was recorded yet.
    pub fn new(run_id: RunId) -> Self {
        Self {
            session_id: run_id.session(),
            run_id,
            status: "QUEUED",
            user_id: None,
            message_id: None,
            agent_id: None,
            host_run_id: None,
            attempt: 0,
            text_bytes: 0,
            stop_reason: None,
            usage: None,
            error: None,
            created_ts: None,
            started_ts: None,
            ended_ts: None,
            seq: Seq(0),
            trimmed: false,
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended_ts.is_some()
    }

    /// It has ended, and the fact that says how is forgotten.
    pub fn forget_end(&mut self) {
        self.status = "ended";
    }

    /// Takes the next fact of its session; those of other turns change nothing.
    pub fn take(&mut self, seq: Seq, entry: &Entry) {
        if entry.run_id.as_ref() != Some(&self.run_id) {
            return;
        }
        self.seq = seq;
        match &entry.fact {
            Fact::UserMessage { message_id, user, agent_id, .. } => {
                (self.user_id, self.message_id) = (Some(user.clone()), Some(message_id.clone()));
                (self.agent_id, self.created_ts) = (agent_id.clone(), Some(entry.time));
            }
            Fact::TurnAdmitted { agent_id, host_run_id, .. } => {
                (self.agent_id, self.host_run_id) = (Some(agent_id.clone()), host_run_id.clone());
            }
            Fact::RunStarted { agent_id, attempt, .. } => {
                self.begin(agent_id, *attempt);
                self.started_ts = Some(entry.time);
            }
            Fact::RunRestarted { agent_id, attempt, .. } => self.begin(agent_id, *attempt),
            Fact::AgentInvokeStarted { .. } | Fact::RunState { scope: Scope::Run, .. } => {
                if self.status == "ROUTING" {
                    self.status = "RUNNING";
                }
            }
            Fact::AgentStreamDelta { attempt, offset, text, .. } => {
                self.attempt = *attempt;
                self.text_bytes = offset + text.reveal().len() as u64;
            }
            Fact::RunCancelling { .. } => self.status = "CANCELLING",
            Fact::RunDone { attempt, stop_reason, text_bytes, usage, host_run_id, .. } => {
                self.end(entry, "completed", *attempt, *text_bytes);
                (self.stop_reason, self.usage) = (Some(*stop_reason), usage.clone());
                self.host_run_id.clone_from(host_run_id);
            }
            Fact::RunFailed { attempt, text_bytes, .. } => {
                self.end(entry, "failed", *attempt, *text_bytes);
                self.error = trouble(&entry.fact);
            }
            Fact::RunCancelled { attempt, text_bytes, .. } => {
                self.end(entry, "cancelled", *attempt, *text_bytes);
            }
            Fact::SessionOpened { .. }
            | Fact::SessionClosing { .. }
            | Fact::SessionClosed { .. }
            | Fact::SessionNotice { .. }
            | Fact::AgentSwitched { .. }
            | Fact::AgentAdding(_)
            | Fact::AgentAdded(_)
            | Fact::AgentAddFailed(_)
            | Fact::AgentRemoving(_)
            | Fact::AgentRemoved(_)
            | Fact::AgentRemoveFailed(_)
            | Fact::HandoverRequested(_)
            | Fact::HandoverConfirmed(_)
            | Fact::HandoverRejected(_)
            | Fact::AgentAction(_)
            | Fact::ToolInvoke(_)
            | Fact::ToolResult(_)
            | Fact::ProcessSpawned(_)
            | Fact::ProcessProgress(_)
            | Fact::ProcessExited(_)
            | Fact::ProcessCanceled(_)
            | Fact::SystemEvent(_)
            | Fact::AgentInvokeDone { .. }
            | Fact::AgentSteerAcked { .. }
            | Fact::RunState { scope: Scope::Agent, .. }
            | Fact::RunResumed { .. }
            | Fact::RunSuspended { .. } => {}
        }
    }

    fn begin(&mut self, agent_id: &AgentId, attempt: u32) {
        self.agent_id = Some(agent_id.clone());
        (self.status, self.attempt, self.text_bytes) = ("ROUTING", attempt, 0);
    }

    fn end(&mut self, entry: &Entry, status: &'static str, attempt: u32, text_bytes: u64) {
        self.ended_ts = Some(entry.time);
        (self.status, self.attempt, self.text_bytes) = (status, attempt, text_bytes);
    }
}

fn trouble(fact: &Fact) -> Option<Trouble> {
    let Fact::RunFailed { code, message, agent_code, retry_after_ms, agent_body, .. } = fact else {
        return None;
    };
    let is_said = agent_code.is_some() || agent_body.is_some();
    let (agent_code, agent_body) = (agent_code.clone(), agent_body.clone());
    let detail = is_said.then_some(TroubleDetail { agent_code, agent_body });
    let (message, retryable, retry_after_ms) = (message.clone(), code.retryable(), *retry_after_ms);
    Some(Trouble { code: *code, message, retryable, retry_after_ms, detail })
}

#[cfg(test)]
mod tests;
