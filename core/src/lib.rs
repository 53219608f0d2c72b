//! Pure building blocks of Turnway: ids, time, limits, the store's operations and their model, and the session
//! machine. Nothing in this crate does IO, reads a clock, asks the system for randomness, locks or awaits: callers
//! pass all inputs in. Modules depend on lower layers only (ARCHITECTURE.md, "Layers").
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

/// Asserts an invariant. A violation panics in tests and in the simulator; in production the node's driver catches
/// the panic, counts it, and gives up the owned sessions rather than the process (ARCHITECTURE.md, "Errors").
#[macro_export]
macro_rules! invariant {
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            panic!("invariant: {}", format_args!($($arg)+));
        }
    };
}
