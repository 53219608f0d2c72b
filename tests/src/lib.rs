//! Turnway.
pub mod script;
pub mod torn;
pub mod real;
