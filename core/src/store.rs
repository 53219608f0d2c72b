//! The operations of a store and their replies, as data; every op is one atomic step and safe to repeat. [`ModelStore`]
//! is the deterministic model: the embedded store and Redis must answer as the model does, and the simulator uses it as
//! its store.
pub mod binding;
pub mod blob;
mod meter;
mod model_bindings;
mod model_store;
mod op;
pub mod quota;
mod reply;
mod session_index;
mod stored_session;

pub use model_store::ModelStore;
pub use op::{Append, ConversationOp, Op, OpTicket, RouteVersion, SnapshotWrite};
pub use reply::{
    Acceptance, Claimed, ConversationReply, CreationKey, FactPage, IdleCursor, InboxContents, Reply, RunLocation,
    SessionSummary, SessionView, Snapshot, StoreError, StoreRefusal,
};
pub use stored_session::StoredSession;
