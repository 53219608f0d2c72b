//! OpenAI's chat completions as a channel: one request is one turn, and a model name `agent/<agent_id>` selects an
//! agent.
//! Must not silently ignore a request that would change the answer's shape: such a request is refused.
mod call;
mod call_ids;
mod collect;
mod data_url;
mod error;
mod frame;
mod messages;
pub mod model;
mod progress;
mod stream;
mod usage;

pub use call::ChatCall;
pub use call_ids::ChatCallIds;
pub use collect::ChatCollector;
pub use error::ChatError;
pub use frame::ChatResponseHead;
pub use messages::{ChatFile, ChatFiles};
pub use stream::ChatStream;
