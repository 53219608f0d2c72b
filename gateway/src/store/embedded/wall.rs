//! The clock of a store on one machine. It keeps no state of the clock it wraps, which follows the rules of
//! `turnway_core::clock`, so that a wrong reading leaves no trace.
use crate::store::embedded::Clock;
use turnway_core::time::Now;

/// The clock of a store on one machine.
pub(in crate::store) struct Wall(Clock);

impl Wall {
    pub(in crate::store) fn new(clock: Clock) -> Self {
        Self(clock)
    }

    /// Returns the current time.
    pub(in crate::store) fn now(&self) -> Now {
        (self.0)()
    }
}
