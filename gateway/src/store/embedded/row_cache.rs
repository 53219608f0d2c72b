//! Rows of conversations that were used recently. A look-up of such a row is answered in its caller's thread, without the
//! two changes of threads that the writer costs; a row that a queued op may change is left to the writer.
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::store::binding::{BindingAction, BindingOutcome, BindingRow};
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply, StoreError};

/// The cached rows of one store, as of the last commit.
#[derive(Default)]
pub(super) struct RowCache {
    rows: Mutex<CachedRows>,
}

/// Rows in two generations: a row that is not used while one generation fills is evicted. An absent row is cached too.
#[derive(Default)]
struct CachedRows {
    young: HashMap<ConversationKey, Option<Box<BindingRow>>>,
    old: HashMap<ConversationKey, Option<Box<BindingRow>>>,
    /// The number of queued ops that may change a row; bounded by [`limits::STORE_QUEUE_MAX`]. Such a row is not cached.
    changing: HashMap<ConversationKey, usize>,
}

impl RowCache {
    fn lock(&self) -> MutexGuard<'_, CachedRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the look-up of a cached row. Any other op is the writer's, and has to be passed to [`Self::finish`] when
    /// the writer has performed it.
    pub(super) fn begin(&self, op: &Op) -> Option<Reply> {
        let (key, action) = row_op(op)?;
        let mut rows = self.lock();
        if !matches!(action, BindingAction::Resolve) {
            if !planted(Planted::CachedRowBeforeChange) {
                rows.forget(key);
            }
            *rows.changing.entry(key.clone()).or_default() += 1;
            return None;
        }
        let row = rows.find(key)?;
        Some(Reply::Conversation(ConversationReply::Row { outcome: BindingOutcome::Applied, row }))
    }

    /// Caches the row that an op has read or written, unless an op behind it may change the row. Ops are passed in the
    /// order in which the writer performed them.
    pub(super) fn finish(&self, op: &Op, result: &Result<Reply, StoreError>) {
        let Some((key, action)) = row_op(op) else { return };
        let mut rows = self.lock();
        if !matches!(action, BindingAction::Resolve) {
            rows.settle(key);
        }
        if let Ok(Reply::Conversation(ConversationReply::Row { row, .. })) = result
            && (!rows.changing.contains_key(key) || planted(Planted::CachedRowOutdated))
        {
            rows.insert(key.clone(), row.clone());
        }
    }
}

impl CachedRows {
    fn find(&mut self, key: &ConversationKey) -> Option<Option<Box<BindingRow>>> {
        if let Some(row) = self.young.get(key) {
            return Some(row.clone());
        }
        let (key, row) = self.old.remove_entry(key)?;
        self.insert(key, row.clone());
        Some(row)
    }

    fn insert(&mut self, key: ConversationKey, row: Option<Box<BindingRow>>) {
        if self.young.len() >= limits::BINDING_CACHE_ROWS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, row);
    }

    fn forget(&mut self, key: &ConversationKey) {
        self.young.remove(key);
        self.old.remove(key);
    }

    /// Records that the writer has performed an op that may have changed the row.
    fn settle(&mut self, key: &ConversationKey) {
        if let Some(count) = self.changing.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.changing.remove(key);
            }
        }
    }
}

/// Returns the row that an op is about, and the action on it.
fn row_op(op: &Op) -> Option<(&ConversationKey, &BindingAction)> {
    let Op::Conversation { op: ConversationOp::Change { key, action }, .. } = op else { return None };
    Some((key, action))
}
