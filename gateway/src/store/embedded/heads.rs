//! A cache of session heads that were used recently, and the set of changed heads that the next commit writes. Used
//! by the writer thread alone.
use crate::store::embedded::fault::Fault;
use crate::store::embedded::head::Head;
use crate::store::embedded::record::Spot;
use crate::store::embedded::tables::{self, Tables};
use std::collections::HashMap;
use turnway_core::id::SessionKey;

/// Heads that are cached at least; at most twice as many, about 1.5 MiB.
const KEPT: usize = 1_024;

/// Session heads in two generations: a head that is not used while one generation fills is evicted. Only the writer
/// changes heads, so a cached head is never older than the table. All heads are dropped when a batch is rolled back.
#[derive(Default)]
pub(super) struct Heads {
    young: HashMap<SessionKey, Head>,
    old: HashMap<SessionKey, Head>,
    dirty: Vec<SessionKey>,
}

impl Heads {
    /// Returns the head of a session; an empty head for an unknown session.
    pub(super) fn find(&mut self, key: &SessionKey, tables: &Tables<'_>) -> Result<&mut Head, Fault> {
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
    pub(super) fn change(&mut self, key: &SessionKey) {
        if let Some(head) = self.young.get_mut(key)
            && !head.dirty
        {
            head.dirty = true;
            self.dirty.push(key.clone());
        }
    }

    /// Drops all cached heads, including uncommitted changes.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns whether the session has changes that wait for the commit.
    pub(super) fn is_dirty(&self, key: &SessionKey) -> bool {
        self.young.get(key).is_some_and(|head| head.dirty)
    }

    /// Writes every changed head once, however many ops changed it.
    pub(super) fn write(&mut self, tables: &mut Tables<'_>) -> Result<(), Fault> {
        for key in self.dirty.drain(..) {
            if let Some(head) = self.young.get_mut(&key) {
                head.dirty = false;
                let prefix = tables::prefix(&key);
                tables.heads.insert(&*prefix, &*head.seal(&prefix))?;
            }
        }
        // No head is dirty now, so a generation can be dropped.
        if self.young.len() > KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        Ok(())
    }
}

fn load(key: &SessionKey, tables: &Tables<'_>) -> Result<Head, Fault> {
    let prefix = tables::prefix(key);
    match redb::ReadableTable::get(&tables.heads, &*prefix)? {
        None => Ok(Head::default()),
        Some(value) => Head::unseal(Spot { table: "heads", key: &prefix }, value.value()),
    }
}
