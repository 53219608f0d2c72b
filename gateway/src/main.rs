//! Turnway.
fn main() {}
