//! Turnway's shell: sockets, clocks, tasks and disks around a brain that has none.
//!
//! The shell performs and reports; it has no opinions about sessions.
pub mod agent;
pub mod store;
