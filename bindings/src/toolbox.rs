//! A tool runner's own side (protocol.md §1.7): what it may run, what runs, and what has become of what it was asked to do.
//!
//! - [`Toolbox`]: the machine; `io`, `talk`: what goes in and out, and how it speaks with a gateway; [`tools`]: what its
//!   tools do; [`process`]: one process, from its start to its result.
//! - [`allowed`]: what may be run, and with what; [`words`]: what is said both ways; [`spool`]: what a process prints;
//!   [`record`]: what is kept on a disk.
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
