//! Turnway.
pub mod script;
pub mod real;
