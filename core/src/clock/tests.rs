//! Rules of the node's wall time, one by one, then under random clocks.
use super::*;
use crate::rng::Rng;

const DAWN: u64 = 1_760_000_000_000;
const DAY: i64 = 86_400_000;

fn mono(ms: u64) -> Mono {
    Mono(Duration::from_millis(ms))
}

/// Returns an exact reading of a clock that is ahead by `off` milliseconds.
fn reads(at: u64, off: i64) -> ClockReading {
    let time = Millis((DAWN + at).saturating_add_signed(off));
    ClockReading { time, after: mono(at), before: mono(at) }
}

/// Returns how far the node's time is ahead of the true time, in milliseconds.
fn off(clock: &WallClock, at: u64) -> i64 {
    clock.at(mono(at)).0.cast_signed() - (DAWN + at).cast_signed()
}

/// Reads the clock once a second from `from` to `to`; returns the last event.
fn watch(clock: &mut WallClock, from: u64, to: u64, off: i64) -> Option<ClockEvent> {
    let mut last = None;
    for at in (from..=to).step_by(1000) {
        last = clock.observe(reads(at, off)).or(last);
    }
    last
}

#[test]
fn step_of_two_seconds_duration_changes_nothing() {
    let mut clock = WallClock::anchored(reads(0, 0));
    assert_eq!(clock.observe(reads(1000, DAY)), Some(ClockEvent::StepDetected(DAY)));
    assert_eq!(watch(&mut clock, 2000, 3000, DAY), None);
    assert_eq!(off(&clock, 3000), 0);
    assert_eq!(clock.observe(reads(4000, 0)), Some(ClockEvent::Recovered));
    assert_eq!((off(&clock, 4000), clock.jumps()), (0, 0));
}

#[test]
fn clock_step_is_adopted_after_30_s_of_agreement() {
    for by in [DAY, -DAY, 61_000, -61_000] {
        let mut clock = WallClock::anchored(reads(0, 0));
        assert_eq!(watch(&mut clock, 1000, 30_000, by), Some(ClockEvent::StepDetected(by)));
        assert_eq!(off(&clock, 30_000), 0);
        assert_eq!(clock.observe(reads(31_000, by)), Some(ClockEvent::StepAccepted(by)));
        assert_eq!((off(&clock, 31_000), clock.jumps()), (by, 1));
    }
}

#[test]
fn intermittent_clock_step_is_never_adopted() {
    let mut clock = WallClock::anchored(reads(0, 0));
    for round in 0..20 {
        let at = round * 40_000;
        watch(&mut clock, at + 1000, at + 28_000, DAY);
        watch(&mut clock, at + 29_000, at + 30_000, 0);
    }
    assert_eq!((off(&clock, 800_000), clock.jumps()), (0, 0));
    // A clock that jumps about is not accepted either.
    for at in (801_000..900_000).step_by(1000) {
        clock.observe(reads(at, DAY + (at as i64 / 1000 % 7) * 3_600_000));
    }
    assert_eq!((off(&clock, 900_000), clock.jumps()), (0, 0));
}

#[test]
fn missing_readings_do_not_confirm_a_step() {
    let mut clock = WallClock::anchored(reads(0, 0));
    for at in (1000..400_000).step_by(11_000) {
        clock.observe(reads(at, DAY));
    }
    assert_eq!((off(&clock, 400_000), clock.jumps()), (0, 0));
}

#[test]
fn small_step_is_followed_smoothly_and_never_back() {
    for by in [59_000, -59_000, 300, -300] {
        let mut clock = WallClock::anchored(reads(0, 0));
        assert_eq!(clock.observe(reads(1000, by)), None);
        assert_eq!(off(&clock, 1000), 0);
        let mut last = clock.at(mono(1000));
        for at in 1001..=1000 + 2 * by.unsigned_abs() {
            let now = clock.at(mono(at));
            assert!(now >= last && now.0 - last.0 <= 2, "{at}");
            last = now;
        }
        assert_eq!(off(&clock, 1000 + 2 * by.unsigned_abs()), by);
    }
}

#[test]
fn reading_within_its_uncertainty_corrects_nothing() {
    let mut clock = WallClock::anchored(reads(0, 0));
    let before = clock.segment();
    let late = ClockReading { time: Millis(DAWN + 1000), after: mono(900), before: mono(1300) };
    assert_eq!((clock.observe(late), clock.segment()), (None, before));
    // The clock answered after 300 ms, and is off by at least 200 ms.
    let off_by = ClockReading { time: Millis(DAWN + 2500), after: mono(2000), before: mono(2300) };
    clock.observe(off_by);
    assert_eq!(off(&clock, 10_000), 200);
}

#[test]
fn first_reading_replaces_a_guess() {
    for by in [3 * 3_600_000, -3 * 3_600_000, 5000, -5000] {
        let mut clock = WallClock::provisional(reads(0, by));
        assert!(clock.is_provisional());
        assert_eq!(clock.observe(reads(100, 0)), None);
        assert_eq!((off(&clock, 100), clock.is_provisional()), (0, false));
    }
}

#[test]
fn extreme_readings_do_not_overflow() {
    let mut clock = WallClock::anchored(reads(0, 0));
    for time in [0, u64::MAX, i64::MAX as u64, 1] {
        for at in (0..50_000).step_by(1000) {
            clock.observe(ClockReading { time: Millis(time), after: mono(at), before: mono(at) });
            clock.at(mono(at));
        }
    }
    clock.at(Mono(Duration::MAX));
}

/// Random clocks that drift, step and glitch: the time goes back only where a step was accepted, is never further off
/// than a step from the last accepted time, and converges to the true time once the clock has been right for long
/// enough.
#[test]
fn random_readings_keep_the_clock_invariants() {
    for number in 0..300 {
        let mut rng = Rng::from_number(number);
        let mut clock = WallClock::anchored(reads(0, 0));
        let mut at = 0;
        let mut by = 0_i64;
        let mut last = clock.at(mono(0));
        for _ in 0..400 {
            at += 1 + rng.below(1500);
            match rng.below(40) {
                0 => by = 0,
                1 => by += rng.below(100_000).cast_signed() - 50_000,
                2 => by = rng.below(4 * 86_400_000).cast_signed() - 2 * DAY,
                _ => by += rng.below(3).cast_signed() - 1,
            }
            let change = clock.observe(reads(at, by));
            let now = clock.at(mono(at));
            assert!(now >= last || matches!(change, Some(ClockEvent::StepAccepted(by)) if by < 0), "{number}");
            last = now;
        }
        watch(&mut clock, at + 1000, at + 300_000, 0);
        assert!(off(&clock, at + 300_000).abs() <= 1, "{number}: {}", off(&clock, at + 300_000));
    }
}
