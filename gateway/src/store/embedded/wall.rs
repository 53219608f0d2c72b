//! The store's clock: the one that it is given, which follows the rules of `turnway_core::clock`. It keeps nothing of
//! what that clock once told, so a clock that was wrong leaves no trace.
use crate::store::embedded::Clock;
use turnway_core::time::Now;

/// The clock of a store on one machine.
pub(in crate::store) struct Wall(Clock);

impl Wall {
    pub(in crate::store) fn new(clock: Clock) -> Self {
        Self(clock)
    }

    /// Returns the time.
    pub(in crate::store) fn now(&self) -> Now {
        (self.0)()
    }
}
