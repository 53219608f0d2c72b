//! Connections to Redis: each [`Line`] is one connection with one purpose, reconnected whenever it is lost; [`reach`]
//! finds the primary and logs in; [`refusal`] classifies errors. Nothing is queued while a connection is down: a
//! command fails at once. Used by `store::redis` and `bus::redis`.
mod line;
pub mod reach;
pub mod refusal;

pub use line::{Hears, Line, Missed, Settings};
