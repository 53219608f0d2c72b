//! One session: its state as a projection of its log, and the machine that owns it.
pub mod state;
