//! Turnway.
pub mod laws;
pub mod script;
pub mod torn;
pub mod real;
