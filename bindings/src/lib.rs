//! The switchboard: connects conversations to sessions, sessions to agents, and answers back to
//! conversations. Nothing here does IO, reads a clock, rolls a die, locks or awaits.
//!
//! # Layout (each line leans only on those below it)
//! - [`switchboard`]: one node's brain: asks, feeds, seats, leases.
//! - [`link`]: one connection's machine: hello, heartbeats, bad input, rendering; [`dialin`]: one agent's that has
//!   dialed in; [`runner`]: those of tool runners, and who of them does what; [`toolbox`]: a tool runner's own side.
//! - [`trunk`]: attempts at agents that have dialed in at another node.
//! - [`channel`]: what clients may say and are shown, and its JSON; [`peer`]: what nodes say to each other.
pub mod channel;
pub mod dialin;
pub mod link;
pub mod peer;
pub mod runner;
pub mod switchboard;
pub mod toolbox;
pub mod trunk;
