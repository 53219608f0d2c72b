//! A cache of session heads that were used recently, and the set of changed heads that the next commit writes. Used
//! by the writer thread alone.
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::record::RecordLocation;
use crate::store::embedded::tables::{self, Tables};
use std::collections::HashMap;
use turnway_core::id::SessionKey;

/// Heads that are cached at least; at most twice as many, about 1.5 MiB.
const GENERATION_MIN: usize = 1_024;

/// Session heads in two generations: a head that is not used while one generation fills is evicted. Only the writer
/// changes heads, so a cached head is never older than the table. All heads are dropped when a batch is rolled back.
#[derive(Default)]
pub(super) struct HeadCache {
    young: HashMap<SessionKey, SessionHead>,
    old: HashMap<SessionKey, SessionHead>,
    dirty: Vec<SessionKey>,
}

impl HeadCache {
    /// Returns the head of a session; an empty head for an unknown session.
    pub(super) fn find(&mut self, key: &SessionKey, tables: &Tables<'_>) -> Result<&mut SessionHead, StoreFault> {
        if !self.young.contains_key(key) {
            let head = match self.old.remove(key) {
                Some(head) => head,
                None => load(key, tables)?,
            };
            self.young.insert(key.clone(), head);
        }
        // The head was inserted above.
        Ok(self.young.entry(key.clone()).or_default())
    }

    /// Marks a head as different from the table's.
    pub(super) fn mark_dirty(&mut self, key: &SessionKey) {
        if let Some(head) = self.young.get_mut(key)
            && !head.dirty
        {
            head.dirty = true;
            self.dirty.push(key.clone());
        }
    }

    /// Drops all cached heads, including uncommitted changes.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether the session has changes that wait for the commit.
    pub(super) fn is_dirty(&self, key: &SessionKey) -> bool {
        self.young.get(key).is_some_and(|head| head.dirty)
    }

    /// Writes every changed head once, however many ops changed it.
    pub(super) fn flush(&mut self, tables: &mut Tables<'_>) -> Result<(), StoreFault> {
        for key in self.dirty.drain(..) {
            if let Some(head) = self.young.get_mut(&key) {
                head.dirty = false;
                let prefix = tables::session_prefix(&key);
                tables.heads.insert(&*prefix, &*head.seal(&prefix))?;
            }
        }
        // No head is dirty now, so a generation can be dropped.
        if self.young.len() > GENERATION_MIN {
            self.old = std::mem::take(&mut self.young);
        }
        Ok(())
    }
}

fn load(key: &SessionKey, tables: &Tables<'_>) -> Result<SessionHead, StoreFault> {
    let prefix = tables::session_prefix(key);
    match redb::ReadableTable::get(&tables.heads, &*prefix)? {
        None => Ok(SessionHead::default()),
        Some(value) => SessionHead::unseal(RecordLocation { table: "heads", key: &prefix }, value.value()),
    }
}
