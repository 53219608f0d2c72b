//! Every message that a node sends or receives, parsed and rendered: no IO, clock, randomness, locks or `async`.
//! Modules depend downwards only: [`schema`]; [`peer`]; [`agent`], [`runner`]; [`channel`].
pub mod agent;
pub mod channel;
pub mod peer;
pub mod runner;
pub mod schema;
