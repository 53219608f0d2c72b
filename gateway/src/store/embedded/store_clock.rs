//! The clock of a store on one machine. It keeps no state of the clock it wraps, which follows the rules of
//! `turnway_core::clock`, so that a wrong reading leaves no trace.
use crate::store::embedded::ClockFn;
use turnway_core::time::Now;

/// The clock of a store on one machine.
pub(in crate::store) struct StoreClock(ClockFn);

impl StoreClock {
    pub(in crate::store) fn new(clock: ClockFn) -> Self {
        Self(clock)
    }

    /// Returns the current time.
    pub(in crate::store) fn now(&self) -> Now {
        (self.0)()
    }
}
