//! The delays between reconnects, with jitter from a replayable random source. Used by the client's state machine.
use crate::limits;
use crate::planted::{Planted, planted};
use std::time::Duration;

/// The delays between reconnects: doubled from `base` to `max`, each reduced by up to half at random, so that the
/// clients of a lost node do not reconnect together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay before the first reconnect.
    pub base: Duration,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: limits::BACKOFF_BASE, max: limits::BACKOFF_MAX }
    }
}

impl Backoff {
    /// Returns the delay after `failures` consecutive failures, with jitter from a random number.
    pub fn after(self, failures: u32, random: u64) -> Duration {
        self.delay(failures, &mut SplitMix::from_seed(random))
    }

    /// Returns the delay after `failures` consecutive failures, with jitter from `chance`.
    pub(crate) fn delay(self, failures: u32, chance: &mut SplitMix) -> Duration {
        let whole = self.base.saturating_mul(1u32 << failures.min(16));
        let whole = if planted(Planted::SdkBackoffUncapped) { whole } else { whole.min(self.max) };
        whole / 2 + chance.duration_below(whole / 2)
    }
}

/// A random number generator without external state, so that a client can be replayed: SplitMix64, which suffices for
/// jitter.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random duration below `bound`, in whole microseconds; zero for a bound of zero.
    pub(crate) fn duration_below(&mut self, bound: Duration) -> Duration {
        let micros = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.next() % micros.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_a_limit_with_jitter() {
        let backoff = Backoff::default();
        let mut chance = SplitMix::from_seed(7);
        for failures in 0..40 {
            let whole = backoff.base.saturating_mul(1 << failures.min(16)).min(backoff.max);
            let wait = backoff.delay(failures, &mut chance);
            assert!(wait >= whole / 2 && wait <= whole, "{failures}: {wait:?}");
        }
        assert_ne!(backoff.delay(5, &mut chance), backoff.delay(5, &mut chance));
    }
}
