//! Interjections: inputs that are handed to the agent that answers already (ST-7 to ST-9).
//!
//! A steered input stays in the inbox and open until the run that hosts it has ended. What the agent has accepted ends
//! with that run; everything else becomes a turn of its own. Both follow from the log alone, so it does not matter
//! whether the owner that wrote the end of the run lived to write what follows from it.
use crate::id::{AgentId, MessageId, RunId, Seq};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::{Order, StopReason};
use crate::protocol::entry::{Admission, Fact};
use crate::protocol::input::{Input, Strategy};
use crate::protocol::json::Json;
use crate::protocol::steer::{Steer, SteerOutcome};
use crate::session::attempt::Attempt;
use crate::session::ending::Ending;
use crate::session::outbox::Output;
use crate::session::runtime::{About, SessionRuntime};
use crate::session::state::{RunPhase, State};
use crate::time::{Mono, Now};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An input that was handed to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steered {
    /// Which run.
    pub host: RunId,
    /// What its agent made of it in the latest attempt; none: it has not said.
    pub outcome: Option<SteerOutcome>,
}

/// Which of those that wait begins first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rank {
    /// It has cancelled what ran.
    Interrupts,
    /// It was handed to a run that did not take it: the next turn.
    Returned,
    /// It waits for its turn.
    #[default]
    Queued,
}

/// What this owner has in hand of the inputs that were handed to the attempt under way.
#[derive(Debug, Default)]
pub(super) struct Steers {
    /// The agent has been heard: it knows of the run.
    pub(super) heard: bool,
    /// Given to the agent, and until when its answer is waited for.
    given: BTreeMap<RunId, Mono>,
    /// The agent has said its last word, and its answers to what it was given are awaited.
    ending: Option<(StopReason, Option<Json>)>,
}

// === impl Steers ===

impl Steers {
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Nothing more is awaited: the run is to stop.
    pub(super) fn stop(&mut self) {
        self.ending = None;
    }

    /// When the last answer has failed to come, where one is awaited.
    pub(super) fn due(&self) -> Option<Mono> {
        self.ending.as_ref().and_then(|_| self.given.values().max().copied())
    }
}

// === impl State ===

impl State {
    /// What a fact makes of an input's place among the others.
    pub(super) fn apply_to_steered(&mut self, run_id: &RunId, fact: &Fact) {
        if let Fact::TurnAdmitted { strategy, position, host_run_id, replaces, .. } = fact {
            match replaces {
                Some(_) => self.stands_in(run_id, position.unwrap_or_default()),
                None => self.admitted(run_id, *strategy, host_run_id.as_ref()),
            }
        }
        if let Fact::RunRestarted { .. } = fact {
            self.steer_again(run_id);
        }
        if let Fact::AgentSteerAcked { outcome, .. } = fact {
            self.steer_acked(run_id, *outcome);
        }
    }

    fn admitted(&mut self, run_id: &RunId, strategy: Admission, host: Option<&RunId>) {
        let Some(run) = self.runs.get_mut(run_id) else { return };
        if let (Admission::Steered, Some(host)) = (strategy, host) {
            run.steered = Some(Steered { host: host.clone(), outcome: None });
            return;
        }
        let returned = run.steered.take().is_some();
        if self.waiting.contains(run_id) {
            // Somebody else is to answer it, which changes nothing else.
            return;
        }
        let interrupts = strategy == Admission::Interrupts && !planted(Mutant::InterruptQueues);
        run.rank = match (interrupts, returned) {
            (true, _) => Rank::Interrupts,
            (false, true) => Rank::Returned,
            (false, false) => Rank::Queued,
        };
        let (rank, first) = (run.rank, run.first);
        let place = if interrupts { 0 } else { self.place_among_waiting(rank, first) };
        self.waiting.insert(place, run_id.clone());
    }

    /// An input has the place of another, which has ended.
    fn stands_in(&mut self, run_id: &RunId, ahead: u32) {
        let place = (ahead as usize).saturating_sub(usize::from(self.running.is_some()));
        if self.runs.contains_key(run_id) {
            self.waiting.insert(place.min(self.waiting.len()), run_id.clone());
        }
    }

    /// Before the first that has less of a claim to be next.
    fn place_among_waiting(&self, rank: Rank, first: Seq) -> usize {
        let after = |run_id: &RunId| {
            let other = self.runs.get(run_id);
            rank == Rank::Returned && other.is_some_and(|other| (other.rank, other.first) > (rank, first))
        };
        self.waiting.iter().position(after).unwrap_or(self.waiting.len())
    }

    /// An agent has answered.
    fn steer_acked(&mut self, run_id: &RunId, outcome: SteerOutcome) {
        if let Some(steered) = self.runs.get_mut(run_id).and_then(|run| run.steered.as_mut()) {
            steered.outcome = Some(outcome);
        }
    }

    /// Another attempt knows nothing of what the one before was given.
    fn steer_again(&mut self, host: &RunId) {
        if planted(Mutant::SteerStaysTaken) {
            return;
        }
        let steered = self.runs.values_mut().filter_map(|run| run.steered.as_mut());
        for steered in steered.filter(|steered| steered.host == *host) {
            steered.outcome = None;
        }
    }

    /// Inputs that a run hosts, or hosted, in their order.
    fn steered(&self) -> Vec<(RunId, Steered)> {
        let steered =
            self.runs.iter().filter_map(|(id, run)| Some((run.first, id.clone(), run.steered.clone()?)));
        let mut steered: Vec<_> = steered.collect();
        steered.sort_by_key(|(first, ..)| *first);
        steered.into_iter().map(|(_, id, steered)| (id, steered)).collect()
    }

    /// Whether a turn is handed to a run.
    pub(super) fn is_steered(&self, run_id: &RunId) -> bool {
        self.runs.get(run_id).is_some_and(|run| run.steered.is_some())
    }
}

// === impl SessionRuntime ===

impl SessionRuntime {
    /// The run that takes this input, if one can. An input that brings along what was said before is a turn: an agent
    /// that is in the middle of one has no use for another history.
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
        let ending = matches!(&self.attempt, Attempt::Live(live) if live.steers.is_ending());
        // Two people may use the same name for what they say; an agent answers by that name.
        let named = |other: &RunId| {
            self.state.runs.get(other).is_some_and(|other| other.message_id == input.message_id)
        };
        let twice = self.state.steered().iter().any(|(other, _)| named(other));
        (takes && !ending && !twice).then(|| host.clone())
    }

    /// What follows for interjections from anything that has happened.
    pub(super) fn settle_steers(&mut self, now: Now) {
        self.finish(now);
        for (run_id, steered) in self.state.steered() {
            if !self.inputs.contains_key(&run_id) {
                continue;
            }
            let open = self.state.runs.contains_key(&steered.host);
            match (open, steered.outcome) {
                (_, Some(SteerOutcome::Refused)) => self.return_steer(now, &run_id),
                (false, Some(SteerOutcome::Accepted)) if !planted(Mutant::SteerTwice) => {
                    self.end(now, &run_id, Ending::Steered { host: steered.host });
                }
                (false, _) if planted(Mutant::SteerLost) => {
                    self.end(now, &run_id, Ending::Steered { host: steered.host });
                }
                (false, _) => self.return_steer(now, &run_id),
                (true, Some(SteerOutcome::Accepted)) => {}
                (true, None | Some(SteerOutcome::Pending)) => self.give_steer(now, &run_id, &steered.host),
            }
        }
    }

    /// It was not taken: it becomes the next turn (ST-9).
    fn return_steer(&mut self, now: Now, run_id: &RunId) {
        if !self.is_open() {
            return self.stop(now, run_id);
        }
        let Some(run) = self.state.runs.get(run_id) else { return };
        let Some(agent_id) = run.agent.clone() else { return };
        self.outbox.recall(run_id);
        let place = self.state.place_among_waiting(Rank::Returned, run.first);
        let ahead = place + usize::from(self.state.running.is_some());
        let position = u32::try_from(ahead).ok().filter(|ahead| *ahead > 0);
        let strategy = if ahead == 0 { Admission::Run } else { Admission::Queued };
        let fact = Fact::TurnAdmitted { agent_id, strategy, position, host_run_id: None, replaces: None };
        self.record(now, fact, About::run(run_id));
    }

    /// Gives it to the agent, once in each attempt and by each owner.
    fn give_steer(&mut self, now: Now, run_id: &RunId, host: &RunId) {
        let epoch = match &self.attempt {
            Attempt::Live(live) if live.run_id == *host => self.ordered_under(host, live.attempt),
            Attempt::Live(_) | Attempt::Delayed { .. } | Attempt::None => return,
        };
        let cancelling = self.is_cancelling(host);
        let (Some(taken), Attempt::Live(live)) = (self.inputs.get(run_id), &mut self.attempt) else { return };
        let Some(agent_id) = self.state.runs.get(host).and_then(|run| run.agent.clone()) else { return };
        let gone = live.steers.is_ending() || cancelling || !live.steers.heard;
        if gone || live.steers.given.contains_key(run_id) {
            return;
        }
        let due = now.mono + limits::STEER_ACK;
        live.steers.given.insert(run_id.clone(), due);
        // The agent is to answer this first: its silence about the run counts from then on.
        live.restart_silence(due);
        let input = Arc::clone(&taken.input);
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
            actions: self.state.actions.told_with(host),
            traceparent: input.traceparent.clone(),
        };
        let order = Output::Order(Order::Steer(Box::new(steer)));
        if planted(Mutant::SteerEarly) {
            self.outbox.now(order);
        } else {
            self.outbox.after(self.state.tail.seq, order);
        }
    }

    /// An agent has answered an interjection. What it has said once stays: only "pending" is followed by anything.
    pub(super) fn steer_answered(
        &mut self,
        now: Now,
        host: &RunId,
        message_id: &MessageId,
        outcome: SteerOutcome,
    ) {
        let named = |(run_id, steered): &(RunId, Steered)| {
            let run = self.state.runs.get(run_id);
            steered.host == *host && run.is_some_and(|run| run.message_id == *message_id)
        };
        let found = self.state.steered().into_iter().find(named);
        let said = found.as_ref().and_then(|(_, steered)| steered.outcome);
        let (Some((run_id, _)), Attempt::Live(live)) = (found, &self.attempt) else {
            self.counts.late_reports += 1;
            return;
        };
        let given = live.steers.given.contains_key(&run_id);
        if !given || said.is_some_and(|said| said.is_final() || said == outcome) {
            self.counts.late_reports += 1;
            return;
        }
        let Some(agent_id) = self.state.runs.get(host).and_then(|run| run.agent.clone()) else { return };
        let (host_run_id, attempt) = (host.clone(), live.attempt);
        let fact = Fact::AgentSteerAcked { agent_id, host_run_id, attempt, outcome };
        self.record(now, fact, About::agent(&run_id));
    }

    /// The agent has said its last word. What it was given and has not answered may be part of it: its answers are
    /// waited for, so that nothing it took is asked of it again (ST-9).
    pub(super) fn finished(&mut self, now: Now, run_id: &RunId, stop: StopReason, usage: Option<Json>) {
        if let Attempt::Live(live) = &mut self.attempt {
            live.steers.ending = Some((stop, usage));
            let least = now.mono + limits::STEER_ACK_AFTER_END;
            live.steers.given.values_mut().for_each(|due| *due = (*due).max(least));
        }
        if planted(Mutant::SteerUnawaited) {
            return self.finish_now(now, run_id);
        }
        self.finish(now);
    }

    /// Ends the run whose agent has said its last word, once nothing is awaited any more.
    fn finish(&mut self, now: Now) {
        let Attempt::Live(live) = &self.attempt else { return };
        if !live.steers.is_ending() {
            return;
        }
        let unanswered = |run_id: &RunId| {
            let run = self.state.runs.get(run_id);
            run.and_then(|run| run.steered.as_ref()).is_some_and(|steered| steered.outcome.is_none())
        };
        let awaited = |(run_id, due): (&RunId, &Mono)| *due > now.mono && unanswered(run_id);
        if !live.steers.given.iter().any(awaited) {
            let run_id = live.run_id.clone();
            self.finish_now(now, &run_id);
        }
    }

    fn finish_now(&mut self, now: Now, run_id: &RunId) {
        let Attempt::Live(live) = &mut self.attempt else { return };
        if let Some((stop, usage)) = live.steers.ending.take() {
            self.end(now, run_id, Ending::Completed { stop, usage });
        }
    }
}
