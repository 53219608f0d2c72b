//! The rows of conversations in the embedded store, and two tables derived from them: the conversations of each session,
//! and the times at which rows are due. Decides nothing about a row; [`change_row`] does.
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::record::{RecordLocation, RecordWriter};
use crate::store::embedded::report::CheckReport;
use crate::store::embedded::tables::{
    CONVERSATION_TIMES, CONVERSATIONS, SESSION_CONVERSATIONS, WriteTable, prefix_range_end, session_prefix,
};
use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, WriteTransaction,
};
use std::collections::BTreeSet;
use turnway_core::id::{SessionId, SessionKey};
use turnway_core::limits;
use turnway_core::protocol::binding::Binding;
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::store::ConversationReply;
use turnway_core::store::binding::{BindingAction, BindingRow, change_row, listing_changes};
use turnway_core::time::Millis;

/// The tables of conversations in one write transaction.
pub(super) struct ConversationTables<'txn> {
    rows: WriteTable<'txn>,
    /// The key of a session, then that of a conversation that is bound to it.
    listed: WriteTable<'txn>,
    /// The time at which a row is due, then its key.
    times: WriteTable<'txn>,
    /// Keys of the rows that this transaction has changed.
    changed: BTreeSet<String>,
}

/// The rows of conversations as of the last commit.
pub(super) struct CommittedRows(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl CommittedRows {
    pub(super) fn open(database: &Database) -> Result<Self, StoreFault> {
        Ok(Self(database.begin_read()?.open_table(CONVERSATIONS)?))
    }

    /// Looks up a row, and replies as [`ConversationTables::change`] does.
    pub(super) fn resolve(&self, now: Millis, key: &ConversationKey) -> Result<ConversationReply, StoreFault> {
        let row = read_row(&self.0, key.to_string().as_bytes())?;
        let (outcome, row) = change_row(row, now, &BindingAction::Resolve);
        Ok(ConversationReply::Row { outcome, row: row.map(Box::new) })
    }
}

impl<'txn> ConversationTables<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, StoreFault> {
        Ok(Self {
            rows: txn.open_table(CONVERSATIONS)?,
            listed: txn.open_table(SESSION_CONVERSATIONS)?,
            times: txn.open_table(CONVERSATION_TIMES)?,
            changed: BTreeSet::new(),
        })
    }

    /// Returns whether this transaction has changed any row.
    pub(super) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns whether this transaction has changed a row.
    pub(super) fn is_changed(&self, key: &ConversationKey) -> bool {
        self.has_changes() && self.changed.contains(&key.to_string())
    }

    /// Performs an action on a row. Returns the reply, and whether anything changed.
    pub(super) fn change(
        &mut self,
        now: Millis,
        key: &ConversationKey,
        action: &BindingAction,
    ) -> Result<(ConversationReply, bool), StoreFault> {
        let name = key.to_string();
        let before = read_row(&self.rows, name.as_bytes())?;
        let (outcome, after) = change_row(before.clone(), now, action);
        let is_changed = before != after;
        if is_changed {
            self.write(key, name.as_bytes(), before.as_ref(), after.as_ref())?;
            self.changed.insert(name);
        }
        Ok((ConversationReply::Row { outcome, row: after.map(Box::new) }, is_changed))
    }

    fn write(
        &mut self,
        key: &ConversationKey,
        name: &[u8],
        before: Option<&BindingRow>,
        after: Option<&BindingRow>,
    ) -> Result<(), StoreFault> {
        match after {
            Some(row) => drop(self.rows.insert(name, &*seal_row(name, row)?)?),
            None => drop(self.rows.remove(name)?),
        }
        for (session, is_listed) in listing_changes(before, after) {
            let entry = listed_key(key, &session);
            if is_listed { drop(self.listed.insert(&*entry, &[][..])?) } else { drop(self.listed.remove(&*entry)?) }
        }
        let was = before.and_then(BindingRow::due);
        let is = after.and_then(BindingRow::due);
        if was != is {
            if let Some(was) = was {
                self.times.remove(&*time_key(was, name))?;
            }
            if let Some(is) = is {
                self.times.insert(&*time_key(is, name), &[][..])?;
            }
        }
        Ok(())
    }

    /// Returns whether the session has too many bindings for a further one, of this conversation.
    pub(super) fn is_full(&self, key: &ConversationKey, session: &SessionId) -> Result<bool, StoreFault> {
        let entry = listed_key(key, session);
        if self.listed.get(&*entry)?.is_some() {
            return Ok(false);
        }
        let prefix = session_prefix(&SessionKey { tenant: key.tenant.clone(), session: session.clone() });
        let end = prefix_range_end(&prefix);
        Ok(self.listed.range(&*prefix..&*end)?.count() >= limits::SESSION_BINDINGS_MAX)
    }

    /// Returns the active bindings of a session.
    pub(super) fn list(&self, session: &SessionKey) -> Result<Vec<Binding>, StoreFault> {
        let prefix = session_prefix(session);
        let end = prefix_range_end(&prefix);
        let mut bindings = Vec::new();
        for item in self.listed.range(&*prefix..&*end)? {
            let (entry, _) = item?;
            let name = entry.value().get(prefix.len()..).unwrap_or_default();
            let row = read_row(&self.rows, name)?;
            let active = row.as_ref().and_then(BindingRow::active);
            bindings.extend(active.filter(|binding| binding.session == session.session).cloned());
        }
        Ok(bindings)
    }

    /// Returns the row of each conversation, if it has one.
    pub(super) fn read(&self, keys: &[ConversationKey]) -> Result<Vec<Option<BindingRow>>, StoreFault> {
        keys.iter().map(|key| read_row(&self.rows, key.to_string().as_bytes())).collect()
    }

    /// Returns rows that are due, those first that have waited longest.
    pub(super) fn due(&self, now: Millis, limit: u32) -> Result<Vec<ConversationKey>, StoreFault> {
        let end = time_key(Millis(now.0.saturating_add(1)), &[]);
        let mut due = Vec::new();
        for item in self.times.range::<&[u8]>(..&*end)?.take(limit as usize) {
            let (entry, _) = item?;
            let spot = RecordLocation { table: "conversation_times", key: entry.value() };
            match parse_name(entry.value().get(TIME_BYTES..).unwrap_or_default()) {
                Some(key) => due.push(key),
                None => tracing::error!(fault = %spot.damaged("invalid encoding"), "a damaged index entry was skipped"),
            }
        }
        Ok(due)
    }
}

const TIME_BYTES: usize = 8;

fn listed_key(key: &ConversationKey, session: &SessionId) -> Vec<u8> {
    let mut bytes = session_prefix(&SessionKey { tenant: key.tenant.clone(), session: session.clone() });
    bytes.extend_from_slice(key.to_string().as_bytes());
    bytes
}

fn time_key(at: Millis, name: &[u8]) -> Vec<u8> {
    [&at.0.to_be_bytes()[..], name].concat()
}

fn parse_name(name: &[u8]) -> Option<ConversationKey> {
    ConversationKey::parse(std::str::from_utf8(name).ok()?).ok()
}

fn seal_row(name: &[u8], row: &BindingRow) -> Result<Vec<u8>, StoreFault> {
    let json = serde_json::to_vec(row).map_err(|_| StoreFault::Structure("a conversation's row cannot be encoded"))?;
    Ok(RecordWriter::new(json.len()).raw(&json).seal(name))
}

fn unseal_row(name: &[u8], value: &[u8]) -> Result<BindingRow, StoreFault> {
    let spot = RecordLocation { table: "conversations", key: name };
    serde_json::from_slice(spot.unseal(value)?).map_err(|_| spot.damaged("invalid encoding"))
}

/// Returns whether a row of a copy can be read.
pub(super) fn is_intact(name: &[u8], value: &[u8]) -> bool {
    parse_name(name).is_some() && unseal_row(name, value).is_ok()
}

fn read_row(
    rows: &impl ReadableTable<&'static [u8], &'static [u8]>,
    name: &[u8],
) -> Result<Option<BindingRow>, StoreFault> {
    rows.get(name)?.map(|value| unseal_row(name, value.value())).transpose()
}

/// Returns the entries of both derived tables for a row.
fn derived_keys(key: &ConversationKey, name: &[u8], row: &BindingRow) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    (row.listed_session().map(|session| listed_key(key, session)), row.due().map(|at| time_key(at, name)))
}

/// Builds the derived tables from the rows. Damaged rows are left out.
pub(super) fn rebuild(txn: &WriteTransaction) -> Result<(), StoreFault> {
    let mut tables = ConversationTables::open(txn)?;
    tables.listed.retain(|_, _| false)?;
    tables.times.retain(|_, _| false)?;
    for item in tables.rows.iter()? {
        let (name, value) = item?;
        let Some(key) = parse_name(name.value()) else { continue };
        let Ok(row) = unseal_row(name.value(), value.value()) else { continue };
        let (listed, time) = derived_keys(&key, name.value(), &row);
        if let Some(listed) = listed {
            tables.listed.insert(&*listed, &[][..])?;
        }
        if let Some(time) = time {
            tables.times.insert(&*time, &[][..])?;
        }
    }
    Ok(())
}

/// Checks every row, and that the derived tables say what the rows do.
pub(super) fn check(txn: &ReadTransaction, report: &mut CheckReport) -> Result<(), StoreFault> {
    let listed = txn.open_table(SESSION_CONVERSATIONS)?;
    let times = txn.open_table(CONVERSATION_TIMES)?;
    let mut derived = [BTreeSet::new(), BTreeSet::new()];
    for item in txn.open_table(CONVERSATIONS)?.iter()? {
        let (name, value) = item?;
        let spot = RecordLocation { table: "conversations", key: name.value() };
        report.conversations += 1;
        let key = parse_name(spot.key).ok_or_else(|| spot.damaged("not a conversation's key"));
        match key.and_then(|key| Ok((key, unseal_row(spot.key, value.value())?))) {
            Ok((key, row)) => {
                let (in_listed, in_times) = derived_keys(&key, spot.key, &row);
                derived[0].extend(in_listed);
                derived[1].extend(in_times);
            }
            Err(fault) => report.add_fault(&fault),
        }
    }
    for (table, entries, known) in
        [("session_conversations", &listed, &derived[0]), ("conversation_times", &times, &derived[1])]
    {
        let is_same = entries.len()? == known.len() as u64 && {
            let mut is_there = true;
            for entry in known {
                is_there &= entries.get(&**entry)?.is_some();
            }
            is_there
        };
        if !is_same {
            report.add_fault(&RecordLocation { table, key: b"*" }.damaged("contradicts the rows of conversations"));
        }
    }
    Ok(())
}
