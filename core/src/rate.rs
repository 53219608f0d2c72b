//! Rate limits by the generic cell rate algorithm (GCRA, ITU-T I.371 annex A), which keeps one time per bucket and
//! needs no timer. [`shared`] holds buckets that several nodes share, [`OutputRate`] the output of one process.
mod output_rate;
pub mod shared;

pub use output_rate::OutputRate;

use crate::limits;
use crate::time::Mono;
use std::time::Duration;

/// A permitted rate with its burst size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Time between two permitted operations when they are evenly spaced.
    interval: Duration,
    /// Longest lead of operations over even spacing (the tolerance of GCRA).
    tolerance: Duration,
}

// === impl Rate ===

impl Rate {
    /// Creates a rate of `count` per `period`; returns `None` for a count of zero or more than one per nanosecond.
    /// The burst is what [`limits::RATE_BURST`] allows, and at least [`limits::RATE_BURST_MIN`].
    pub fn new(count: u32, period: Duration) -> Option<Self> {
        let interval = period.checked_div(count).filter(|interval| !interval.is_zero())?;
        let least = interval * (limits::RATE_BURST_MIN - 1);
        Some(Self { interval, tolerance: limits::RATE_BURST.saturating_sub(interval).max(least) })
    }

    /// Takes one unit of a bucket that is full again at `full`. Returns the new time at which the bucket is full, or
    /// the time to wait until there is room. A bucket that was never used may be given any past time as `full`.
    pub fn try_take(self, full: Mono, now: Mono) -> Result<Mono, Duration> {
        let full = full.max(now);
        match (full - now).checked_sub(self.tolerance) {
            Some(wait) if !wait.is_zero() => Err(wait),
            Some(_) | None => Ok(full + self.interval),
        }
    }

    /// Returns the number of operations that may come at once.
    pub fn burst(self) -> u32 {
        let more = self.tolerance.as_nanos() / self.interval.as_nanos();
        u32::try_from(more).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Returns how much later a bucket is full after `count` operations.
    pub fn cost(self, count: u32) -> Duration {
        self.interval.saturating_mul(count)
    }

    /// Returns how many operations of a shared rate a node may let through before it reports them to the store.
    pub fn report_threshold(self) -> u32 {
        (self.burst() / limits::RATE_REPORT_PARTS).max(1)
    }

    /// Returns the longest time that a caller is made to wait for operations that other nodes let through.
    pub fn debt_max(self) -> Duration {
        self.cost(self.burst()).saturating_mul(limits::RATE_DEBT_BURSTS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn at(ms: u64) -> Mono {
        Mono(Duration::from_millis(ms))
    }

    /// Covers: S-17.
    #[test]
    fn burst_is_two_seconds_then_requests_are_evenly_spaced() {
        let rate = Rate::new(10, Duration::from_secs(1)).expect("a rate");
        let mut full = Mono::default();
        let mut now = at(5_000);
        for _ in 0..20 {
            full = rate.try_take(full, now).expect("a burst");
        }
        assert_eq!(rate.try_take(full, now), Err(Duration::from_millis(100)));
        now = at(5_100);
        full = rate.try_take(full, now).expect("after what it was told to wait");
        assert_eq!(rate.try_take(full, now), Err(Duration::from_millis(100)));
    }

    /// Covers: S-17.
    #[test]
    fn a_slow_rate_still_has_a_burst() {
        let rate = Rate::new(1, Duration::from_secs(60)).expect("a rate");
        let mut full = Mono::default();
        for _ in 0..limits::RATE_BURST_MIN {
            full = rate.try_take(full, at(0)).expect("a burst");
        }
        assert_eq!(rate.try_take(full, at(0)), Err(Duration::from_secs(60)));
        assert_eq!(Rate::new(0, Duration::from_secs(1)), None);
        assert_eq!(Rate::new(u32::MAX, Duration::from_nanos(1)), None);
    }

    /// Checks random sequences: no window of time holds more operations than the rate and one burst allow.
    ///
    /// Covers: S-17.
    #[test]
    fn no_window_exceeds_rate_plus_burst() {
        let mut rng = Rng::from_number(1);
        for count in 1..60_u32 {
            let rate = Rate::new(count, Duration::from_secs(1)).expect("a rate");
            let mut full = Mono::default();
            let mut now = 1_000;
            let mut taken = Vec::new();
            for _ in 0..400 {
                now += rng.below(4_000 / u64::from(count));
                match rate.try_take(full, at(now)) {
                    Ok(next) => {
                        full = next;
                        taken.push(now);
                    }
                    Err(after) => {
                        assert!(rate.try_take(full, at(now) + after).is_ok(), "what it says is enough")
                    }
                }
            }
            let burst = u64::from((count * 2).max(limits::RATE_BURST_MIN));
            for (n, begin) in taken.iter().enumerate() {
                for (m, end) in taken.iter().enumerate().skip(n) {
                    let most = burst + (end - begin) * u64::from(count) / 1000 + 1;
                    assert!((m - n + 1) as u64 <= most, "{} in {} ms at {count}/s", m - n + 1, end - begin);
                }
            }
        }
    }
}
