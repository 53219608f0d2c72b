//! How much of one process's output is carried.
use std::time::Duration;
use turnway_core::time::Mono;

/// So many bytes in a second, and as many at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// When a whole second's worth may come at once again.
    full: Mono,
}

// === impl Pace ===

impl Pace {
    /// Whether so many bytes more may go on now, of so many in a second; they are counted if so.
    pub fn take(&mut self, now: Mono, bytes: usize, per_second: u64) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let cost = Duration::from_micros(bytes.saturating_mul(1_000_000) / per_second.max(1));
        let full = self.full.max(now) + cost;
        let may = full - now <= Duration::from_secs(1);
        if may {
            self.full = full;
        }
        may
    }
}
