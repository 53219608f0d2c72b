//! A node, from its plan to its end: everything is built before anything is begun.
//!
//! - [`build`]: takes ports, opens the store, puts the rooms together.
//! - [`run`]: serves, drains, leaves.
//! - [`ready`]: what is said once it serves.
pub mod build;
pub mod ready;
pub mod run;

pub use build::{App, BuildError};
