//! Wire messages and state machines of one node, driven by `gateway`: no IO, clock, randomness, locks or `async`.
//! Modules depend downwards only: [`switchboard`], [`remote_attempts`], [`tool_executor`]; [`peer`]; [`dialin`],
//! [`runner`]; [`link`]; [`channel`].
pub mod channel;
pub mod dialin;
pub mod link;
pub mod peer;
pub mod remote_attempts;
pub mod runner;
pub mod switchboard;
pub mod tool_executor;
