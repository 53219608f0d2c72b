//! Wire messages and state machines of one node, driven by `gateway`: no IO, clock, randomness, locks or `async`.
//! Modules depend downwards only: [`switchboard`], [`trunk`], [`toolbox`]; [`peer`]; [`dialin`], [`runner`];
//! [`link`]; [`channel`].
pub mod channel;
pub mod dialin;
pub mod link;
pub mod peer;
pub mod runner;
pub mod switchboard;
pub mod toolbox;
pub mod trunk;
