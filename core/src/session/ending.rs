//! The ways in which a turn ends: each is one fact, and every turn takes exactly one (G3). `run_end` records it.
use crate::id::{InboxPosition, RunId};
use crate::limits;
use crate::private::Private;
use crate::protocol::agent::{AgentFailure, StopReason};
use crate::protocol::input::Strategy;
use crate::protocol::json::Json;
use crate::protocol::refusal::Code;

/// The end of a turn.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// The agent finished its answer.
    Completed { stop: StopReason, usage: Option<Json> },
    Failed {
        code: Code,
        message: String,
        agent_code: Option<String>,
        retry_after_ms: Option<u64>,
        agent_body: Option<Private<String>>,
    },
    /// The turn was cancelled; `answers` is the control entry that did so, if the turn ended at once.
    Cancelled { reason: String, forced: bool, answers: Option<InboxPosition> },
    /// The input became part of another run, which has ended.
    Steered { host: RunId },
}

/// An agent's own message about its failure is cut to this many characters.
const FAILURE_TEXT_MAX: usize = 1_000;

fn truncated(text: &str) -> String {
    text.chars().take(FAILURE_TEXT_MAX).collect()
}

impl From<AgentFailure> for Ending {
    fn from(failure: AgentFailure) -> Self {
        let mut retry_after_ms = None;
        let mut agent_body = None;
        let (code, message, agent_code) = match failure {
            AgentFailure::Unavailable(why) | AgentFailure::Lost(why) => (Code::AgentUnavailable, why, None),
            AgentFailure::Reported { code, message: Private(text) } => (Code::AgentError, text, Some(truncated(&code))),
            AgentFailure::Blocked { code, message: Private(text) } => (Code::Blocked, text, Some(truncated(&code))),
            AgentFailure::Broken(why) => (Code::AgentError, why, None),
            AgentFailure::TooLarge => (
                Code::TooLarge,
                "the answer, or a message to the agent, exceeds the size limit of one turn".to_owned(),
                None,
            ),
            AgentFailure::NotKnown => (Code::AgentError, "the agent does not know this run".to_owned(), None),
            AgentFailure::Answered(answer) => {
                let code = if answer.is_away { Code::AgentUnavailable } else { Code::AgentError };
                (retry_after_ms, agent_body) = (answer.retry_after_ms, answer.body);
                (code, answer.why, None)
            }
            AgentFailure::HeadTooLarge => (Code::TooLarge, head_too_large(), None),
            AgentFailure::Model { why, body } => {
                agent_body = body;
                (Code::LlmError, why, None)
            }
        };
        Self::Failed { code, message: truncated(&message), agent_code, retry_after_ms, agent_body }
    }
}

fn head_too_large() -> String {
    let fields = limits::AGENT_HEADERS_MAX;
    let kib = limits::AGENT_HEAD_BYTES_MAX / 1024;
    format!("the agent's response has more than {fields} header fields, or more than {kib} KiB of them")
}

impl Ending {
    /// Returns the failure of a turn for a reason that is not its agent's.
    pub(super) fn failed(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        let agent_code = None;
        Self::Failed { code, message, agent_code, retry_after_ms: None, agent_body: None }
    }

    /// Returns whether an agent that outlives its connection may not know that its turn is over.
    pub(super) fn may_still_run(&self, live: bool) -> bool {
        match self {
            Self::Completed { .. } | Self::Failed { agent_code: Some(_), .. } | Self::Steered { .. } => false,
            Self::Failed { code, .. } => *code != Code::AgentUnavailable,
            // A live attempt was sent a cancel; an attempt that does not run here was not.
            Self::Cancelled { .. } => !live,
        }
    }

    /// Returns the strategy as applied: an input that was to be steered and was not taken has waited instead (ST-6).
    pub(super) fn applied_strategy(&self, requested: Strategy) -> Strategy {
        match (requested, self) {
            (Strategy::Steer, Self::Steered { .. }) => Strategy::Steer,
            (Strategy::Steer, _) => Strategy::Enqueue,
            (requested, _) => requested,
        }
    }
}
