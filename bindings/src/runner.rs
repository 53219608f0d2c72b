//! Tool runners (protocol.md §1.7): their connections, and which of them does what, as machines.
//!
//! - [`words`]: what is said both ways; [`line`]: one connection; [`shop`]: all of a node, and the actions it waits for.
//! - [`pace`]: how much of a process's output goes on.
pub mod line;
pub mod pace;
pub mod shop;
pub mod words;
