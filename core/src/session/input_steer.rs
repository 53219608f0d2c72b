//! Steering: inputs that are handed to an agent while it answers another one (ST-7 to ST-9). A steered input stays in
//! the inbox until its host run has ended; accepted ones end with that run, all others become turns of their own.
//! Both follow from the log alone, so the next owner can finish what a lost owner has started.
use crate::id::{AgentId, MessageId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::{Order, StopReason};
use crate::protocol::entry::{Admission, Fact, InputFact};
use crate::protocol::input::{Input, Strategy};
use crate::protocol::json::Json;
use crate::protocol::steer::{Steer, SteerOutcome};
use crate::session::attempt::Attempt;
use crate::session::ending::Ending;
use crate::session::input_state::{Rank, SteeredInput};
use crate::session::outbox::Output;
use crate::session::runtime::{RecordContext, SessionRuntime};
use crate::session::state::RunPhase;
use crate::time::{Mono, Now};
use std::collections::BTreeMap;
use std::sync::Arc;

/// This owner's part of the inputs that were handed to the current attempt, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct PendingSteers {
    /// True once the agent has reported something, and so knows of the run.
    pub(super) agent_reported: bool,
    /// Inputs sent to the agent, with the time until which the answer is awaited.
    sent: BTreeMap<RunId, Mono>,
    /// Set once the agent has finished while its answers to sent inputs are awaited.
    outcome: Option<(StopReason, Option<Json>)>,
}

// === impl PendingSteers ===

impl PendingSteers {
    pub(super) fn is_finishing(&self) -> bool {
        self.outcome.is_some()
    }

    /// Stops waiting for answers, because the run is cancelled.
    pub(super) fn stop(&mut self) {
        self.outcome = None;
    }

    /// Returns the deadline of the last awaited answer, if any is awaited.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.outcome.as_ref().and_then(|_| self.sent.values().max().copied())
    }
}

// === impl SessionRuntime ===

impl SessionRuntime {
    /// Returns the run that takes this input, if one can. An input with earlier messages is always a turn: an agent
    /// that is answering has no use for another history.
    pub(super) fn host_of(&self, input: &Input, agent: &AgentId) -> Option<RunId> {
        if input.strategy != Strategy::Steer || input.history.is_some() {
            return None;
        }
        let host = self.state.running.as_ref()?;
        let run = self.state.runs.get(host)?;
        let takes = run.agent.as_ref() == Some(agent)
            && self.directory.policy(agent).steer
            && matches!(run.phase, RunPhase::Routing | RunPhase::Running)
            && !self.state.is_leaving(agent);
        let ending = matches!(&self.attempt, Attempt::Live(live) if live.steers.is_finishing());
        // Two users may use the same message id; an agent answers by that id.
        let named =
            |other: &RunId| self.state.runs.get(other).is_some_and(|other| other.message_id == input.message_id);
        let twice = self.state.steered_inputs().iter().any(|(other, _)| named(other));
        (takes && !ending && !twice).then(|| host.clone())
    }

    /// Performs the follow-ups for steered inputs after any change.
    pub(super) fn settle_steers(&mut self, now: Now) {
        self.finish_if_answered(now);
        for (run_id, steered) in self.state.steered_inputs() {
            if !self.inputs.contains_key(&run_id) {
                continue;
            }
            let open = self.state.runs.contains_key(&steered.host);
            match (open, steered.outcome) {
                (_, Some(SteerOutcome::Refused)) => self.requeue_steered(now, &run_id),
                (false, Some(SteerOutcome::Accepted)) if !planted(Mutant::SteerTwice) => {
                    self.end_turn(now, &run_id, Ending::Steered { host: steered.host });
                }
                (false, _) if planted(Mutant::SteerLost) => {
                    self.end_turn(now, &run_id, Ending::Steered { host: steered.host });
                }
                (false, _) => self.requeue_steered(now, &run_id),
                (true, Some(SteerOutcome::Accepted)) => {}
                (true, None | Some(SteerOutcome::Pending)) => self.send_steer(now, &run_id, &steered.host),
            }
        }
    }

    /// Makes an input that was not taken the next turn (ST-9).
    fn requeue_steered(&mut self, now: Now, run_id: &RunId) {
        if !self.is_open() {
            return self.stop_turn(now, run_id);
        }
        let Some(run) = self.state.runs.get(run_id) else { return };
        let Some(agent_id) = run.agent.clone() else { return };
        self.outbox.drop_steer(run_id);
        let place = self.state.waiting_index(Rank::Returned, run.first);
        let ahead = place + usize::from(self.state.running.is_some());
        let position = u32::try_from(ahead).ok().filter(|ahead| *ahead > 0);
        let strategy = if ahead == 0 { Admission::Run } else { Admission::Queued };
        let fact = Fact::Input(InputFact::Admitted { agent_id, strategy, position, host_run_id: None, replaces: None });
        self.record(now, fact, RecordContext::run(run_id));
    }

    /// Sends an input to the agent, once in each attempt and by each owner.
    fn send_steer(&mut self, now: Now, run_id: &RunId, host: &RunId) {
        let epoch = match &self.attempt {
            Attempt::Live(live) if live.run_id == *host => self.ordering_epoch(host, live.attempt),
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => return,
        };
        let cancelling = self.is_cancelling(host);
        let (Some(open_input), Attempt::Live(live)) = (self.inputs.get(run_id), &mut self.attempt) else { return };
        let Some(agent_id) = self.state.runs.get(host).and_then(|run| run.agent.clone()) else { return };
        let gone = live.steers.is_finishing() || cancelling || !live.steers.agent_reported;
        if gone || live.steers.sent.contains_key(run_id) {
            return;
        }
        let due = now.mono + limits::STEER_ACK_TIMEOUT;
        live.steers.sent.insert(run_id.clone(), due);
        // The agent has to answer this first: the silence timeout of the run counts from then on.
        live.restart_silence(due);
        let input = Arc::clone(&open_input.input);
        let steer = Steer {
            key: self.key.clone(),
            run_id: host.clone(),
            attempt: live.attempt,
            epoch,
            agent_id,
            turn_id: run_id.clone(),
            user: input.user.clone(),
            message_id: input.message_id.clone(),
            message: input.message.clone(),
            actions: self.state.actions.context_for(host),
            traceparent: input.traceparent.clone(),
        };
        let order = Output::Order(Order::Steer(Box::new(steer)));
        if planted(Mutant::SteerEarly) {
            self.outbox.push(order);
        } else {
            self.outbox.push_after(self.state.tail.seq, order);
        }
    }

    /// Handles an agent's answer to a steered input. A final answer stays; only `pending` may be followed by another.
    pub(super) fn handle_steer_ack(&mut self, now: Now, host: &RunId, message_id: &MessageId, outcome: SteerOutcome) {
        let named = |(run_id, steered): &(RunId, SteeredInput)| {
            let run = self.state.runs.get(run_id);
            steered.host == *host && run.is_some_and(|run| run.message_id == *message_id)
        };
        let found = self.state.steered_inputs().into_iter().find(named);
        let known_outcome = found.as_ref().and_then(|(_, steered)| steered.outcome);
        let (Some((run_id, _)), Attempt::Live(live)) = (found, &self.attempt) else {
            self.counts.late_reports += 1;
            return;
        };
        let given = live.steers.sent.contains_key(&run_id);
        if !given || known_outcome.is_some_and(|known_outcome| known_outcome.is_final() || known_outcome == outcome) {
            self.counts.late_reports += 1;
            return;
        }
        let Some(agent_id) = self.state.runs.get(host).and_then(|run| run.agent.clone()) else { return };
        let host_run_id = host.clone();
        let attempt = live.attempt;
        let fact = Fact::Input(InputFact::SteerAcked { agent_id, host_run_id, attempt, outcome });
        self.record(now, fact, RecordContext::agent(&run_id));
    }

    /// Handles the end of the agent's answer. Inputs that were sent and not answered may be part of the answer: the
    /// run waits for the agent's answers to them, so that an input that was taken is not asked again (ST-9).
    pub(super) fn handle_done(&mut self, now: Now, run_id: &RunId, stop: StopReason, usage: Option<Json>) {
        if let Attempt::Live(live) = &mut self.attempt {
            live.steers.outcome = Some((stop, usage));
            let least = now.mono + limits::STEER_ACK_AFTER_END_MIN;
            live.steers.sent.values_mut().for_each(|due| *due = (*due).max(least));
        }
        if planted(Mutant::SteerUnawaited) {
            return self.finish_now(now, run_id);
        }
        self.finish_if_answered(now);
    }

    /// Ends a run whose agent has finished, once no answer is awaited any more.
    fn finish_if_answered(&mut self, now: Now) {
        let Attempt::Live(live) = &self.attempt else { return };
        if !live.steers.is_finishing() {
            return;
        }
        let unanswered = |run_id: &RunId| {
            let run = self.state.runs.get(run_id);
            run.and_then(|run| run.steered.as_ref()).is_some_and(|steered| steered.outcome.is_none())
        };
        let awaited = |(run_id, due): (&RunId, &Mono)| *due > now.mono && unanswered(run_id);
        if !live.steers.sent.iter().any(awaited) {
            let run_id = live.run_id.clone();
            self.finish_now(now, &run_id);
        }
    }

    fn finish_now(&mut self, now: Now, run_id: &RunId) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        if let Some((stop, usage)) = live.steers.outcome.take() {
            self.end_turn(now, run_id, Ending::Completed { stop, usage });
        }
    }
}
