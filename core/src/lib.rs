//! The pure heart of Turnway: names, time, the store's language, and the session's machine.
//!
//! Nothing here does IO, reads a clock, rolls a die, locks or awaits. Everything is told.
//!
//! # Layout (each line leans only on those below it)
//! - [`session`]: one session's machine: decide, record, then speak.
//! - [`store`]: everything a store may be asked, as data, and [`store::Shelf`], the model of it.
//! - [`protocol`]: inputs, facts, orders, refusals, and the one binary codec.
//! - [`clock`]: the wall time, made of readings of clocks that may be wrong.
//! - [`machine`], [`timers`], [`rate`], [`share`], [`limits`], [`private`], [`shrink`]: what every machine shares.
//! - [`id`], [`time`], [`rng`]: names, time and chance as values.
pub mod clock;
pub mod id;
pub mod limits;
pub mod machine;
pub mod mutant;
pub mod planted;
pub mod private;
pub mod protocol;
pub mod rate;
pub mod rng;
pub mod session;
pub mod share;
pub mod shrink;
pub mod store;
pub mod time;
pub mod timers;

/// States what must be true. A breach panics in tests and in the simulator; a node's driver catches
/// it, counts it, and gives up its seats rather than the process (architecture: "Errors").
#[macro_export]
macro_rules! invariant {
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            panic!("invariant: {}", format_args!($($arg)+));
        }
    };
}
