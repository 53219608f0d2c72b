//! State machines of one node, driven by `gateway`: no IO, clock, randomness, locks or `async`.
//! Modules depend downwards only: [`switchboard`], [`remote_attempts`]; [`dialin`], [`runner`], [`link`]; [`connection`].
pub mod connection;
pub mod dialin;
pub mod link;
pub mod remote_attempts;
pub mod runner;
pub mod switchboard;
