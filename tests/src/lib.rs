//! Turnway.
