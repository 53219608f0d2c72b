//! How agents treat what they are handed while they answer: some take it, some do not, some say nothing, or too late.
use super::cast;
use super::world::{Happening, World};
use turnway_bindings::switchboard::Input;
use turnway_core::id::{NodeId, RunId};
use turnway_core::protocol::agent::AgentEvent;
use turnway_core::protocol::steer::{Steer, SteerOutcome};

/// How an agent treats one input; follows from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ear {
    /// Takes it, and says so.
    Takes,
    /// Leaves it, and says so.
    Refuses,
    /// Leaves it, and says nothing.
    Deaf,
    /// Makes up its mind when nobody waits for it any more.
    Late,
    /// Takes it, says so twice, and contradicts itself.
    Twice,
    /// Says that it will see, and takes it later.
    Ponders,
}

fn ear(n: u64) -> Ear {
    match n % 9 {
        0..=2 => Ear::Takes,
        3 => Ear::Refuses,
        4 => Ear::Deaf,
        5 => Ear::Late,
        6 => Ear::Twice,
        _ => Ear::Ponders,
    }
}

/// An answer that is under way to the node that asked.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    node: NodeId,
    steer: Steer,
    outcome: SteerOutcome,
    /// It is taken only now, if the agent still speaks.
    decides: bool,
}

/// What was handed to which attempt.
fn name(steer: &Steer) -> (RunId, RunId, u32) {
    (steer.turn_id.clone(), steer.run_id.clone(), steer.attempt)
}

impl World {
    /// A node hands an agent an input while it answers another one.
    pub(crate) fn steer(&mut self, node: NodeId, steer: Steer) {
        let ear = ear(cast::number(&steer.message));
        let speaks = self.streams.speaks(node, &steer.run_id, steer.attempt);
        let name = name(&steer);
        // An agent that outlives its owners knows what it was handed before.
        let known = self.streams.minds.get(&name).copied();
        let answer = |outcome, decides| Answer { node, steer: steer.clone(), outcome, decides };
        let (accepted, refused) = (SteerOutcome::Accepted, SteerOutcome::Refused);
        match (known, speaks, ear) {
            (Some(known), _, _) => self.say_steer((1, 400), answer(known, false)),
            (None, false, _) => self.say_steer((1, 400), answer(refused, false)),
            (None, true, Ear::Takes | Ear::Twice) => {
                self.takes(&steer);
                self.say_steer((1, 400), answer(accepted, false));
                if ear == Ear::Twice {
                    self.say_steer((401, 900), answer(accepted, false));
                    self.say_steer((401, 900), answer(refused, false));
                }
            }
            (None, true, Ear::Refuses) => {
                self.streams.minds.insert(name, refused);
                self.say_steer((1, 400), answer(refused, false));
            }
            (None, true, Ear::Deaf) => {}
            (None, true, Ear::Late) => self.say_steer((2200, 4000), answer(accepted, true)),
            (None, true, Ear::Ponders) => {
                self.say_steer((1, 200), answer(SteerOutcome::Pending, false));
                self.say_steer((201, 1500), answer(accepted, true));
            }
        }
    }

    fn say_steer(&mut self, (from, to): (u64, u64), answer: Answer) {
        self.later(from, to, Happening::Steered { answer: Box::new(answer) });
    }

    /// An agent makes up its mind, unless it has: an earlier owner may have handed it the same.
    fn makes_up_its_mind(&mut self, node: NodeId, steer: &Steer) -> SteerOutcome {
        if let Some(known) = self.streams.minds.get(&name(steer)) {
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
        self.streams.minds.insert(name, SteerOutcome::Accepted);
    }

    /// An answer reaches the node.
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
