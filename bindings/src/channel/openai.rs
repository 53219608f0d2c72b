//! OpenAI's chat completions as a channel: one request is one turn, in their words both ways.
//!
//! A model is an agent: `agent/<agent_id>`. What cannot be said in OpenAI's words is refused rather than
//! left out in silence, where it would change what the answer looks like.
//!
//! # Layout (each line leans only on those below it)
//! - [`Call`]: what was asked, and which turn it is ([`Name`]).
//! - [`Chunks`]: the answer piece by piece; [`Whole`]: the answer at once.
//! - `progress`: what of a session's notes concerns one call.
//! - `frame`: the shapes that are written; `usage`: what an agent counts, in OpenAI's words.
//! - [`Trouble`]: what can go wrong, as an error object; [`model`]: names.
mod call;
mod chunks;
mod frame;
mod messages;
pub mod model;
mod name;
mod progress;
mod trouble;
mod usage;
mod whole;

pub use call::{CALL_BYTES_MAX, Call};
pub use chunks::Chunks;
pub use frame::Head;
pub use name::Name;
pub use trouble::Trouble;
pub use whole::Whole;
