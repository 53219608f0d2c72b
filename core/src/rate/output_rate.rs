//! Rate limit for the output of one process.
use crate::time::Mono;
use std::time::Duration;

/// A rate limit in bytes per second, with a burst of one second.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputRate {
    /// The time at which a full burst is available again.
    full_at: Mono,
}

// === impl OutputRate ===

impl OutputRate {
    /// Returns whether `bytes` more bytes may pass now at `per_second`; counts the bytes if so.
    pub fn take(&mut self, now: Mono, bytes: usize, per_second: u64) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let cost = Duration::from_micros(bytes.saturating_mul(1_000_000) / per_second.max(1));
        let full = self.full_at.max(now) + cost;
        let may = full - now <= Duration::from_secs(1);
        if may {
            self.full_at = full;
        }
        may
    }
}
