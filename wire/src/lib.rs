//! Every message that a node sends or receives, parsed and rendered: no IO, clock, randomness, locks or `async`.
//! Modules depend downwards only: [`schema`]; [`peer`]; [`agent`], [`runner`], [`model`]; [`channel`].
pub mod agent;
pub mod channel;
pub mod model;
pub mod peer;
pub mod runner;
pub mod schema;
