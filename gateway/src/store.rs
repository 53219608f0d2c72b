//! Where facts live: one method, and an answer that comes back with its question.
use std::sync::Arc;
use turnway_core::store::{Op, Reply, StoreError};

pub mod embedded;
pub mod memory;
pub mod redis;
pub mod registers;

/// Takes answers. May be called from any thread; must not block for long.
pub type Answers = Arc<dyn Fn(Op, Result<Reply, StoreError>) + Send + Sync>;

/// Takes how many bytes a store holds, and how many it may hold, if that is known. Must not block.
pub type Filled = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// A store: performs each op atomically and answers it exactly once, in any order, through the
/// [`Answers`] it was made with. `submit` never blocks and never fails: trouble is an answer.
pub trait Store: Send + Sync + 'static {
    /// Asks.
    fn submit(&self, op: Op);
}
