//! Stored bytes of each user: kept in memory, written with every batch, and compared with the quotas at each new
//! input. Used by the engine and its batches.
use crate::store::UsageCallback;
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::record::{RecordLocation, RecordReader, RecordWriter};
use crate::store::embedded::tables::{self, HEADS, LANES, LOG, SNAPSHOTS, Tables, VALUES};
use redb::{Database, ReadableDatabase, ReadableTable, WriteTransaction};
use std::collections::BTreeMap;
use turnway_core::id::{SessionKey, TenantId, UserId};
use turnway_core::planted::{Planted, planted};
use turnway_core::share::Account;
use turnway_core::store::Op;
use turnway_core::store::quota::{Quotas, Usage};

/// Name prefix of the values that hold the users' bytes; no other value's name contains a NUL.
const PREFIX: &str = "usage\0";

/// Stored bytes of users, and their quotas.
#[derive(Debug)]
pub(super) struct UsageMeter {
    pub(super) usage: Usage,
    quotas: Quotas,
    /// Free bytes above the reserve as of the last check.
    pub(super) free: Option<u64>,
}

// === impl Meter ===

impl UsageMeter {
    /// Loads the stored byte counts.
    pub(super) fn open(database: &Database, quotas: Quotas) -> Result<Self, StoreFault> {
        let mut usage = Usage::default();
        let values = database.begin_read()?.open_table(VALUES)?;
        let end = PREFIX.replace('\0', "\u{1}");
        for item in values.range(PREFIX.as_bytes()..end.as_bytes())? {
            let (key, value) = item?;
            let spot = RecordLocation { table: "values", key: key.value() };
            let bytes = decode(spot.unseal(value.value())?).ok_or_else(|| spot.damaged("form"))?;
            if planted(Planted::QuotaForgottenAtStart) {
                continue;
            }
            usage.restore(parse_account(spot.key).ok_or_else(|| spot.damaged("nobody's"))?, bytes);
        }
        Ok(Self { usage, quotas, free: None })
    }

    /// Returns whether the user who pays for a session has no quota left for an input of this weight.
    pub(super) fn is_over(&self, key: &SessionKey, head: &SessionHead, op: &Op, weight: u64) -> bool {
        let Op::Accept { principal, .. } = op else { return false };
        let owner = head.user.as_ref().filter(|_| !planted(Planted::QuotaOfTheAsker));
        let account = Usage::account(key, owner.unwrap_or(&principal.user));
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

/// Counts the bytes in a store that was written before bytes were counted.
pub(super) fn build(txn: &WriteTransaction) -> Result<(), StoreFault> {
    let mut bytes: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for definition in [LOG, LANES, SNAPSHOTS] {
        for item in txn.open_table(definition)?.iter()? {
            let (key, value) = item?;
            let spot = RecordLocation { table: "log", key: key.value() };
            let (of, _) = tables::split_session_key(spot.key).ok_or_else(|| spot.damaged("not a session"))?;
            *bytes.entry(tables::session_prefix(&of)).or_default() += value.value().len() as u64;
        }
    }
    let mut usage = Usage::default();
    let heads = txn.open_table(HEADS)?;
    for (prefix, bytes) in bytes {
        let Some(head) = heads.get(&*prefix)? else { continue };
        let head = SessionHead::unseal(RecordLocation { table: "heads", key: &prefix }, head.value())?;
        if let (Some((key, _)), Some(user)) = (tables::split_session_key(&prefix), &head.user) {
            usage.record(&Usage::account(&key, user), i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }
    let mut values = txn.open_table(VALUES)?;
    for (account, bytes) in usage.take_changed() {
        let name = value_name(&account);
        values.insert(&*name, &*encode(&name, bytes))?;
    }
    Ok(())
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
    let mut eye = RecordReader(value);
    let _version = eye.u64()?;
    let bytes = eye.u64()?;
    eye.finish(bytes)
}
