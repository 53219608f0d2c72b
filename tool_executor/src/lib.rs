//! A tool runner's own side (protocol.md §1.7): the allowed programs, the running processes, and the state of
//! requested actions. Must not be used by a node; the command line `turnway` drives it.
mod gateways;
mod io;
pub mod journal;
mod machine;
pub mod messages;
pub mod output_buffer;
pub mod process;
pub mod programs;
pub mod tools;

pub use io::{GatewayIndex, Input, Output};
pub use machine::ToolExecutor;
