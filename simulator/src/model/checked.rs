//! The properties of the ownership model, and the exploration of every history within the bounds.
use crate::model::fleet::Fleet;
use crate::model::rules::{Clock, FaultBudget, Rules};
use crate::model::slot::{Fact, What};
use crate::model::step::Step;
use stateright::{Checker, HasDiscoveries, Model, Property};

/// Only the owner writes: epochs in the log never decrease, and facts of one epoch belong to one claim. (G1, I1)
pub const ONE_WRITER: &str = "one writer";
/// Each epoch is given to one claim only. (I2)
pub const EPOCHS_ONCE: &str = "epochs are given once";
/// A turn that was acknowledged as accepted is in the inbox or has ended. (I3)
pub const NOTHING_LOST: &str = "nothing accepted is lost";
/// A turn ends at most once; afterwards it is in no inbox, and no fact of it is recorded. (I5)
pub const ONE_END: &str = "a turn ends once";
/// A fact that was acknowledged to its owner stays in the log. (G6)
pub const FACTS_STAY: &str = "facts stay";
/// Without further faults, the fleet ends every turn, shows it to the subscriber, and releases the session. (G9,
/// I9, I10)
pub const PROGRESS: &str = "everything comes to an end";

/// The protocol with a limited number of turns and faults.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub rules: Rules,
    /// Turns that clients request.
    pub turns: u8,
    /// Faults that may happen.
    pub harm: FaultBudget,
}

/// Result of an exploration.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// Number of different states.
    pub states: usize,
    /// Steps of the longest history.
    pub depth: usize,
    /// Failed properties, each with the shortest history that shows the failure.
    pub failed: Vec<(&'static str, Vec<Step>)>,
    /// Events that must be reachable, and were reached.
    pub seen: Vec<&'static str>,
}

/// The store lost a claim, its owner did not notice, and the owner's writes were refused.
pub const FENCED: &str = "a forgotten owner is fenced";
/// A turn was begun by one owner and ended by another.
pub const TAKEN_OVER: &str = "a turn is taken over";

fn one_writer(_: &Protocol, fleet: &Fleet) -> bool {
    let in_turn = fleet.store.log.windows(2).all(|pair| match pair {
        [before, after] => before.by == after.by || before.by.epoch < after.by.epoch,
        _ => true,
    });
    in_turn && !fleet.store.trespassed
}

fn epochs_once(protocol: &Protocol, fleet: &Fleet) -> bool {
    let same = |a: usize, b: usize| fleet.granted[a].epoch == fleet.granted[b].epoch;
    let count = fleet.granted.len();
    protocol.rules.clock == Clock::FellBack || (0..count).all(|a| (0..a).all(|b| !same(a, b)))
}

fn nothing_lost(_: &Protocol, fleet: &Fleet) -> bool {
    let there = |turn: u8| fleet.store.inbox.contains(&turn) || fleet.store.ends(turn) > 0;
    (0..fleet.turns).all(|turn| fleet.accepted & (1 << turn) == 0 || there(turn))
}

fn one_end(_: &Protocol, fleet: &Fleet) -> bool {
    (0..fleet.turns).all(|turn| {
        let mut story = fleet.store.log.iter().filter(|fact| fact.turn == turn);
        let ended = story.by_ref().any(|fact| fact.what == What::Ended);
        !ended || story.next().is_none() && !fleet.store.inbox.contains(&turn)
    })
}

fn facts_stay(_: &Protocol, fleet: &Fleet) -> bool {
    fleet.store.log.starts_with(&fleet.acknowledged)
}

fn progress(protocol: &Protocol, fleet: &Fleet) -> bool {
    fleet.settle(&protocol.rules).is_settled()
}

fn fenced(_: &Protocol, fleet: &Fleet) -> bool {
    let forgotten = |token| fleet.granted.contains(&token) && fleet.store.token.epoch <= token.epoch;
    fleet.nodes.iter().any(|node| {
        let ownership = node.seat.as_ref();
        ownership.is_some_and(|ownership| ownership.token != fleet.store.token && forgotten(ownership.token))
    })
}

fn taken_over(_: &Protocol, fleet: &Fleet) -> bool {
    let began = |end: &Fact| {
        let same = |fact: &&Fact| fact.turn == end.turn && fact.what == What::Began;
        fleet.store.log.iter().filter(same).any(|fact| fact.by != end.by)
    };
    fleet.store.log.iter().any(|fact| fact.what == What::Ended && began(fact))
}

impl Model for Protocol {
    type State = Fleet;
    type Action = Step;

    fn init_states(&self) -> Vec<Fleet> {
        vec![Fleet::new(self.turns, self.harm)]
    }

    fn actions(&self, fleet: &Fleet, steps: &mut Vec<Step>) {
        fleet.regular_steps(&self.rules, steps);
        fleet.fault_steps(&self.rules, steps);
    }

    fn next_state(&self, fleet: &Fleet, step: Step) -> Option<Fleet> {
        let mut next = fleet.clone();
        next.take(&self.rules, step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_WRITER, one_writer),
            Property::always(EPOCHS_ONCE, epochs_once),
            Property::always(NOTHING_LOST, nothing_lost),
            Property::always(ONE_END, one_end),
            Property::always(FACTS_STAY, facts_stay),
            Property::always(PROGRESS, progress),
            Property::sometimes(FENCED, fenced),
            Property::sometimes(TAKEN_OVER, taken_over),
        ]
    }
}

impl Protocol {
    /// Explores every history within the bounds, or until one of the properties fails.
    pub fn explore(self, threads: usize) -> Exploration {
        self.visit_until(threads, HasDiscoveries::AnyFailures)
    }

    /// Explores until this property fails, if it does.
    pub fn explore_until(self, threads: usize, property: &'static str) -> Exploration {
        self.visit_until(threads, HasDiscoveries::AnyOf([property].into()))
    }

    fn visit_until(self, threads: usize, found: HasDiscoveries) -> Exploration {
        let checker = self.checker().threads(threads).finish_when(found);
        let checker = checker.spawn_bfs().join();
        let found = checker.discoveries();
        let once = [FENCED, TAKEN_OVER];
        let (seen, failed): (Vec<_>, Vec<_>) = found.into_iter().partition(|(name, _)| once.contains(name));
        Exploration {
            states: checker.unique_state_count(),
            depth: checker.max_depth(),
            failed: failed.into_iter().map(|(name, path)| (name, path.into_actions())).collect(),
            seen: seen.into_iter().map(|(name, _)| name).collect(),
        }
    }
}
