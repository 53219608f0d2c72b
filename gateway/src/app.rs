//! The life of a node process: [`build`] binds ports, opens the store and connects the parts; [`run`] serves, drains
//! and shuts down; [`ready`] prints the startup messages; `skew_monitor` monitors clock skew. Everything is built
//! before anything is started. Called by `node`.
pub mod build;
pub mod ready;
pub mod run;
mod skew_monitor;

pub use build::{App, BuildError};
