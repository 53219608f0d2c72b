//! The store interface of the gateway: operations are submitted, and answers come back by a callback. Implemented by
//! the submodules; called by the driver and `registers`.
use std::sync::Arc;
use turnway_core::store::{Op, Reply, StoreError};

pub mod embedded;
pub mod memory;
pub mod redis;
pub mod registers;

/// A callback for answers. It may be called from any thread, and must not block for long.
pub type AnswerSink = Arc<dyn Fn(Op, Result<Reply, StoreError>) + Send + Sync>;

/// A callback for the bytes that a store holds, and the maximum, if known. It must not block.
pub type UsageCallback = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// A store: performs each operation atomically and answers it exactly once, in any order, through the [`AnswerSink`] it
/// was made with. `submit` never blocks and never fails: an error is an answer.
pub trait Store: Send + Sync + 'static {
    /// Submits an operation.
    fn submit(&self, op: Op);
}
