//! The store's clock.
use crate::store::embedded::Clock;
use std::sync::atomic::{AtomicU64, Ordering};
use turnway_core::time::{Millis, Now};

/// The clock it was given, made so that the store's time never goes back within the process.
pub(in crate::store) struct Wall {
    clock: Clock,
    last: AtomicU64,
}

impl Wall {
    pub(in crate::store) fn new(clock: Clock) -> Self {
        Self { clock, last: AtomicU64::new(0) }
    }

    /// Now. A system clock that was set back stands still here until it has caught up.
    pub(in crate::store) fn now(&self) -> Now {
        let now = (self.clock)();
        let last = self.last.fetch_max(now.store.0, Ordering::Relaxed);
        Now { mono: now.mono, store: Millis(now.store.0.max(last)) }
    }
}
