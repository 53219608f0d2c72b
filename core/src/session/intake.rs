//! Admission of inputs: the decision on each is made once and recorded (scenario A, and ST-6).
use crate::id::{AgentId, Place, RunId};
use crate::mutant::{Mutant, planted};
use crate::protocol::entry::{self, Admission, Fact};
use crate::protocol::history::History;
use crate::protocol::input::{Input, Strategy};
use crate::protocol::refusal::Code;
use crate::session::ending::Ending;
use crate::session::runtime::{About, SessionRuntime, Source, Taken};
use crate::session::state::{Phase, RunPhase};
use crate::session::steer::Rank;
use crate::time::Now;
use std::sync::Arc;

/// The reason why an input cannot be admitted; the input then ends like any other, with its terminal fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unfit {
    code: Code,
    why: &'static str,
}

impl SessionRuntime {
    pub(super) fn take(&mut self, now: Now, place: Place, input: Arc<Input>) {
        // Recording the active agent may have been left over by a previous owner that was lost.
        self.hand_on(now);
        let run_id = input.run_id.clone();
        // A previous owner may have been lost between a message and its admission: the input is then admitted now.
        let begun = self.state.runs.get(&run_id).map(|run| run.agent.is_some());
        let taken = Taken::new(now, place, Arc::clone(&input));
        let again = self.inputs.insert(run_id.clone(), taken).is_some();
        if begun == Some(true) || again {
            // The log has the turn, but the store had lost the input when the turn was to be cancelled.
            if let Some((at, control)) = self.early_cancels.remove(&run_id) {
                self.cancel(now, &run_id, "user", Some((at, &control)));
            } else if self.close.is_some() && !self.state.is_steered(&run_id) {
                self.stop(now, &run_id);
            }
            return;
        }
        if planted(Mutant::CloseLeavesInputs) && !self.is_open() && self.state.phase != Phase::New {
            return;
        }
        let addressed = input.agent_id.clone();
        let default = addressed.clone().or_else(|| self.directory.default.clone());
        if self.state.phase == Phase::New
            && let Some(agent) = default
        {
            let members = self.directory.company(Some(&agent));
            self.open(now, &input.user, members, agent, None, None);
        }
        if begun.is_none() {
            self.said(now, &input);
        }
        if let Some((at, control)) = self.early_cancels.remove(&run_id) {
            self.cancel(now, &run_id, "user", Some((at, &control)));
            return;
        }
        let replaced = self.replaced(&input);
        let addressed = addressed.or_else(|| self.state.runs.get(replaced.as_ref()?)?.agent.clone());
        match self.fit(addressed.as_ref()) {
            Ok(agent) if let Some(old) = replaced => self.stand_in(now, &input, agent, old),
            Ok(agent) => self.admit(now, &input, agent),
            Err(unfit) => {
                self.end(now, &run_id, Ending::failed(unfit.code, unfit.why));
            }
        }
    }

    fn said(&mut self, now: Now, input: &Input) {
        let fact = Fact::UserMessage {
            message_id: input.message_id.clone(),
            request_id: input.request_id.clone(),
            user: input.user.clone(),
            message: input.message.clone(),
            history_sha256: input.history.as_ref().map(History::sha256),
            agent_id: input.agent_id.clone(),
            strategy: input.strategy,
            metadata: input.metadata.clone(),
        };
        let about = About { source: Source::User, user: Some(&input.user), ..About::run(&input.run_id) };
        self.record(now, fact, about);
    }

    /// Returns the agent that will answer, if any can. Pure.
    fn fit(&self, addressed: Option<&AgentId>) -> Result<AgentId, Unfit> {
        if !self.is_open() {
            let closed = self.state.phase != Phase::New;
            let (code, why) = if closed {
                (Code::SessionClosed, "the session is closed")
            } else {
                (Code::AgentUnavailable, "no agent is configured")
            };
            return Err(Unfit { code, why });
        }
        let agent = addressed.or(self.state.active.as_ref());
        let member = agent.filter(|agent| self.state.agents.contains(agent));
        let Some(agent) = member else {
            return Err(Unfit {
                code: Code::AgentNotInSession,
                why: "the agent is not a member of this session",
            });
        };
        if !self.directory.agents.contains_key(agent) {
            return Err(Unfit { code: Code::AgentUnavailable, why: "the agent is not configured on this node" });
        }
        Ok(agent.clone())
    }

    fn admit(&mut self, now: Now, input: &Input, agent: AgentId) {
        let (run_id, strategy) = (&input.run_id, input.strategy);
        if self.state.active.as_ref() != Some(&agent) {
            self.switch(now, &agent, ("addressed".to_owned(), "mention"), None, About::run(run_id));
        }
        if let Some(host) = self.host_of(input, &agent) {
            let (strategy, host_run_id) = (Admission::Steered, Some(host));
            let fact =
                Fact::TurnAdmitted { agent_id: agent, strategy, position: None, host_run_id, replaces: None };
            self.record(now, fact, About::run(run_id));
            return;
        }
        let ahead = self.state.waiting.len() + usize::from(self.state.running.is_some());
        let interrupts = matches!(strategy, Strategy::Interrupt | Strategy::Rollback) && ahead > 0;
        let (strategy, position) = match (interrupts, ahead) {
            (true, _) => (Admission::Interrupts, None),
            (false, 0) => (Admission::Run, None),
            (false, ahead) => (Admission::Queued, u32::try_from(ahead).ok()),
        };
        let fact =
            Fact::TurnAdmitted { agent_id: agent, strategy, position, host_run_id: None, replaces: None };
        self.record(now, fact, About::run(run_id));
        if interrupts && let Some(running) = self.state.running.clone() {
            let reason = if input.strategy == Strategy::Rollback { entry::ROLLED_BACK } else { "interrupt" };
            self.cancel(now, &running, reason, None);
        }
    }

    /// Returns the run that an input replaces: a queued input of the same user. An input that the agent already
    /// knows, or that has interrupted a run, cannot be replaced.
    fn replaced(&self, input: &Input) -> Option<RunId> {
        let old = input.replaces.as_ref().filter(|old| self.state.waiting.contains(old))?;
        let waits = self.state.runs.get(old).is_some_and(|run| run.rank == Rank::Queued);
        let asked = self.inputs.get(old).filter(|_| waits)?;
        (asked.input.user == input.user).then(|| old.clone())
    }

    /// Gives an input the place of a waiting one, which ends. The end is recorded first: if the owner is lost in
    /// between, one input waits as usual, and never two.
    fn stand_in(&mut self, now: Now, input: &Input, agent_id: AgentId, old: RunId) {
        let place = self.state.waiting.iter().position(|waiting| *waiting == old).unwrap_or_default();
        if !planted(Mutant::ReplacedStays) {
            let reason = entry::REPLACED.to_owned();
            self.end(now, &old, Ending::Cancelled { reason, forced: false, answers: None });
        }
        let place = if planted(Mutant::ReplacementWaitsLast) { self.state.waiting.len() } else { place };
        let ahead = place + usize::from(self.state.running.is_some());
        let position = u32::try_from(ahead).ok().filter(|ahead| *ahead > 0);
        let strategy = if ahead == 0 { Admission::Run } else { Admission::Queued };
        let fact =
            Fact::TurnAdmitted { agent_id, strategy, position, host_run_id: None, replaces: Some(old) };
        self.record(now, fact, About::run(&input.run_id));
    }

    /// Returns whether a running turn is already being cancelled.
    pub(super) fn is_cancelling(&self, run_id: &RunId) -> bool {
        self.state.runs.get(run_id).is_some_and(|run| matches!(run.phase, RunPhase::Cancelling { .. }))
    }
}
