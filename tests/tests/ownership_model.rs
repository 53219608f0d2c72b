//! Model checking of the ownership protocol: explores every history within small bounds, and checks that each rule
//! has a variant without the rule that fails. `MODEL_LARGE=1` explores larger bounds, which takes minutes.
//!
//! Covers: G1, G2, G3, G6, G9.
use turnway_simulator::model::checked::{
    EPOCHS_ONCE, FACTS_STAY, FENCED, NOTHING_LOST, ONE_END, ONE_WRITER, PROGRESS, Protocol, TAKEN_OVER,
};
use turnway_simulator::model::rules::{Clock, FaultBudget, Fence, Register, Rules};
use turnway_simulator::sim::verdict::cores;
use turnway_tests::real::{figure, size};

const NONE: FaultBudget =
    FaultBudget { crashes: 0, lapses: 0, failovers: 0, index_failovers: 0, unknowns: 0, losses: 0, late: 0 };

/// Scenarios: name, store clock, number of turns, faults. Each number is a maximum, so every scenario includes the
/// ones with fewer faults.
const VISITS: [(&str, Clock, u8, FaultBudget); 6] = [
    ("two fail-overs", Clock::Runs, 1, FaultBudget { failovers: 2, ..NONE }),
    ("a lapse and a fail-over", Clock::FellBack, 1, FaultBudget { lapses: 1, failovers: 1, ..NONE }),
    (
        "answers lost, a late copy, a fail-over",
        Clock::Runs,
        1,
        FaultBudget { unknowns: 1, late: 1, failovers: 1, ..NONE },
    ),
    (
        "answers lost, a late copy, a fail-over",
        Clock::FellBack,
        1,
        FaultBudget { unknowns: 1, late: 1, failovers: 1, ..NONE },
    ),
    (
        "a crash, words lost, a late copy, a fail-over of the index",
        Clock::Runs,
        1,
        FaultBudget { crashes: 1, index_failovers: 1, losses: 1, late: 1, ..NONE },
    ),
    ("two turns, words lost", Clock::Runs, 2, FaultBudget { losses: 1, ..NONE }),
];

/// Larger bounds, explored only with `MODEL_LARGE=1`.
const LARGE: [(&str, Clock, u8, FaultBudget); 8] = [
    ("a lapse and a fail-over", Clock::Runs, 1, FaultBudget { lapses: 1, failovers: 1, ..NONE }),
    ("two fail-overs", Clock::FellBack, 1, FaultBudget { failovers: 2, ..NONE }),
    ("two turns, a crash", Clock::Runs, 2, FaultBudget { crashes: 1, ..NONE }),
    ("two turns, a fail-over", Clock::FellBack, 2, FaultBudget { failovers: 1, ..NONE }),
    ("a crash and a lapse", Clock::Runs, 1, FaultBudget { crashes: 1, lapses: 1, ..NONE }),
    ("a crash and a fail-over", Clock::FellBack, 1, FaultBudget { crashes: 1, failovers: 1, ..NONE }),
    ("a crash and a fail-over", Clock::Runs, 1, FaultBudget { crashes: 1, failovers: 1, ..NONE }),
    (
        "a crash, answers and words lost, a late copy, a fail-over of the index",
        Clock::Runs,
        1,
        FaultBudget { crashes: 1, index_failovers: 1, unknowns: 1, losses: 1, late: 1, ..NONE },
    ),
];

/// Every property holds in every history, whether or not the store's clock has fallen back.
#[test]
fn ownership_properties_hold_in_all_histories() {
    let large = size("MODEL_LARGE", 0) > 0;
    let mut seen = Vec::new();
    let mut states = 0;
    for (what, clock, turns, harm) in VISITS.into_iter().chain(LARGE.into_iter().filter(|_| large)) {
        let rules = Rules { clock, ..Rules::DESIGN };
        let visited = Protocol { rules, turns, harm }.explore(cores());
        figure(
            &format!("ownership model, {what}, clock {clock:?}"),
            format!("{} states, {} steps deep", visited.states, visited.depth),
        );
        assert!(visited.failed.is_empty(), "{what}, clock {clock:?}: {:?}", visited.failed);
        seen.extend(visited.seen);
        states += visited.states;
    }
    figure("ownership model, all", format!("{states} states"));
    assert!(seen.contains(&FENCED) && seen.contains(&TAKEN_OVER), "the visits are too tame: {seen:?}");
}

/// Returns the variants that break one rule, each with the smallest faults that show the error and with the
/// property that must fail.
fn broken_rules() -> Vec<(&'static str, Rules, FaultBudget, &'static str)> {
    let design = Rules::DESIGN;
    let back = Rules { clock: Clock::FellBack, ..design };
    let overtaken = FaultBudget { lapses: 1, failovers: 1, ..NONE };
    let forgotten = FaultBudget { failovers: 1, ..NONE };
    let crash = FaultBudget { crashes: 1, ..NONE };
    let unknown = FaultBudget { unknowns: 1, late: 1, ..NONE };
    vec![
        ("a fence of >=", Rules { fence: Fence::AtLeast, ..back }, overtaken, ONE_WRITER),
        ("a fence without the nonce", Rules { fence: Fence::Epoch, ..back }, overtaken, ONE_WRITER),
        ("epochs that only count", Rules { clock: Clock::Ignored, ..design }, forgotten, EPOCHS_ONCE),
        ("accepted before the replica has it", Rules { waits: false, ..design }, forgotten, NOTHING_LOST),
        ("recorded before the replica has it", Rules { waits: false, ..design }, forgotten, FACTS_STAY),
        ("no dedupe", Rules { dedupe: false, ..design }, unknown, ONE_END),
        ("an end that leaves its input", Rules { consumes: false, ..design }, NONE, ONE_END),
        ("a write without its place", Rules { places: false, ..design }, unknown, ONE_END),
        ("a claim of whatever is there", Rules { expects: false, ..design }, NONE, PROGRESS),
        ("registered after the claim", Rules { register: Register::Late, ..design }, crash, PROGRESS),
        (
            "registered where the replica does not know",
            Rules { register: Register::Unacknowledged, ..design },
            FaultBudget { index_failovers: 1, ..crash },
            PROGRESS,
        ),
        (
            "released before it is acknowledged",
            Rules { heard: false, ..design },
            FaultBudget { losses: 1, ..NONE },
            PROGRESS,
        ),
        ("eras that go unnoticed", Rules { eras: false, ..design }, overtaken, PROGRESS),
        (
            "named by a late copy of one's own claim",
            Rules { takes_on: false, ..design },
            FaultBudget { failovers: 1, ..unknown },
            PROGRESS,
        ),
        ("no sweep", Rules { sweeps: false, ..design }, crash, PROGRESS),
    ]
}

/// A rule whose removal breaks no property would be useless, and so would a property that cannot fail.
#[test]
fn each_broken_ownership_rule_violates_its_property() {
    let mut spared = Vec::new();
    for (what, rules, harm, property) in broken_rules() {
        let visited = Protocol { rules, turns: 1, harm }.explore_until(cores(), property);
        match visited.failed.iter().find(|(name, _)| *name == property) {
            Some((_, steps)) => figure(
                &format!("ownership model, {what}"),
                format!("\"{property}\" fails after {} steps, {} states", steps.len(), visited.states),
            ),
            None => spared.push((what, property, visited.states)),
        }
    }
    assert!(spared.is_empty(), "these must fail: {spared:?}");
}
