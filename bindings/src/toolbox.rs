//! A tool runner's own side (protocol.md §1.7): the allowed programs, the running processes, and the state of
//! requested actions. Must not be used by a node; the command line `turnway` drives it.
pub mod allowed;
mod io;
mod machine;
pub mod process;
pub mod record;
pub mod spool;
mod talk;
pub mod tools;
pub mod words;

pub use io::{Gate, Input, Output};
pub use machine::Toolbox;
