//! Endings of turns: every way to end is one fact, and every turn takes exactly one (G3).
use crate::id::{InboxPosition, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::agent::{AgentFailure, Order, StopReason};
use crate::protocol::entry::{Fact, RunFact};
use crate::protocol::input::Strategy;
use crate::protocol::json::Json;
use crate::protocol::refusal::Code;
use crate::session::attempt::Attempt;
use crate::session::outbox::{EndedInput, Output};
use crate::session::run_permit::AttemptPermit;
use crate::session::runtime::{FactSource, RecordContext, SessionRuntime};
use crate::session::text_hash::TextHash;
use crate::time::Now;

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
}

/// Returns whether an agent that outlives its connection may not know that its turn is over.
fn may_still_run(ending: &Ending, live: bool) -> bool {
    match ending {
        Ending::Completed { .. } | Ending::Failed { agent_code: Some(_), .. } | Ending::Steered { .. } => false,
        Ending::Failed { code, .. } => *code != Code::AgentUnavailable,
        // A live attempt was sent a cancel; an attempt that does not run here was not.
        Ending::Cancelled { .. } => !live,
    }
}

/// Returns the strategy as applied: an input that was to be steered and was not taken has waited instead (ST-6).
fn applied_strategy(ending: &Ending, requested: Strategy) -> Strategy {
    match (requested, ending) {
        (Strategy::Steer, Ending::Steered { .. }) => Strategy::Steer,
        (Strategy::Steer, _) => Strategy::Enqueue,
        (requested, _) => requested,
    }
}

impl SessionRuntime {
    /// Ends a turn: records its unrecorded text, then its terminal fact; its input is removed from the inbox in the
    /// same step.
    pub(super) fn end_turn(&mut self, now: Now, run_id: &RunId, ending: Ending) {
        let Some(open_input) = self.inputs.get(run_id) else { return };
        let ends = Some(EndedInput {
            place: open_input.place,
            run_id: run_id.clone(),
            taken: open_input.taken_at,
            strategy: applied_strategy(&ending, open_input.input.strategy),
        });
        let live = matches!(&self.attempt, Attempt::Live(live) if live.run_id == *run_id);
        let running = self.state.running.as_ref() == Some(run_id);
        if live {
            self.flush_text(now);
            if !planted(Mutant::TailUnsaved) {
                self.checkpoint_text(now, run_id);
            }
        }
        let Some(run) = self.state.runs.get(run_id) else { return };
        let attempt = run.attempt;
        let text_bytes = run.saved;
        let (source, completed) = match &ending {
            Ending::Completed { .. } => (FactSource::Agent, true),
            Ending::Failed { .. } | Ending::Cancelled { .. } | Ending::Steered { .. } => (FactSource::Gateway, false),
        };
        let stop = run.agent.clone().filter(|_| run.resume.is_some() && may_still_run(&ending, live));
        if let (true, Some(agent_id)) = (completed, run.agent.clone()) {
            self.record(now, Fact::Run(RunFact::AgentDone { agent_id, attempt }), RecordContext::agent(run_id));
        }
        let (fact, answers) = self.terminal_fact(ending, attempt, text_bytes);
        let ended = self.record(now, fact, RecordContext { source, ends, answers, ..RecordContext::run(run_id) });
        self.inputs.remove(run_id);
        self.outbox.drop_steer(run_id);
        if let (Attempt::Live(live), false) = (&self.attempt, completed)
            && live.run_id == *run_id
        {
            let drop = Output::Order(Order::Drop { run_id: run_id.clone(), attempt });
            if live.is_ordered {
                self.outbox.push(drop);
            } else {
                // The drop must not precede the order itself, which still waits for its fact.
                self.outbox.push_after(live.start_seq, drop);
            }
        }
        if let Some(agent_id) = stop {
            // The stop waits for the fact: before the fact is durable another owner may still resume the attempt.
            let tenant = self.key.tenant.clone();
            let run_id = run_id.clone();
            let epoch = self.token.epoch;
            let stop = Order::Stop { tenant, agent_id, run_id, attempt, epoch };
            self.outbox.push_after(ended, Output::Order(stop));
        }
        if live || running {
            self.attempt = Attempt::None;
            if self.permit == AttemptPermit::Granted {
                // The next turn requests a new permit, so that sessions of other users are not passed over.
                self.permit = AttemptPermit::None;
            }
        }
    }

    fn terminal_fact(&self, ending: Ending, attempt: u32, text_bytes: u64) -> (Fact, Option<InboxPosition>) {
        match ending {
            Ending::Completed { stop: stop_reason, usage } => {
                let text_sha256 = match &self.attempt {
                    Attempt::Live(live) => live.text.sha256(),
                    Attempt::Delayed { .. } | Attempt::None => String::new(),
                };
                let text_bytes = match &self.attempt {
                    Attempt::Live(live) => live.text.len(),
                    Attempt::Delayed { .. } | Attempt::None => text_bytes,
                };
                let host_run_id = None;
                (Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, text_sha256, usage, host_run_id }), None)
            }
            Ending::Failed { code, message, agent_code, retry_after_ms, agent_body } => {
                let fact = Fact::Run(RunFact::Failed {
                    attempt,
                    code,
                    message,
                    agent_code,
                    retry_after_ms,
                    agent_body,
                    text_bytes,
                });
                (fact, None)
            }
            Ending::Cancelled { reason, forced, answers } => {
                (Fact::Run(RunFact::Cancelled { attempt, reason, forced, text_bytes }), answers)
            }
            Ending::Steered { host } => {
                let stop_reason = StopReason::Steered;
                let text_sha256 = TextHash::default().hex();
                let usage = None;
                let host_run_id = Some(host);
                (Fact::Run(RunFact::Done { attempt, stop_reason, text_bytes, text_sha256, usage, host_run_id }), None)
            }
        }
    }
}
