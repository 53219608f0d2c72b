//! The heads of sessions that were asked about lately.
use crate::store::embedded::fault::Fault;
use crate::store::embedded::head::Head;
use crate::store::embedded::record::Spot;
use crate::store::embedded::tables::{self, Tables};
use std::collections::HashMap;
use turnway_core::id::SessionKey;

/// Heads that are kept at least; twice as many at most, about 1.5 MiB.
const KEPT: usize = 1_024;

/// Heads in memory, in two generations: what is not asked for while one fills is forgotten. The
/// writer alone changes heads, so what is here is always at least as new as the table. Where a
/// batch is taken back, all of them are forgotten.
#[derive(Default)]
pub(super) struct Heads {
    young: HashMap<SessionKey, Head>,
    old: HashMap<SessionKey, Head>,
    dirty: Vec<SessionKey>,
}

impl Heads {
    /// The head of a session; of one that was never heard of, an empty one.
    pub(super) fn find(&mut self, key: &SessionKey, tables: &Tables<'_>) -> Result<&mut Head, Fault> {
        if !self.young.contains_key(key) {
            let head = match self.old.remove(key) {
                Some(head) => head,
                None => load(key, tables)?,
            };
            self.young.insert(key.clone(), head);
        }
        // It was put there above.
        Ok(self.young.entry(key.clone()).or_default())
    }

    /// Notes that a head differs from the table's.
    pub(super) fn change(&mut self, key: &SessionKey) {
        if let Some(head) = self.young.get_mut(key)
            && !head.dirty
        {
            head.dirty = true;
            self.dirty.push(key.clone());
        }
    }

    /// Forgets all of them, with what was changed and not committed.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether anything of the session waits for the commit.
    pub(super) fn is_dirty(&self, key: &SessionKey) -> bool {
        self.young.get(key).is_some_and(|head| head.dirty)
    }

    /// Writes every changed head once, however many steps changed it.
    pub(super) fn write(&mut self, tables: &mut Tables<'_>) -> Result<(), Fault> {
        for key in self.dirty.drain(..) {
            if let Some(head) = self.young.get_mut(&key) {
                head.dirty = false;
                let prefix = tables::prefix(&key);
                tables.heads.insert(&*prefix, &*head.seal(&prefix))?;
            }
        }
        // Nothing is dirty now, so a generation can go.
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
