//! The only source of time: everything else is told.
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use turnway_core::time::{Millis, Mono, Now};

/// Reads both clocks of a node. Clones share their readings.
#[derive(Clone, Debug)]
pub struct Clock {
    /// What the monotonic clock read when the node started.
    start: Duration,
    /// The latest wall time ever told: where the system's clock is set back, ours stands still.
    latest: Arc<AtomicU64>,
}

// === impl Clock ===

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { start: boot_time(), latest: Arc::default() }
    }

    /// The time, by both clocks. Neither ever goes back.
    pub fn now(&self) -> Now {
        Now { mono: self.mono(), store: self.wall() }
    }

    /// The time since the node started, suspended or not.
    pub fn mono(&self) -> Mono {
        Mono(boot_time().saturating_sub(self.start))
    }

    /// On one machine the store's clock is the system's, so nothing has to be learned from replies.
    #[expect(clippy::disallowed_methods, reason = "this is where time comes from")]
    fn wall(&self) -> Millis {
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let system = u64::try_from(system.as_millis()).unwrap_or(u64::MAX);
        Millis(self.latest.fetch_max(system, Ordering::Relaxed).max(system))
    }
}

/// Time since the machine booted, sleep included: a node that was suspended must know that its lease
/// ran out meanwhile, and `CLOCK_MONOTONIC`, which `Instant` reads, would not tell it.
fn boot_time() -> Duration {
    let read = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(read.tv_sec).unwrap_or(0), u32::try_from(read.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_clock_goes_back() {
        let clock = Clock::start();
        clock.latest.store(u64::MAX - 1, Ordering::Relaxed);
        let (before, after) = (clock.now(), clock.clone().now());
        assert_eq!(before.store, Millis(u64::MAX - 1));
        assert_eq!(after.store, before.store);
        assert!(after.mono >= before.mono);
    }
}
