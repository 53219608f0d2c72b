//! Tests that acknowledged writes survive a power cut at any call, in recovery too, and that no write is half
//! applied. `TORN_HISTORIES` sets the number of histories, `TORN_SEED` the first seed; `--profile sim` runs faster.
//!
//! Covers: G-19, MP-D7.
use std::thread;
use std::time::Instant;
use turnway_simulator::power_cuts::{self, Tally, Violation};

/// Histories on a disk that ignores syncs within which the checker must have found lost data.
const LIES: u64 = 1000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs histories on two threads; each takes every other seed.
fn histories(first: u64, count: u64) -> (Tally, Vec<(u64, Violation)>) {
    let half = |offset: u64| {
        let mut tally = Tally::default();
        let seeds = (first..first + count).skip(offset as usize).step_by(2);
        let violations = seeds.filter_map(|seed| Some((seed, power_cuts::run(seed, 0, &mut tally).err()?)));
        (violations.take(1).collect::<Vec<_>>(), tally)
    };
    let ((mut violations, a), (others, b)) = thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        (half(0), other.join().expect("no history panics"))
    });
    violations.extend(others);
    let tally = Tally {
        histories: a.histories + b.histories,
        acknowledged: a.acknowledged + b.acknowledged,
        cuts: a.cuts + b.cuts,
        cuts_in_recovery: a.cuts_in_recovery + b.cuts_in_recovery,
        kept: a.kept + b.kept,
        lost: a.lost + b.lost,
    };
    (tally, violations)
}

#[test]
fn acknowledged_writes_survive_power_cuts() {
    let default = if cfg!(debug_assertions) { 100 } else { 1000 };
    let first = number("TORN_SEED", 1);
    let count = number("TORN_HISTORIES", default);
    let start = Instant::now();
    let (tally, violations) = histories(first, count);
    eprintln!("seeds from {first}, {:.1?}: {tally:#?}", start.elapsed());
    if let Some((seed, violation)) = violations.first() {
        panic!("TORN_SEED={seed} TORN_HISTORIES=1: {}", violation.0);
    }
    // Cuts must have happened in recovery, and with writes kept and lost; otherwise the test proves little.
    let often = count / 10;
    assert!(tally.cuts_in_recovery >= often && tally.kept >= often && tally.lost >= often);
}

/// The disk ignores all syncs, so that hardly any file can be opened again, or only some.
#[test]
fn ignored_syncs_are_detected() {
    for lies in [100, 20, 5, 1] {
        let mut tally = Tally::default();
        let caught = (1..=LIES).find_map(|seed| Some((seed, power_cuts::run(seed, lies, &mut tally).err()?)));
        let Some((seed, Violation(what))) = caught else {
            panic!("{lies} % lies were believed for {LIES} histories");
        };
        eprintln!("{lies} % lies: found out in history {seed}: {what:.100}");
    }
}
