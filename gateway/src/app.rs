//! A node, from its plan to its end: everything is built before anything is begun.
//!
//! - [`build`]: takes ports, opens the store, puts the rooms together.
//! - [`run`]: serves, drains, leaves.
//! - [`ready`]: what is said once it serves.
//! - `timekeeper`: looks how far the system's clock is off.
pub mod build;
pub mod ready;
pub mod run;
mod timekeeper;

pub use build::{App, BuildError};
