//! OpenAI's chat completions as a channel: one request is one turn, and a model name `agent/<agent_id>` selects an
//! agent.
//! Must not silently ignore a request that would change the answer's shape: such a request is refused.
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
