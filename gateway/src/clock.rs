//! The only source of time: everything else is told.
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use turnway_core::time::{Millis, Mono, Now};

/// Reads both clocks of a node. Clones share their readings.
#[derive(Clone, Debug)]
pub struct Clock {
    /// What the store's clock read when the node started, where that is not the system's; 0: not told yet.
    told: Option<Arc<AtomicU64>>,
    /// What the monotonic clock read when the node started.
    start: Duration,
    /// The latest wall time ever told: where the system's clock is set back, ours stands still.
    latest: Arc<AtomicU64>,
}

// === impl Clock ===

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { told: None, start: boot_time(), latest: Arc::default() }
    }

    /// One that goes by the clock of a store elsewhere, as soon as it is told what that reads.
    pub fn of_a_fleet() -> Self {
        Self { told: Some(Arc::default()), ..Self::start() }
    }

    /// The store's clock read this a moment ago. Of no meaning on one machine, whose clock is the store's.
    pub fn told(&self, store: Millis, now: Mono) {
        if let Some(told) = &self.told {
            told.store(store.0.saturating_sub(millis(now.0)), Ordering::Relaxed);
        }
    }

    /// The time, by both clocks. Neither ever goes back.
    pub fn now(&self) -> Now {
        let mono = self.mono();
        Now { mono, store: self.wall(mono) }
    }

    /// The time since the node started, suspended or not.
    pub fn mono(&self) -> Mono {
        Mono(boot_time().saturating_sub(self.start))
    }

    /// On one machine the store's clock is the system's. In a fleet it is what the store last said, and
    /// what has passed since.
    #[expect(clippy::disallowed_methods, reason = "this is where time comes from")]
    fn wall(&self, mono: Mono) -> Millis {
        let read = match self.told.as_ref().map_or(0, |told| told.load(Ordering::Relaxed)) {
            0 => millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            told => told.saturating_add(millis(mono.0)),
        };
        Millis(self.latest.fetch_max(read, Ordering::Relaxed).max(read))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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

    #[test]
    fn a_node_of_a_fleet_goes_by_the_clock_of_its_store() {
        let clock = Clock::of_a_fleet();
        let own = clock.now();
        let ahead = own.store.after(Duration::from_secs(3600));
        clock.told(ahead, own.mono);
        assert!(
            clock.now().store >= ahead && clock.clone().now().store < ahead.after(Duration::from_secs(60))
        );
        clock.told(own.store, own.mono);
        assert!(clock.now().store >= ahead, "it stands still until it is true again");
        let alone = Clock::start();
        alone.told(ahead, own.mono);
        assert!(alone.now().store < ahead);
    }
}
