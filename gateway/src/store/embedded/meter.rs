//! Stored bytes of each user: kept in memory, written with every batch, and compared with the quotas at each new
//! input. Used by the engine and its batches.
use crate::store::UsageCallback;
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::record::{RecordLocation, RecordReader, RecordWriter};
use crate::store::embedded::report::CheckReport;
use crate::store::embedded::session_transaction::blobs::parse_blob_table;
use crate::store::embedded::tables::{self, BLOBS_KIND, HEADS, IDS, LANES, LOG, SNAPSHOTS, TableDef, Tables, VALUES};
use redb::{Database, ReadableDatabase, ReadableTable, TableHandle, WriteTransaction};
use std::collections::BTreeMap;
use turnway_core::id::{SessionKey, TenantId, UserId};
use turnway_core::planted::{Planted, planted};
use turnway_core::share::Account;
use turnway_core::store::Op;
use turnway_core::store::quota::{Quotas, Usage};

/// Name prefix of the values that hold the users' bytes; no other value's name contains a NUL.
const PREFIX: &str = "usage\0";
/// The tables whose records count for the user of their session.
const COUNTED_TABLES: &[TableDef] = &[LOG, LANES, SNAPSHOTS];

/// Stored bytes of users, and their quotas.
#[derive(Debug)]
pub(super) struct UsageMeter {
    pub(super) usage: Usage,
    quotas: Quotas,
    /// Free bytes above the reserve as of the last check.
    pub(super) free: Option<u64>,
}

// === impl UsageMeter ===

impl UsageMeter {
    /// Creates the meter of a store that holds these bytes.
    pub(super) fn new(usage: Usage, quotas: Quotas) -> Self {
        Self { usage, quotas, free: None }
    }

    /// Returns whether the user who pays for a session has no quota left for an input of this weight, or for so many
    /// bytes of blobs.
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other op is subject to a quota")]
    pub(super) fn is_over(&self, key: &SessionKey, head: &SessionHead, op: &Op, weight: u64) -> bool {
        let asker = match op {
            Op::Accept { principal, .. } | Op::Blob { principal, .. } => &principal.user,
            _ => return false,
        };
        let owner = head.user.as_ref().filter(|_| !planted(Planted::QuotaOfTheAsker));
        let account = Usage::account(key, owner.unwrap_or(asker));
        self.usage.exceeded_quota(self.quotas, &account, weight.cast_signed(), self.free).is_some()
    }

    /// Reports how many bytes are stored and how many could be.
    pub(super) fn report(&self, filled: &UsageCallback) {
        let bytes = self.usage.total();
        filled(bytes, self.free.map(|free| free.saturating_add(bytes)));
    }

    /// Writes the byte counts that have changed.
    pub(super) fn write(&mut self, tables: &mut Tables<'_>) -> Result<(), StoreFault> {
        for (account, bytes) in self.usage.take_changed() {
            let name = value_name(&account);
            if bytes == 0 {
                tables.values.remove(&*name)?;
            } else {
                tables.values.insert(&*name, &*encode(&name, bytes))?;
            }
        }
        Ok(())
    }
}

/// Reads the stored byte counts. A count that cannot be read is damage.
pub(super) fn read_usage(database: &Database) -> Result<Usage, StoreFault> {
    let mut usage = Usage::default();
    let values = database.begin_read()?.open_table(VALUES)?;
    let end = tables::prefix_range_end(PREFIX.as_bytes());
    for item in values.range(PREFIX.as_bytes()..&*end)? {
        let (key, value) = item?;
        let spot = RecordLocation { table: "values", key: key.value() };
        let bytes = decode(spot.unseal(value.value())?).ok_or_else(|| spot.damaged("invalid encoding"))?;
        if planted(Planted::QuotaForgottenAtStart) {
            continue;
        }
        usage.restore(parse_account(spot.key).ok_or_else(|| spot.damaged("names no user"))?, bytes);
    }
    Ok(usage)
}

/// Counts the stored bytes of all users and replaces the stored counts: for a store of a release that did not count,
/// after damage, and in a copy without all of the sessions. Returns complaints about the damaged records that count
/// for no user.
pub(super) fn build(txn: &WriteTransaction) -> Result<CheckReport, StoreFault> {
    let mut skipped = CheckReport::default();
    let mut bytes: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for definition in COUNTED_TABLES {
        for item in txn.open_table(*definition)?.iter()? {
            let (key, value) = item?;
            let spot = RecordLocation { table: definition.name(), key: key.value() };
            if let Some((of, _)) = tables::split_session_key(spot.key) {
                *bytes.entry(tables::session_prefix(&of)).or_default() += value.value().len() as u64;
            } else {
                skipped.add_fault(&spot.damaged("not a session key"));
            }
        }
    }
    for item in txn.open_table(IDS)?.iter()? {
        let (key, value) = item?;
        let spot = RecordLocation { table: "ids", key: key.value() };
        let Some((of, BLOBS_KIND)) = tables::split_session_key(spot.key) else { continue };
        match parse_blob_table(spot, value.value()) {
            Ok(table) => *bytes.entry(tables::session_prefix(&of)).or_default() += table.bytes(),
            Err(fault) => skipped.add_fault(&fault),
        }
    }
    let mut usage = Usage::default();
    let heads = txn.open_table(HEADS)?;
    for (prefix, bytes) in bytes {
        let Some(head) = heads.get(&*prefix)? else { continue };
        match SessionHead::unseal(RecordLocation { table: "heads", key: &prefix }, head.value()) {
            Ok(head) => {
                if let (Some((key, _)), Some(user)) = (tables::split_session_key(&prefix), &head.user) {
                    usage.record(&Usage::account(&key, user), i64::try_from(bytes).unwrap_or(i64::MAX));
                }
            }
            Err(fault) => skipped.add_fault(&fault),
        }
    }
    let mut values = txn.open_table(VALUES)?;
    let end = tables::prefix_range_end(PREFIX.as_bytes());
    values.retain_in(PREFIX.as_bytes()..&*end, |_, _| false)?;
    for (account, bytes) in usage.take_changed() {
        let name = value_name(&account);
        values.insert(&*name, &*encode(&name, bytes))?;
    }
    Ok(skipped)
}

/// Returns whether a value is the byte count of a user, and not one that was put by name.
pub(super) fn is_usage(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes())
}

fn value_name(account: &Account) -> Vec<u8> {
    [PREFIX, account.tenant.as_str(), "\0", account.user.as_str()].concat().into_bytes()
}

fn parse_account(name: &[u8]) -> Option<Account> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    let (tenant, user) = rest.split_once('\0')?;
    Some(Account { tenant: TenantId::parse(tenant).ok()?, user: UserId::parse(user).ok()? })
}

/// Encodes a byte count as a value. Values begin with a version, which is always 1 here.
fn encode(name: &[u8], bytes: u64) -> Vec<u8> {
    RecordWriter::new(16).u64(1).u64(bytes).seal(name)
}

fn decode(value: &[u8]) -> Option<u64> {
    let mut reader = RecordReader(value);
    let _version = reader.u64()?;
    let bytes = reader.u64()?;
    reader.finish(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redb::backends::InMemoryBackend;

    fn database() -> Database {
        Database::builder().create_with_backend(InMemoryBackend::new()).expect("a database")
    }

    fn insert(txn: &WriteTransaction, definition: TableDef, key: &[u8], value: &[u8]) {
        txn.open_table(definition).expect("a table").insert(key, value).expect("written");
    }

    fn account(user: &str) -> Account {
        Account { tenant: TenantId::parse("t").expect("a name"), user: UserId::parse(user).expect("a name") }
    }

    #[test]
    fn count_replaces_stale_and_damaged_byte_counts() {
        let database = database();
        let txn = database.begin_write().expect("a transaction");
        let prefix = b"t\0s\0";
        let head = SessionHead { user: Some(account("ann").user), ..SessionHead::default() };
        insert(&txn, HEADS, prefix, &head.seal(prefix));
        insert(&txn, LOG, &[&prefix[..], &[1; 8]].concat(), &[0; 100]);
        insert(&txn, LANES, &[&prefix[..], &[2; 9]].concat(), &[0; 20]);
        insert(&txn, SNAPSHOTS, prefix, &[0; 3]);
        // The count of a user whose sessions are gone, one of the wrong form, and one of no user.
        let bob = value_name(&account("bob"));
        insert(&txn, VALUES, &bob, &encode(&bob, 7));
        let ann = value_name(&account("ann"));
        insert(&txn, VALUES, &ann, &RecordWriter::new(8).u64(1).seal(&ann));
        insert(&txn, VALUES, b"usage\0t", &encode(b"usage\0t", 7));
        insert(&txn, VALUES, b"usage", b"put by name");
        txn.commit().expect("committed");
        assert!(matches!(read_usage(&database), Err(StoreFault::Damaged { table: "values", .. })));
        let txn = database.begin_write().expect("a transaction");
        assert_eq!(build(&txn).expect("counted"), CheckReport::default());
        txn.commit().expect("committed");
        let usage = read_usage(&database).expect("read");
        assert_eq!((usage.of_user(&account("ann")), usage.total()), (123, 123));
        let values = database.begin_read().expect("a transaction").open_table(VALUES).expect("a table");
        assert!(values.get(&b"usage"[..]).expect("read").is_some(), "other values stay");
    }

    #[test]
    fn uncounted_record_is_reported_with_its_table() {
        let database = database();
        let txn = database.begin_write().expect("a transaction");
        for definition in COUNTED_TABLES {
            insert(&txn, *definition, b"nobody", &[0; 10]);
        }
        insert(&txn, HEADS, b"t\0s\0", b"damaged head");
        insert(&txn, LOG, b"t\0s\0fact", &[0; 10]);
        let found: Vec<String> = build(&txn).expect("counted").complaints;
        let tables = ["log", "lanes", "snapshots"];
        let mut expected: Vec<String> =
            tables.iter().map(|table| format!("damaged record in `{table}` at nobody: not a session key")).collect();
        expected.push("damaged record in `heads` at t\\x00s\\x00: checksum mismatch".to_owned());
        assert_eq!(found, expected);
    }
}
