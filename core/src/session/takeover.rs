//! Starting attempts: the first of a turn, a further one after its owner was lost, or the same one resumed under
//! another owner (ownership.md §2.5, §2.6).
use crate::id::{RunId, Seq};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::{AgentFailure, AgentPolicy, ErrorAnswer, Invoke, OnOwnerLoss, Order, Resume};
use crate::protocol::entry::Fact;
use crate::protocol::refusal::Code;
use crate::session::attempt::{Attempt, Live};
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::runtime::{About, SessionRuntime};
use crate::session::state::{Run, RunPhase};
use crate::session::text::Text;
use crate::time::Now;
use std::sync::Arc;
use std::time::Duration;

/// The message for a turn that may not be repeated.
const LOST: &str = "the node that ran this turn was lost";

/// The loss that a turn suffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The node that owned the session.
    Owner,
    /// The connection to the turn's agent, which had dialed in.
    Agent,
    /// An attempt that the agent refused because it was busy.
    Turn,
}

// === impl Lost ===

impl Lost {
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
    pub(super) fn begin(&mut self, now: Now) {
        let Some(run_id) = self.next_to_begin() else { return };
        let is_begun = self.state.running.is_some();
        if is_begun && self.is_cancelling(&run_id) {
            return self.cancel_orphan(now, &run_id);
        }
        let is_held_up = !is_begun && self.is_waited_for(&run_id);
        if is_held_up || !self.is_permitted(&run_id) || !self.has_content(&run_id) {
            return;
        }
        if is_begun {
            self.take_over(now, &run_id, Lost::Owner);
        } else {
            self.start(now, &run_id, Lost::Owner);
        }
    }

    /// Continues a turn that another owner, or an earlier one here, had started, or whose agent has lost its
    /// connection; or ends the turn.
    fn take_over(&mut self, now: Now, run_id: &RunId, what: Lost) {
        let Some(run) = self.state.runs.get(run_id).filter(|_| self.inputs.contains_key(run_id)) else {
            return;
        };
        if matches!(run.phase, RunPhase::Cancelling { .. }) {
            return self.cancel_orphan(now, run_id);
        }
        let lost = match self.policy(run).on_owner_loss {
            OnOwnerLoss::Retry => false,
            OnOwnerLoss::RetryIfSilent => run.spoke,
            OnOwnerLoss::Fail => true,
            OnOwnerLoss::Resume => run.spoke && run.resume.is_none(),
        };
        let tries = run.tries();
        let failed = if lost && !planted(Mutant::AlwaysRetry) {
            Some(match what {
                Lost::Owner | Lost::Turn => (Code::OwnerLost, LOST),
                Lost::Agent => (Code::AgentUnavailable, "the agent's connection was lost"),
            })
        } else if tries >= limits::TURN_ATTEMPTS_MAX && !planted(Mutant::NoPoison) {
            Some(match what {
                Lost::Owner | Lost::Turn => (Code::PoisonTurn, "the turn was given up: each node that ran it was lost"),
                Lost::Agent => {
                    (Code::AgentUnavailable, "the turn was given up: the agent's connection was lost in each attempt")
                }
            })
        } else if run.deadline <= now.store {
            Some((Code::AgentTimeout, "the run exceeded its time limit"))
        } else {
            None
        };
        if let Some((code, why)) = failed {
            return self.end(now, run_id, Ending::failed(code, why));
        }
        if tries < 2 {
            self.go_on_with(now, run_id, what);
        } else {
            self.attempt = Attempt::Delayed { at: now.mono + limits::TURN_ATTEMPT_WAIT, lost: what };
        }
    }

    /// Returns whether the turn has to wait because its agent is being removed.
    fn is_waited_for(&self, run_id: &RunId) -> bool {
        let agent = self.state.runs.get(run_id).and_then(|run| run.agent.as_ref());
        agent.is_some_and(|agent| self.state.is_leaving(agent)) && !planted(Mutant::LeaverAsked)
    }

    fn policy(&self, run: &Run) -> AgentPolicy {
        run.agent.as_ref().map(|agent| self.directory.policy(agent)).unwrap_or_default()
    }

    /// Returns whether another owner can resume the current attempt.
    pub(super) fn outlives_its_owner(&self, run_id: &RunId) -> bool {
        let run = self.state.runs.get(run_id).filter(|run| run.resume.is_some());
        run.is_some_and(|run| self.policy(run).on_owner_loss == OnOwnerLoss::Resume)
    }

    /// Resumes the attempt if possible, otherwise starts another.
    pub(super) fn go_on_with(&mut self, now: Now, run_id: &RunId, what: Lost) {
        if self.outlives_its_owner(run_id) && !planted(Mutant::ResumeRestarts) {
            self.resume(now, run_id, what);
        } else {
            self.start(now, run_id, what);
        }
    }

    /// Records an attempt, then orders it, so that a turn that crashes its process is counted too.
    fn start(&mut self, now: Now, run_id: &RunId, after: Lost) {
        let Some(run) = self.state.runs.get(run_id).filter(|_| self.inputs.contains_key(run_id)) else {
            return;
        };
        let Some(agent_id) = run.agent.clone() else { return };
        let (attempt, request_id, policy) = (run.attempt + 1, run.request_id.clone(), self.policy(run));
        let resumable = policy.on_owner_loss == OnOwnerLoss::Resume;
        let fact = if run.attempt == 0 {
            let deadline_ms = now.store.after(policy.run);
            Fact::RunStarted { agent_id, attempt, request_id, deadline_ms, resumable }
        } else {
            self.counts.restarts += 1;
            Fact::RunRestarted { agent_id, attempt, reason: after.reason(), resumable }
        };
        let seq = self.record(now, fact, About::run(run_id));
        self.order(now, run_id, seq, None);
    }

    /// Records that an attempt is resumed, then asks its agent for the part that is not recorded.
    fn resume(&mut self, now: Now, run_id: &RunId, after: Lost) {
        let Some(run) = self.state.runs.get(run_id) else { return };
        let (Some(agent_id), Some(resume)) = (run.agent.clone(), &run.resume) else { return };
        let from = Resume { after: resume.mark.clone(), saved: run.saved };
        let (attempt, reason) = (run.attempt, after.reason());
        self.counts.resumed += 1;
        let seq = self.record(now, Fact::RunResumed { agent_id, attempt, reason }, About::run(run_id));
        self.order(now, run_id, seq, Some(from));
    }

    /// Orders the attempt that the fact at `seq` records.
    fn order(&mut self, now: Now, run_id: &RunId, seq: Seq, resume: Option<Resume>) {
        let (Some(run), Some(taken)) = (self.state.runs.get(run_id), self.inputs.get(run_id)) else { return };
        let (Some(agent_id), policy, input) = (run.agent.clone(), self.policy(run), Arc::clone(&taken.input))
        else {
            return;
        };
        let mut live = Live::new(run_id, run.attempt, seq, &policy, now.mono_at(run.deadline, policy.run));
        if let (Some(from), Some(known)) = (&resume, &run.resume) {
            live.text = Text::recorded(run.saved, known.hash.clone());
            live.states = known.states;
            live.again = Some(run.saved.saturating_sub(from.from()));
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
            handover: self.state.handovers.told_with(run_id),
            actions: self.state.actions.told_with(run_id),
            system_prompt: None,
            resume,
        };
        self.attempt = Attempt::Live(Box::new(live));
        if planted(Mutant::OrderEarly) {
            self.outbox.now(Output::Order(Order::Invoke(invoke)));
        } else {
            self.outbox.after(seq, Output::Order(Order::Invoke(invoke)));
        }
    }

    /// Handles the answer of an agent that does not know the attempt to be resumed: text that was shown cannot be
    /// continued.
    pub(super) fn forgotten(&mut self, now: Now, run_id: &RunId) {
        if self.held {
            // The next owner will find out.
            self.attempt = Attempt::None;
            return;
        }
        let Some(run) = self.state.runs.get(run_id) else { return };
        if !run.spoke && run.tries() < limits::TURN_ATTEMPTS_MAX {
            self.attempt = Attempt::None;
            return self.start(now, run_id, Lost::Owner);
        }
        let (code, message) =
            (Code::OwnerLost, format!("{LOST}, and the agent does not know the run any more"));
        self.end(now, run_id, Ending::failed(code, message));
    }

    /// Handles the loss of the agent's connection during the attempt: the turn is treated as if its owner was lost.
    /// Shown text is recorded first, since no other node has it.
    pub(super) fn disconnected(&mut self, now: Now, run_id: &RunId, why: String) {
        if !self.state.runs.contains_key(run_id) {
            return self.end(now, run_id, Ending::from(AgentFailure::Lost(why)));
        }
        self.show(now);
        self.save(now, run_id);
        self.attempt = Attempt::None;
        // While the node drains, the next owner will find out.
        if !self.held {
            self.take_over(now, run_id, Lost::Agent);
        }
    }

    /// Handles an error response of the agent. A busy agent that says when to ask again is asked again at that time,
    /// if its turn may be repeated and has the time left; the agent had sent nothing in this attempt.
    pub(super) fn turned_away(&mut self, now: Now, run_id: &RunId, answer: Box<ErrorAnswer>) {
        let wait = answer.retry_after_ms.filter(|_| answer.is_busy).map(Duration::from_millis);
        let Some(wait) = wait.filter(|wait| self.may_ask_again(now, run_id, *wait)) else {
            return self.end(now, run_id, Ending::from(AgentFailure::Answered(answer)));
        };
        self.attempt = Attempt::None;
        // While the node drains, the next owner will find out.
        if !self.held {
            let wait = if planted(Mutant::BusyAskedAtOnce) { Duration::ZERO } else { wait };
            self.attempt = Attempt::Delayed { at: now.mono + wait, lost: Lost::Turn };
        }
    }

    fn may_ask_again(&self, now: Now, run_id: &RunId, wait: Duration) -> bool {
        self.state.runs.get(run_id).is_some_and(|run| {
            let repeatable = self.policy(run).on_owner_loss == OnOwnerLoss::Retry;
            repeatable && run.tries() < limits::TURN_ATTEMPTS_MAX && now.store.after(wait) < run.deadline
        })
    }

    // === the owner leaves ===

    pub(super) fn hold(&mut self) {
        self.held = true;
        if matches!(self.attempt, Attempt::Delayed { .. }) {
            self.attempt = Attempt::None;
        }
    }

    /// Leaves a resumable attempt to the next owner at once; other attempts may end here.
    pub(super) fn hand_over(&mut self, now: Now) {
        self.hold();
        let Attempt::Live(live) = &self.attempt else { return };
        if live.cancel_at.is_none() && self.outlives_its_owner(&live.run_id) {
            self.suspend(now);
        }
    }

    pub(super) fn suspend(&mut self, now: Now) {
        self.held = true;
        let Attempt::Live(live) = &self.attempt else { return };
        let (run_id, attempt) = (live.run_id.clone(), live.attempt);
        let (begun, ordered) = (live.begun, live.ordered);
        self.show(now);
        self.save(now, &run_id);
        self.record(now, Fact::RunSuspended { attempt, reason: "drain".to_owned() }, About::run(&run_id));
        let drop = Output::Order(Order::Drop { run_id, attempt });
        if ordered {
            self.outbox.now(drop);
        } else {
            self.outbox.after(begun, drop);
        }
        self.attempt = Attempt::None;
    }
}
