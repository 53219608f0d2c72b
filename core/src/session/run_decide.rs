//! Starting attempts: the first of a turn, a further one after its owner was lost, or the same one resumed under
//! another owner (ownership.md §2.5, §2.6).
use crate::id::{RunId, Seq};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::{AgentFailure, AgentPolicy, ErrorResponse, Invoke, OnOwnerLoss, Order, Resume};
use crate::protocol::entry::{Fact, RunFact};
use crate::protocol::refusal::Code;
use crate::session::attempt::{Attempt, LiveAttempt};
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::runtime::{RecordContext, SessionRuntime};
use crate::session::state::{Run, RunPhase};
use crate::session::text::AttemptText;
use crate::time::Now;
use std::sync::Arc;
use std::time::Duration;

/// The message for a turn that may not be repeated.
const OWNER_LOST_MESSAGE: &str = "the node that ran this turn was lost";

/// The loss that a turn suffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossCause {
    /// The node that owned the session.
    Owner,
    /// The connection to the turn's agent, which had dialed in.
    Agent,
    /// An attempt that the agent refused because it was busy.
    Turn,
}

// === impl LossCause ===

impl LossCause {
    /// Returns the reason as recorded in facts.
    fn reason(self) -> String {
        match self {
            Self::Owner => "owner_lost",
            Self::Agent => "agent_lost",
            Self::Turn => "agent_busy",
        }
        .to_owned()
    }
}

impl SessionRuntime {
    /// Starts the next turn, or continues one that a lost owner had started.
    pub(super) fn begin_next_turn(&mut self, now: Now) {
        let Some(run_id) = self.next_turn() else { return };
        let is_begun = self.state.running.is_some();
        if is_begun && self.is_cancelling(&run_id) {
            return self.cancel_orphan(now, &run_id);
        }
        let is_held_up = !is_begun && self.is_agent_leaving(&run_id);
        if is_held_up || !self.check_permit(&run_id) || !self.check_content(&run_id) {
            return;
        }
        if is_begun {
            self.take_over(now, &run_id, LossCause::Owner);
        } else {
            self.start_attempt(now, &run_id, LossCause::Owner);
        }
    }

    /// Continues a turn that another owner, or an earlier one here, had started, or whose agent has lost its
    /// connection; or ends the turn.
    fn take_over(&mut self, now: Now, run_id: &RunId, what: LossCause) {
        let Some(run) = self.state.runs.get(run_id).filter(|_| self.inputs.contains_key(run_id)) else {
            return;
        };
        if matches!(run.phase, RunPhase::Cancelling { .. }) {
            return self.cancel_orphan(now, run_id);
        }
        let lost = match self.agent_policy(run).on_owner_loss {
            OnOwnerLoss::Retry => false,
            OnOwnerLoss::RetryIfSilent => run.spoke,
            OnOwnerLoss::Fail => true,
            OnOwnerLoss::Resume => run.spoke && run.resume.is_none(),
        };
        let tries = run.owner_count();
        let failed = if lost && !planted(Mutant::AlwaysRetry) {
            Some(match what {
                LossCause::Owner | LossCause::Turn => (Code::OwnerLost, OWNER_LOST_MESSAGE),
                LossCause::Agent => (Code::AgentUnavailable, "the connection to the agent was lost"),
            })
        } else if tries >= limits::TURN_ATTEMPTS_MAX && !planted(Mutant::NoPoison) {
            Some(match what {
                LossCause::Owner | LossCause::Turn => {
                    (Code::PoisonTurn, "the turn was given up: each node that ran it was lost")
                }
                LossCause::Agent => {
                    (Code::AgentUnavailable, "the turn was given up: the agent's connection was lost in each attempt")
                }
            })
        } else if run.deadline <= now.store {
            Some((Code::AgentTimeout, "the run exceeded its time limit"))
        } else {
            None
        };
        if let Some((code, why)) = failed {
            return self.end_turn(now, run_id, Ending::failed(code, why));
        }
        if tries < 2 {
            self.resume_or_restart(now, run_id, what);
        } else {
            self.attempt = Attempt::Delayed { at: now.mono + limits::TURN_ATTEMPT_WAIT, cause: what };
        }
    }

    /// Returns whether the turn has to wait because its agent is being removed.
    fn is_agent_leaving(&self, run_id: &RunId) -> bool {
        let agent = self.state.runs.get(run_id).and_then(|run| run.agent.as_ref());
        agent.is_some_and(|agent| self.state.is_leaving(agent)) && !planted(Mutant::LeaverAsked)
    }

    fn agent_policy(&self, run: &Run) -> AgentPolicy {
        run.agent.as_ref().map(|agent| self.directory.policy(agent)).unwrap_or_default()
    }

    /// Returns whether another owner can resume the current attempt.
    pub(super) fn is_resumable(&self, run_id: &RunId) -> bool {
        let run = self.state.runs.get(run_id).filter(|run| run.resume.is_some());
        run.is_some_and(|run| self.agent_policy(run).on_owner_loss == OnOwnerLoss::Resume)
    }

    /// Resumes the attempt if possible, otherwise starts another.
    pub(super) fn resume_or_restart(&mut self, now: Now, run_id: &RunId, what: LossCause) {
        if self.is_resumable(run_id) && !planted(Mutant::ResumeRestarts) {
            self.resume_attempt(now, run_id, what);
        } else {
            self.start_attempt(now, run_id, what);
        }
    }

    /// Records an attempt, then orders it, so that a turn that crashes its process is counted too.
    fn start_attempt(&mut self, now: Now, run_id: &RunId, after: LossCause) {
        let Some(run) = self.state.runs.get(run_id).filter(|_| self.inputs.contains_key(run_id)) else {
            return;
        };
        let Some(agent_id) = run.agent.clone() else { return };
        let attempt = run.attempt + 1;
        let request_id = run.request_id.clone();
        let policy = self.agent_policy(run);
        let resumable = policy.on_owner_loss == OnOwnerLoss::Resume;
        let fact = if run.attempt == 0 {
            let deadline_ms = now.store.after(policy.run);
            Fact::Run(RunFact::Started { agent_id, attempt, request_id, deadline_ms, resumable })
        } else {
            self.counts.restarts += 1;
            Fact::Run(RunFact::Restarted { agent_id, attempt, reason: after.reason(), resumable })
        };
        let seq = self.record(now, fact, RecordContext::run(run_id));
        self.order_attempt(now, run_id, seq, None);
    }

    /// Records that an attempt is resumed, then asks its agent for the part that is not recorded.
    fn resume_attempt(&mut self, now: Now, run_id: &RunId, after: LossCause) {
        let Some(run) = self.state.runs.get(run_id) else { return };
        let (Some(agent_id), Some(resume)) = (run.agent.clone(), &run.resume) else { return };
        let from = Resume { after: resume.mark.clone(), saved: run.saved };
        let attempt = run.attempt;
        let reason = after.reason();
        self.counts.resumed += 1;
        let seq =
            self.record(now, Fact::Run(RunFact::Resumed { agent_id, attempt, reason }), RecordContext::run(run_id));
        self.order_attempt(now, run_id, seq, Some(from));
    }

    /// Orders the attempt that the fact at `seq` records.
    fn order_attempt(&mut self, now: Now, run_id: &RunId, seq: Seq, resume: Option<Resume>) {
        let (Some(run), Some(taken)) = (self.state.runs.get(run_id), self.inputs.get(run_id)) else { return };
        let (Some(agent_id), policy, input) = (run.agent.clone(), self.agent_policy(run), Arc::clone(&taken.input))
        else {
            return;
        };
        let mut live = LiveAttempt::new(run_id, run.attempt, seq, &policy, now.mono_at(run.deadline, policy.run));
        if let (Some(from), Some(known)) = (&resume, &run.resume) {
            live.text = AttemptText::recorded(run.saved, known.hash.clone());
            live.states = known.states;
            live.repeat_bytes = Some(run.saved.saturating_sub(from.text_offset()));
        }
        let invoke = Invoke {
            key: self.key.clone(),
            run_id: run_id.clone(),
            attempt: run.attempt,
            epoch: self.token.epoch,
            agent_id,
            user: input.user.clone(),
            message: input.message.clone(),
            history: input.history.clone(),
            traceparent: input.traceparent.clone(),
            handover: self.state.handovers.context_for(run_id),
            actions: self.state.actions.context_for(run_id),
            system_prompt: None,
            resume,
        };
        self.attempt = Attempt::Live(Box::new(live));
        if planted(Mutant::OrderEarly) {
            self.outbox.push(Output::Order(Order::Invoke(invoke)));
        } else {
            self.outbox.push_after(seq, Output::Order(Order::Invoke(invoke)));
        }
    }

    /// Handles the answer of an agent that does not know the attempt to be resumed: text that was shown cannot be
    /// continued.
    pub(super) fn handle_unknown_attempt(&mut self, now: Now, run_id: &RunId) {
        if self.is_draining {
            // The next owner will find out.
            self.attempt = Attempt::None;
            return;
        }
        let Some(run) = self.state.runs.get(run_id) else { return };
        if !run.spoke && run.owner_count() < limits::TURN_ATTEMPTS_MAX {
            self.attempt = Attempt::None;
            return self.start_attempt(now, run_id, LossCause::Owner);
        }
        let code = Code::OwnerLost;
        let message = format!("{OWNER_LOST_MESSAGE}, and the agent does not know the run any more");
        self.end_turn(now, run_id, Ending::failed(code, message));
    }

    /// Handles the loss of the agent's connection during the attempt: the turn is treated as if its owner was lost.
    /// Shown text is recorded first, since no other node has it.
    pub(super) fn handle_agent_lost(&mut self, now: Now, run_id: &RunId, why: String) {
        if !self.state.runs.contains_key(run_id) {
            return self.end_turn(now, run_id, Ending::from(AgentFailure::Lost(why)));
        }
        self.flush_text(now);
        self.checkpoint_text(now, run_id);
        self.attempt = Attempt::None;
        // While the node drains, the next owner will find out.
        if !self.is_draining {
            self.take_over(now, run_id, LossCause::Agent);
        }
    }

    /// Handles an error response of the agent. A busy agent that says when to ask again is asked again at that time,
    /// if its turn may be repeated and has the time left; the agent had sent nothing in this attempt.
    pub(super) fn handle_error_response(&mut self, now: Now, run_id: &RunId, answer: Box<ErrorResponse>) {
        let wait = answer.retry_after_ms.filter(|_| answer.is_busy).map(Duration::from_millis);
        let Some(wait) = wait.filter(|wait| self.may_retry(now, run_id, *wait)) else {
            return self.end_turn(now, run_id, Ending::from(AgentFailure::Answered(answer)));
        };
        self.attempt = Attempt::None;
        // While the node drains, the next owner will find out.
        if !self.is_draining {
            let wait = if planted(Mutant::BusyAskedAtOnce) { Duration::ZERO } else { wait };
            self.attempt = Attempt::Delayed { at: now.mono + wait, cause: LossCause::Turn };
        }
    }

    fn may_retry(&self, now: Now, run_id: &RunId, wait: Duration) -> bool {
        self.state.runs.get(run_id).is_some_and(|run| {
            let repeatable = self.agent_policy(run).on_owner_loss == OnOwnerLoss::Retry;
            repeatable && run.owner_count() < limits::TURN_ATTEMPTS_MAX && now.store.after(wait) < run.deadline
        })
    }

    // === the owner leaves ===

    pub(super) fn hold(&mut self) {
        self.is_draining = true;
        if matches!(self.attempt, Attempt::Delayed { .. }) {
            self.attempt = Attempt::None;
        }
    }

    /// Leaves a resumable attempt to the next owner at once; other attempts may end here.
    pub(super) fn hand_over(&mut self, now: Now) {
        self.hold();
        let Attempt::Live(live) = &self.attempt else { return };
        if live.cancel_due.is_none() && self.is_resumable(&live.run_id) {
            self.suspend(now);
        }
    }

    pub(super) fn suspend(&mut self, now: Now) {
        self.is_draining = true;
        let Attempt::Live(live) = &self.attempt else { return };
        let run_id = live.run_id.clone();
        let attempt = live.attempt;
        let begun = live.start_seq;
        let ordered = live.is_ordered;
        self.flush_text(now);
        self.checkpoint_text(now, &run_id);
        self.record(
            now,
            Fact::Run(RunFact::Suspended { attempt, reason: "drain".to_owned() }),
            RecordContext::run(&run_id),
        );
        let drop = Output::Order(Order::Drop { run_id, attempt });
        if ordered {
            self.outbox.push(drop);
        } else {
            self.outbox.push_after(begun, drop);
        }
        self.attempt = Attempt::None;
    }
}
