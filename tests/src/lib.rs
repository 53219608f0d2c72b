//! Turnway.
pub mod script;
