//! Admission of inputs: the decision on each is made once and recorded (scenario A, and ST-6).
use crate::id::{AgentId, InboxPosition, RunId};
use crate::mutant::{Mutant, planted};
use crate::protocol::entry::{self, Admission, Fact, InputFact};
use crate::protocol::history::History;
use crate::protocol::input::{Input, Strategy};
use crate::protocol::refusal::Code;
use crate::session::ending::Ending;
use crate::session::input_state::Rank;
use crate::session::runtime::{FactSource, OpenInput, RecordContext, SessionRuntime};
use crate::session::state::{RunPhase, SessionPhase};
use crate::time::Now;
use std::sync::Arc;

/// The reason why an input cannot be admitted; the input then ends like any other, with its terminal fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AdmissionError {
    code: Code,
    why: &'static str,
}

impl SessionRuntime {
    pub(super) fn take_input(&mut self, now: Now, place: InboxPosition, input: Arc<Input>) {
        // Recording the active agent may have been left over by a previous owner that was lost.
        self.activate_confirmed(now);
        let run_id = input.run_id.clone();
        // A previous owner may have been lost between a message and its admission: the input is then admitted now.
        let begun = self.state.runs.get(&run_id).map(|run| run.agent.is_some());
        let open_input = OpenInput::new(now, place, Arc::clone(&input));
        let again = self.inputs.insert(run_id.clone(), open_input).is_some();
        if begun == Some(true) || again {
            // The log has the turn, but the store had lost the input when the turn was to be cancelled.
            if let Some((at, control)) = self.early_cancels.remove(&run_id) {
                self.cancel_turn(now, &run_id, "user", Some((at, &control)));
            } else if self.close.is_some() && !self.state.is_steered(&run_id) {
                self.stop_turn(now, &run_id);
            }
            return;
        }
        if planted(Mutant::CloseLeavesInputs) && !self.is_open() && self.state.phase != SessionPhase::New {
            return;
        }
        let addressed = input.agent_id.clone();
        let default = addressed.clone().or_else(|| self.directory.default.clone());
        if self.state.phase == SessionPhase::New
            && let Some(agent) = default
        {
            let members = self.directory.default_members(Some(&agent));
            self.record_opened(now, &input.user, members, agent, None, None);
        }
        if begun.is_none() {
            self.record_message(now, &input);
        }
        if let Some((at, control)) = self.early_cancels.remove(&run_id) {
            self.cancel_turn(now, &run_id, "user", Some((at, &control)));
            return;
        }
        let replaced = self.replaced_run(&input);
        let addressed = addressed.or_else(|| self.state.runs.get(replaced.as_ref()?)?.agent.clone());
        match self.choose_agent(addressed.as_ref()) {
            Ok(agent) if let Some(old) = replaced => self.replace_waiting(now, &input, agent, old),
            Ok(agent) => self.admit(now, &input, agent),
            Err(unfit) => {
                self.end_turn(now, &run_id, Ending::failed(unfit.code, unfit.why));
            }
        }
    }

    fn record_message(&mut self, now: Now, input: &Input) {
        let fact = Fact::Input(InputFact::UserMessage {
            message_id: input.message_id.clone(),
            request_id: input.request_id.clone(),
            user: input.user.clone(),
            message: input.message.clone(),
            history_sha256: input.history.as_ref().map(History::sha256),
            agent_id: input.agent_id.clone(),
            strategy: input.strategy,
            metadata: input.metadata.clone(),
        });
        let about =
            RecordContext { source: FactSource::User, user: Some(&input.user), ..RecordContext::run(&input.run_id) };
        self.record(now, fact, about);
    }

    /// Returns the agent that will answer, if any can. Pure.
    fn choose_agent(&self, addressed: Option<&AgentId>) -> Result<AgentId, AdmissionError> {
        if !self.is_open() {
            let closed = self.state.phase != SessionPhase::New;
            let (code, why) = if closed {
                (Code::SessionClosed, "the session is closed")
            } else {
                (Code::AgentUnavailable, "no agent is configured")
            };
            return Err(AdmissionError { code, why });
        }
        let agent = addressed.or(self.state.active.as_ref());
        let member = agent.filter(|agent| self.state.agents.contains(agent));
        let Some(agent) = member else {
            return Err(AdmissionError {
                code: Code::AgentNotInSession,
                why: "the agent is not a member of this session",
            });
        };
        if !self.directory.agents.contains_key(agent) {
            let why = "the agent is not configured on this node";
            return Err(AdmissionError { code: Code::AgentUnavailable, why });
        }
        Ok(agent.clone())
    }

    fn admit(&mut self, now: Now, input: &Input, agent: AgentId) {
        let run_id = &input.run_id;
        let strategy = input.strategy;
        if self.state.active.as_ref() != Some(&agent) {
            self.record_switch(now, &agent, ("addressed".to_owned(), "mention"), None, RecordContext::run(run_id));
        }
        if let Some(host) = self.host_of(input, &agent) {
            let strategy = Admission::Steered;
            let host_run_id = Some(host);
            let fact = Fact::Input(InputFact::Admitted {
                agent_id: agent,
                strategy,
                position: None,
                host_run_id,
                replaces: None,
            });
            self.record(now, fact, RecordContext::run(run_id));
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
            Fact::Input(InputFact::Admitted { agent_id: agent, strategy, position, host_run_id: None, replaces: None });
        self.record(now, fact, RecordContext::run(run_id));
        if interrupts && let Some(running) = self.state.running.clone() {
            let reason = if input.strategy == Strategy::Rollback { entry::ROLLED_BACK } else { "interrupt" };
            self.cancel_turn(now, &running, reason, None);
        }
    }

    /// Returns the run that an input replaces: a queued input of the same user. An input that the agent already
    /// knows, or that has interrupted a run, cannot be replaced.
    fn replaced_run(&self, input: &Input) -> Option<RunId> {
        let old = input.replaces.as_ref().filter(|old| self.state.waiting.contains(old))?;
        let waits = self.state.runs.get(old).is_some_and(|run| run.rank == Rank::Queued);
        let replaced = self.inputs.get(old).filter(|_| waits)?;
        (replaced.input.user == input.user).then(|| old.clone())
    }

    /// Gives an input the place of a waiting one, which ends. The end is recorded first: if the owner is lost in
    /// between, one input waits as usual, and never two.
    fn replace_waiting(&mut self, now: Now, input: &Input, agent_id: AgentId, old: RunId) {
        let place = self.state.waiting.iter().position(|waiting| *waiting == old).unwrap_or_default();
        if !planted(Mutant::ReplacedStays) {
            let reason = entry::REPLACED.to_owned();
            self.end_turn(now, &old, Ending::Cancelled { reason, forced: false, answers: None });
        }
        let place = if planted(Mutant::ReplacementWaitsLast) { self.state.waiting.len() } else { place };
        let ahead = place + usize::from(self.state.running.is_some());
        let position = u32::try_from(ahead).ok().filter(|ahead| *ahead > 0);
        let strategy = if ahead == 0 { Admission::Run } else { Admission::Queued };
        let fact =
            Fact::Input(InputFact::Admitted { agent_id, strategy, position, host_run_id: None, replaces: Some(old) });
        self.record(now, fact, RecordContext::run(&input.run_id));
    }

    /// Returns whether a running turn is already being cancelled.
    pub(super) fn is_cancelling(&self, run_id: &RunId) -> bool {
        self.state.runs.get(run_id).is_some_and(|run| matches!(run.phase, RunPhase::Cancelling { .. }))
    }
}
