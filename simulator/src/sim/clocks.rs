//! Simulates one clock that drifts, glitches and steps at random, and checks the laws of the time derived from it.
use std::time::Duration;
use turnway_core::clock::{ClockEvent, ClockReading, WallClock};
use turnway_core::limits;
use turnway_core::rng::Rng;
use turnway_core::time::{Millis, Mono};

const DAWN_MS: u64 = 1_760_000_000_000;

/// Simulates half an hour. The time goes back only when a step is accepted, a step is accepted only after it has
/// lasted, and the time is right again once the clock is.
pub fn glitches(seed: u64) {
    let mut rng = Rng::from_number(seed);
    let reading = |ms: u64, off: i64, late: u64| {
        let after = Mono(Duration::from_millis(ms.saturating_sub(late)));
        let before = Mono(Duration::from_millis(ms));
        ClockReading { time: Millis((DAWN_MS + ms).saturating_add_signed(off)), after, before }
    };
    let mut clock = WallClock::anchored(reading(0, 0, 0));
    let mut ms = 0;
    let mut off = 0_i64;
    let mut stepped = 0;
    let mut last = clock.at(Mono::default());
    let belief = u64::try_from(limits::CLOCK_STEP_CONFIRM.as_millis()).unwrap_or(u64::MAX);
    while ms < 1_800_000 {
        ms += 100 + rng.below(1500);
        let before = off;
        match rng.below(30) {
            0 | 1 => off = 0,
            2 => off = rng.below(172_800_000).cast_signed() - 86_400_000,
            3 => off += rng.below(40_000).cast_signed() - 20_000,
            _ => {}
        }
        // A smaller change may still agree with the previous readings.
        if off.abs_diff(before) > 12_000 {
            stepped = ms;
        }
        let change = clock.observe(reading(ms, off, rng.below(400)));
        let now = clock.at(Mono(Duration::from_millis(ms)));
        if let Some(ClockEvent::StepAccepted(_)) = change {
            assert!(ms - stepped >= belief, "a step of a clock is believed only after it lasted");
        } else {
            assert!(now >= last, "the time goes back only where a step is believed: {last:?} {now:?}");
        }
        last = now;
    }
    for _ in 0..600 {
        ms += 1000;
        clock.observe(reading(ms, 0, 0));
    }
    let left = clock.at(Mono(Duration::from_millis(ms))).0.abs_diff(DAWN_MS + ms);
    assert!(left < 1000, "the time is right once the clock is: {left} ms");
}
