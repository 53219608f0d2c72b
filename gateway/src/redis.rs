//! Connections to Redis: kept up, watched, and honest about what became of what was asked.
//!
//! - [`Line`]: one connection with one purpose, made again whenever it is lost. The store has lines for
//!   commands, for lease renewals and for `WAIT`; the bus has its own for what it hears and what it says.
//! - [`refusal`]: what a server says when it does not do as asked, and what to do about it.
//! - [`reach`]: finds the primary, by its address or by asking Sentinels, and logs in.
//!
//! There is no queue in front of a line that is down: whoever asks is told so at once.
mod line;
pub mod reach;
pub mod refusal;

pub use line::{Hears, Line, Missed, Settings};
