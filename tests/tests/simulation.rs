//! Tests of the gateway's state machines in the simulator: whole clusters under faults, on virtual time.
//! `SIM_SECONDS=300` extends the main test; a failing seed prints the command that replays it.
//!
//! Covers: G1, G2, G3, G4, G5, G6, G7, G8, G9, G-25, RX-3, ST-5, EV-C6, MP-T1, MP-D6, MP-D7, SR-T7,
//! LN-SR3, BD-B12, BD-I4, BD-M8, BD-S1, BD-S10, BD-Q1, BD-Q7, BR-01, BR-02, BR-06, BR-07, BR-09, BR-21, BR-27,
//! BR-31, BR-32, BR-35, LN-TP9.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use turnway_core::mutant::Mutant;
use turnway_core::rng::Rng;
use turnway_simulator::laws::{Step, laws};
use turnway_simulator::sim::cases::{OwnerExit, OwnerFailure};
use turnway_simulator::sim::faults::Faults;
use turnway_simulator::sim::harness::{Move, SessionHarness, SwitchboardHarness};
use turnway_simulator::sim::verdict::{campaign, cores, env, judge, mix};
use turnway_simulator::sim::world::World;
use turnway_simulator::sim::{cases, clocks, model_calls, mutants};

/// Every seed has its own mix of faults; runs for a fixed time on every core. `SIM_FROM` and `SIM_SEEDS` select
/// seeds.
///
/// Covers: SR-S2, SR-G9, EV-N7.
#[test]
fn every_guarantee_holds_under_random_faults() {
    let day = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let from = env("SIM_FROM", day * 1000);
    let seeds = env("SIM_SEEDS", u64::MAX);
    let seconds = env("SIM_SECONDS", 10);
    let start = Instant::now();
    let done = campaign(from, seeds, Duration::from_secs(seconds));
    let total = done.total;
    let most = done.most;
    eprintln!(
        "from seed {from}: {} seeds held in {:?}; {} steps, {} faults, {} turns, {} store operations, {} words, \
         {} notes, {} parts in rooms, {} tasks, {} gathered messages, {} presses; at most {} operations and {} words in one",
        done.seeds,
        start.elapsed(),
        total.steps,
        total.faults,
        total.turns,
        total.ops,
        total.peer_messages,
        total.client_messages,
        total.posts,
        total.tasks,
        total.gathered,
        total.presses,
        most.ops,
        most.peer_messages
    );
    let wrong: Vec<String> = done.wrong.iter().map(|(seed, why)| format!("{seed}: {why:.400}")).collect();
    let again = done.wrong.first().map(|(seed, _)| {
        format!("SIM_FROM={seed} SIM_SEEDS=1 SIM_TRACE=1 cargo test --profile sim -p turnway-tests --test simulation holds -- --nocapture")
    });
    assert!(
        wrong.is_empty(),
        "{} seeds went wrong; see one again with\n{}\n{}",
        wrong.len(),
        again.unwrap_or_default(),
        wrong.join("\n")
    );
    assert!(done.seeds >= env("SIM_MIN_SEEDS", 0), "only {} seeds in {seconds} s", done.seeds);
}

/// A node's time follows its clock smoothly, and follows a step of the clock only once the step has lasted.
#[test]
fn node_time_stays_monotonic_with_a_wrong_clock() {
    (0..400).for_each(clocks::glitches);
}

/// The simulator is deterministic: the seed alone decides the history.
#[test]
fn same_seed_gives_the_same_history() {
    for seed in 0..6 {
        let digest = || {
            let mut world = World::new(seed, 5, Faults::swarm(seed));
            world.digest = Some(0xcbf2_9ce4_8422_2325);
            world.play();
            world.digest
        };
        assert_eq!(digest(), digest(), "seed {seed} is not deterministic");
    }
}

/// Idle sessions cause no store operations, regardless of their number and of their subscribers.
#[test]
fn idle_sessions_cause_no_store_operations() {
    let count = env("SIM_IDLE_SESSIONS", 500);
    let few = cases::idle_minute(10);
    let many = cases::idle_minute(count);
    eprintln!("store operations and words per idle minute: 10 sessions {few:?}, {count} sessions {many:?}");
    assert!(many.0 <= few.0 + 20 && many.1 <= few.1, "idle sessions cost: {few:?} {many:?}");
}

/// The owner fails in the middle of a turn that is followed at another node; measures the time until the turn
/// continues.
#[test]
fn failover_completes_within_its_time_limits() {
    for (blow, half_max, max) in [(OwnerFailure::Crash, 700, 1200), (OwnerFailure::Sleep, 3600, 4000)] {
        let mut waits: Vec<u64> = (0..60).filter_map(|seed| cases::failover_ms(seed, blow)).collect();
        waits.sort_unstable();
        let half = waits[waits.len() / 2];
        let most = waits[waits.len() - 1];
        eprintln!("{blow:?}: {half} ms at the median, {most} ms at most, {} cases", waits.len());
        assert!(waits.len() > 20 && half <= half_max && most <= max, "{blow:?}: {half} ms, {most} ms at most");
    }
}

/// An owner dies or drains in the middle of an answer, and the agent can resume.
///
/// Covers: G3, G6, G9, G-14.
#[test]
fn resumable_run_continues_after_its_owner_is_lost() {
    for (how, half_max, max) in [(OwnerExit::Crash, 700, 1200), (OwnerExit::Leave, 300, 600)] {
        let mut waits: Vec<u64> = (0..60).filter_map(|seed| cases::resume_ms(seed, how, 8)).collect();
        waits.sort_unstable();
        let half = waits[waits.len() / 2];
        let most = waits[waits.len() - 1];
        eprintln!("{how:?}: {half} ms at the median, {most} ms at most, {} cases", waits.len());
        assert!(waits.len() > 20 && half <= half_max && most <= max, "{how:?}: {half} ms, {most} ms at most");
    }
}

/// An owner that dies in the first seconds of a fleet is replaced as fast as later.
///
/// Covers: G9.
#[test]
fn failover_in_a_young_fleet_is_as_fast_as_later() {
    for age_s in [0, 1] {
        let cases = (0..60).filter_map(|seed| cases::resume_ms(seed, OwnerExit::Crash, age_s));
        let mut waits: Vec<u64> = cases.collect();
        waits.sort_unstable();
        let half = waits[waits.len() / 2];
        let most = waits[waits.len() - 1];
        eprintln!("{age_s} s old: {half} ms at the median, {most} ms at most, {} cases", waits.len());
        assert!(waits.len() > 20 && half <= 700 && most <= 1200, "{half} ms, {most} ms at most");
    }
}

/// Covers: G9.
#[test]
fn turns_complete_with_store_latency_over_a_renewal_period() {
    for seed in 0..20 {
        cases::far_store(seed);
    }
}

/// Covers: G3, G8.
#[test]
fn busy_agent_is_retried_after_its_requested_delay() {
    for seed in 0..20 {
        cases::busy_agent(seed);
    }
}

/// Covers: PR-11, PR-13.
#[test]
fn runs_wait_for_calls_of_models_that_each_end_once() {
    for seed in 0..40 {
        model_calls::model_calls(seed);
    }
}

/// Covers: ST-14.
#[test]
fn waiting_turn_can_be_cancelled() {
    for seed in 0..20 {
        cases::cancel_while_waiting(seed);
    }
}

/// Sessions longer than a snapshot.
///
/// Covers: SR-H4.
#[test]
fn long_session_is_taken_over_from_its_snapshot() {
    for seed in 0..3 {
        cases::long_session(seed);
    }
}

/// A planted bug that survives shows a missing checker. `SIM_ONLY` selects one bug, `SIM_MUTANT_SECONDS` is the
/// time for each.
#[test]
fn each_planted_bug_is_detected() {
    let only = std::env::var("SIM_ONLY").unwrap_or_default();
    let time = Duration::from_secs(env("SIM_MUTANT_SECONDS", 90));
    let chosen = |mutant: &&Mutant| format!("{mutant:?}").contains(&only);
    let todo: Mutex<Vec<Mutant>> = Mutex::new(Mutant::ALL.iter().rev().filter(chosen).copied().collect());
    let caught = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some(mutant) = { todo.lock().expect("no poison").pop() } {
            let found = mutants::detect(mutant, time);
            caught.lock().expect("no poison").insert(mutant, found);
        }
    };
    thread::scope(|scope| {
        for _ in 0..cores() {
            scope.spawn(work);
        }
    });
    let caught = caught.into_inner().expect("no poison");
    for (mutant, found) in &caught {
        let found = found.as_deref().unwrap_or("SURVIVES");
        eprintln!("{mutant:?} | {found:.160}");
    }
    let survivors: Vec<_> = caught.iter().filter(|(_, found)| found.is_none()).map(|(mutant, _)| mutant).collect();
    assert!(survivors.is_empty(), "missing checkers: {survivors:?}");
}

/// Seeds that failed once, in files named after the failure: `seed=`; `forgetful=` if the store lost data although
/// the seed alone does not say so; `lasting=` if some turns have an agent that can resume; `world=` for a number of the main
/// test, with its whole mix of faults.
#[test]
fn saved_seeds_pass() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(dir).expect("the folder of scenarios") {
        let path = entry.expect("a readable entry").path();
        let text = fs::read_to_string(&path).expect("a readable scenario");
        let seeds = text.lines().filter_map(|line| {
            let (kind, seed) = line.split_once('=')?;
            let seed = seed.trim().parse::<u64>().ok()?;
            match kind {
                "seed" => Some((seed, Faults::swarm(seed))),
                "forgetful" => Some((seed, Faults::swarm(seed).with_lost_writes())),
                "lasting" => Some((seed, Faults::swarm(seed).with_resumable_agent())),
                "world" => Some((seed, mix(seed))),
                _ => None,
            }
        });
        let before = wrong.len();
        let mut some = false;
        for (seed, faults) in seeds {
            some = true;
            if let Err(why) = judge(Mutant::None, || World::scenario(seed, faults)) {
                wrong.push(format!("{}: seed {seed}: {why:.300}", path.display()));
            }
        }
        assert!(some || wrong.len() > before, "{} names no seed", path.display());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Drain, progress, free wake-ups, silence and replay, over random inputs of both large machines.
///
/// Covers: SR-I6, LN-SR8.
#[test]
fn machines_satisfy_their_laws() {
    for seed in 0..env("SIM_LAWS", 40) {
        let mut rng = Rng::from_number(seed);
        let mut script = || -> Vec<Step<Move>> {
            let step = |rng: &mut Rng| {
                let wait = if rng.chance(10) { rng.below(4000) } else { rng.below(60) };
                Step { after: Duration::from_millis(wait), input: Some(Move::random(rng)) }
            };
            (0..400).map(|_| step(&mut rng)).collect()
        };
        laws(SwitchboardHarness::new, &script(), 5_000, String::clone);
        laws(SessionHarness::new, &script(), 5_000, String::clone);
    }
}

/// The message of a failed checker is reported unchanged.
#[test]
fn checker_failure_message_is_reported_unchanged() {
    let said = judge(Mutant::None, || -> u64 { panic!("G0: this and that") });
    assert_eq!(said.err().as_deref(), Some("G0: this and that"));
}
