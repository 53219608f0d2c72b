//! Behaviour of simulated agents for steering messages: accepted, refused, unanswered, or answered too late.
use super::fixtures;
use super::world::{ScheduledEvent, World};
use turnway_core::id::{NodeId, RunId};
use turnway_core::protocol::agent::AgentEvent;
use turnway_core::protocol::steer::{Steer, SteerOutcome};
use turnway_node::switchboard::Input;

/// Behaviour for one steering message; follows from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SteeringBehaviour {
    /// Accepts, and answers so.
    Takes,
    /// Refuses, and answers so.
    Refuses,
    /// Ignores the message without an answer.
    Deaf,
    /// Decides after the deadline.
    Late,
    /// Accepts, answers twice, and contradicts itself.
    Twice,
    /// Answers `pending`, and accepts later.
    Ponders,
}

fn behaviour(n: u64) -> SteeringBehaviour {
    match n % 9 {
        0..=2 => SteeringBehaviour::Takes,
        3 => SteeringBehaviour::Refuses,
        4 => SteeringBehaviour::Deaf,
        5 => SteeringBehaviour::Late,
        6 => SteeringBehaviour::Twice,
        _ => SteeringBehaviour::Ponders,
    }
}

/// An answer on its way to the node that asked.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    node: NodeId,
    steer: Steer,
    outcome: SteerOutcome,
    /// True if the agent decides only at delivery, if it still runs.
    decides: bool,
}

/// Returns the key of a steering message: input, run and attempt.
fn name(steer: &Steer) -> (RunId, RunId, u32) {
    (steer.turn_id.clone(), steer.run_id.clone(), steer.attempt)
}

impl World {
    /// Handles a steering message to an agent.
    pub(crate) fn steer(&mut self, node: NodeId, steer: Steer) {
        let behaviour = behaviour(fixtures::number(&steer.message));
        let speaks = self.streams.speaks(node, &steer.run_id, steer.attempt);
        let name = name(&steer);
        // An agent that can resume knows earlier steering messages.
        let known = self.streams.steer_outcomes.get(&name).copied();
        let answer = |outcome, decides| Answer { node, steer: steer.clone(), outcome, decides };
        let accepted = SteerOutcome::Accepted;
        let refused = SteerOutcome::Refused;
        match (known, speaks, behaviour) {
            (Some(known), _, _) => self.say_steer((1, 400), answer(known, false)),
            (None, false, _) => self.say_steer((1, 400), answer(refused, false)),
            (None, true, SteeringBehaviour::Takes | SteeringBehaviour::Twice) => {
                self.takes(&steer);
                self.say_steer((1, 400), answer(accepted, false));
                if behaviour == SteeringBehaviour::Twice {
                    self.say_steer((401, 900), answer(accepted, false));
                    self.say_steer((401, 900), answer(refused, false));
                }
            }
            (None, true, SteeringBehaviour::Refuses) => {
                self.streams.steer_outcomes.insert(name, refused);
                self.say_steer((1, 400), answer(refused, false));
            }
            (None, true, SteeringBehaviour::Deaf) => {}
            (None, true, SteeringBehaviour::Late) => self.say_steer((2200, 4000), answer(accepted, true)),
            (None, true, SteeringBehaviour::Ponders) => {
                self.say_steer((1, 200), answer(SteerOutcome::Pending, false));
                self.say_steer((201, 1500), answer(accepted, true));
            }
        }
    }

    fn say_steer(&mut self, (from, to): (u64, u64), answer: Answer) {
        self.later(from, to, ScheduledEvent::Steered { answer: Box::new(answer) });
    }

    /// Decides on a steering message, unless an earlier owner has passed on the same one.
    fn makes_up_its_mind(&mut self, node: NodeId, steer: &Steer) -> SteerOutcome {
        if let Some(known) = self.streams.steer_outcomes.get(&name(steer)) {
            return *known;
        }
        if !self.streams.speaks(node, &steer.run_id, steer.attempt) {
            return SteerOutcome::Refused;
        }
        self.takes(steer);
        SteerOutcome::Accepted
    }

    fn takes(&mut self, steer: &Steer) {
        let name = name(steer);
        self.ledger.took(&steer.key, name.clone());
        self.streams.steer_outcomes.insert(name, SteerOutcome::Accepted);
    }

    /// Delivers an answer to the node.
    pub(crate) fn steered(&mut self, answer: Answer) {
        let Answer { node, steer, mut outcome, decides } = answer;
        if decides {
            outcome = self.makes_up_its_mind(node, &steer);
        }
        let Steer { key, run_id, attempt, epoch, message_id, .. } = steer;
        let events = vec![AgentEvent::Steered { message_id, outcome }];
        self.give_to(node, Input::Agent { key, run_id, attempt, epoch, events });
    }
}
