//! The state of one turn, derived from its facts, as `GET …/runs/{id}` returns it.
use serde::Serialize;
use turnway_core::id::{AgentId, MessageId, RunId, Seq, SessionId, UserId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::StopReason;
use turnway_core::protocol::entry::{Entry, Fact, InputFact, RunFact, Scope};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// The state of a turn, as far as the processed facts reveal it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunView {
    pub run_id: RunId,
    pub session_id: SessionId,
    /// `QUEUED`, `ROUTING`, `RUNNING`, `CANCELLING`; at the end `completed`, `failed` or `cancelled`, or `ended` if
    /// the fact with the result has been trimmed.
    pub status: &'static str,
    /// The sender of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// The message that opened the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The answering agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The run that the message was handed to while that run was open; after the end, set only if the message
    /// became part of that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_run_id: Option<RunId>,
    /// 0 until it starts.
    pub attempt: u32,
    /// Recorded bytes of that attempt's text; after the end, the bytes that count.
    pub text_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Token counts in the agent's own format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
    /// Time at which the message was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_ts: Option<Millis>,
    /// Start of the first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ts: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ts: Option<Millis>,
    /// The turn's last fact; 0 before the first fact.
    pub seq: Seq,
    /// Some of the turn's facts have been trimmed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trimmed: bool,
}

/// The error of a failed turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunError {
    pub code: Code,
    /// Text for a person.
    pub message: String,
    /// True if the same input may succeed later.
    pub retryable: bool,
    /// Milliseconds to wait before a repetition, if the agent gave a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The agent's own error, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<RunErrorDetail>,
}

/// The agent's own description of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunErrorDetail {
    /// The agent's own code, or that of the plugin that refused the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_code: Option<String>,
    /// The beginning of the error's body; shown to operators only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_body: Option<Private<String>>,
}

// === impl RunView ===

impl RunView {
    /// Creates the state of an accepted input without recorded facts.
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

    /// Returns whether the turn has ended.
    pub fn has_ended(&self) -> bool {
        self.ended_ts.is_some()
    }

    /// Marks the turn as ended with an unknown result, because the fact with the result has been trimmed.
    pub fn mark_end_trimmed(&mut self) {
        self.status = "ended";
    }

    /// Applies the next fact of the session; facts of other turns change nothing.
    pub fn apply(&mut self, seq: Seq, entry: &Entry) {
        if entry.run_id.as_ref() != Some(&self.run_id) {
            return;
        }
        self.seq = seq;
        match &entry.fact {
            Fact::Input(InputFact::UserMessage { message_id, user, agent_id, .. }) => {
                (self.user_id, self.message_id) = (Some(user.clone()), Some(message_id.clone()));
                (self.agent_id, self.created_ts) = (agent_id.clone(), Some(entry.time));
            }
            Fact::Input(InputFact::Admitted { agent_id, host_run_id, .. }) => {
                (self.agent_id, self.host_run_id) = (Some(agent_id.clone()), host_run_id.clone());
            }
            Fact::Input(InputFact::Gathered { host_run_id }) => self.host_run_id = Some(host_run_id.clone()),
            Fact::Run(RunFact::Started { agent_id, attempt, .. }) => {
                self.begin(agent_id, *attempt);
                self.started_ts = Some(entry.time);
            }
            Fact::Run(RunFact::Restarted { agent_id, attempt, .. }) => self.begin(agent_id, *attempt),
            Fact::Run(RunFact::AgentStarted { .. } | RunFact::State { scope: Scope::Run, .. }) => {
                if self.status == "ROUTING" {
                    self.status = "RUNNING";
                }
            }
            Fact::Run(RunFact::TextDelta { attempt, offset, text, .. }) => {
                self.attempt = *attempt;
                self.text_bytes = offset + text.reveal().len() as u64;
            }
            Fact::Run(RunFact::Cancelling { .. }) => self.status = "CANCELLING",
            Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, usage, host_run_id, .. }) => {
                self.end(entry, "completed", *attempt, *text_bytes);
                (self.stop_reason, self.usage) = (Some(*stop_reason), usage.clone());
                self.host_run_id.clone_from(host_run_id);
            }
            Fact::Run(RunFact::Failed { attempt, text_bytes, .. }) => {
                self.end(entry, "failed", *attempt, *text_bytes);
                self.error = run_error(&entry.fact);
            }
            Fact::Run(RunFact::Cancelled { attempt, text_bytes, .. }) => {
                self.end(entry, "cancelled", *attempt, *text_bytes);
            }
            Fact::Session(_)
            | Fact::Member(_)
            | Fact::Handover(_)
            | Fact::Action(_)
            | Fact::Binding(_)
            | Fact::Delivery(_)
            | Fact::Model(_)
            | Fact::Unknown(_)
            | Fact::Input(InputFact::SteerAcked { .. })
            | Fact::Run(
                RunFact::AgentDone { .. }
                | RunFact::State { scope: Scope::Agent, .. }
                | RunFact::Resumed { .. }
                | RunFact::Suspended { .. },
            ) => {}
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

fn run_error(fact: &Fact) -> Option<RunError> {
    let Fact::Run(RunFact::Failed { code, message, agent_code, retry_after_ms, agent_body, .. }) = fact else {
        return None;
    };
    let is_said = agent_code.is_some() || agent_body.is_some();
    let agent_code = agent_code.clone();
    let agent_body = agent_body.clone();
    let detail = is_said.then_some(RunErrorDetail { agent_code, agent_body });
    let message = message.clone();
    let retryable = code.retryable();
    let retry_after_ms = *retry_after_ms;
    Some(RunError { code: *code, message, retryable, retry_after_ms, detail })
}

#[cfg(test)]
mod tests;
