//! The index of sessions in order of creation: keys without values, one under the tenant and one under the user. A
//! key is `tenant NUL user NUL time session`; in a tenant's key the user is empty. Used by batches, check, and
//! repair.
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::record::RecordLocation;
use crate::store::embedded::report::CheckReport;
use crate::store::embedded::session_record_reader::LogRecord;
use crate::store::embedded::tables::{self, HEADS, LOG, SESSIONS};
use redb::{ReadableTable, Table, WriteTransaction};
use turnway_core::id::{Seq, SessionId, SessionKey, TenantId, UserId};
use turnway_core::store::{CreationKey, IdleCursor};
use turnway_core::time::Millis;

type SessionsTable<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

/// Bytes that no time and no name contains, so that they sort after every key of a range.
const RANGE_END: [u8; 9] = [0xff; 9];

/// One parsed key of the index.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IndexKey {
    pub(super) tenant: TenantId,
    /// None in a tenant's key.
    pub(super) user: Option<UserId>,
    pub(super) birth: CreationKey,
}

// === impl IndexKey ===

impl IndexKey {
    pub(super) fn parse(key: &[u8]) -> Option<Self> {
        let mut parts = key.splitn(3, |byte| *byte == 0);
        let mut name = || std::str::from_utf8(parts.next()?).ok();
        let tenant = TenantId::parse(name()?).ok()?;
        let user = match name()? {
            "" => None,
            user => Some(UserId::parse(user).ok()?),
        };
        let (at, session) = parts.next()?.split_first_chunk()?;
        let session = SessionId::parse(std::str::from_utf8(session).ok()?).ok()?;
        Some(Self { tenant, user, birth: CreationKey { at: Millis(u64::from_be_bytes(*at)), session } })
    }

    pub(super) fn session(&self) -> SessionKey {
        SessionKey { tenant: self.tenant.clone(), session: self.birth.session.clone() }
    }
}

/// Returns the common prefix of the keys of a tenant or of one of its users.
fn prefix(tenant: &TenantId, user: Option<&UserId>) -> Vec<u8> {
    let user = user.map_or("", UserId::as_str).as_bytes();
    [tenant.as_str().as_bytes(), &[0], user, &[0]].concat()
}

pub(super) fn key(tenant: &TenantId, user: Option<&UserId>, birth: &CreationKey) -> Vec<u8> {
    let at = birth.at.0.to_be_bytes();
    let session = birth.session.as_str().as_bytes();
    [&prefix(tenant, user), &at[..], session].concat()
}

/// Returns the range of the sessions created before a certain one, or of all sessions.
pub(super) fn range(tenant: &TenantId, user: Option<&UserId>, before: Option<&CreationKey>) -> (Vec<u8>, Vec<u8>) {
    let first = prefix(tenant, user);
    let end = before.map_or_else(|| [&*first, &RANGE_END].concat(), |birth| key(tenant, user, birth));
    (first, end)
}

/// Returns the key at which a walk through the sessions of all tenants resumes; users' entries lie in between.
pub(super) fn resume_key(cursor: Option<&IdleCursor>) -> Vec<u8> {
    let Some(IdleCursor { tenant, after }) = cursor else { return Vec::new() };
    match after {
        None => prefix(tenant, None),
        // No key lies between a key and the same key with a NUL appended.
        Some(birth) => [&*key(tenant, None, birth), &[0]].concat(),
    }
}

/// Returns the key after all entries of a tenant and its users.
pub(super) fn next_tenant(tenant: &TenantId) -> Vec<u8> {
    [tenant.as_str().as_bytes(), &[0], &RANGE_END].concat()
}

/// Adds a session to the index.
pub(super) fn insert(
    sessions: &mut SessionsTable<'_>,
    of: &SessionKey,
    user: &UserId,
    at: Millis,
) -> Result<(), StoreFault> {
    let birth = CreationKey { at, session: of.session.clone() };
    for user in [None, Some(user)] {
        sessions.insert(&*key(&of.tenant, user, &birth), &[][..])?;
    }
    Ok(())
}

/// Removes a session. Only the index has the creation time, so the user's entries are searched for the session.
pub(super) fn remove(sessions: &mut SessionsTable<'_>, of: &SessionKey, user: &UserId) -> Result<(), StoreFault> {
    let (first, end) = range(&of.tenant, Some(user), None);
    let mut found = None;
    for item in sessions.range(&*first..&*end)? {
        let (entry, _) = item?;
        found = IndexKey::parse(entry.value()).filter(|entry| entry.birth.session == of.session);
        if found.is_some() {
            break;
        }
    }
    let Some(entry) = found else { return Ok(()) };
    for user in [None, Some(user)] {
        sessions.remove(&*key(&of.tenant, user, &entry.birth))?;
    }
    Ok(())
}

/// Builds the index of a store that was written before the index existed. The creation times were not recorded, so
/// the time of the first stored fact is used. Sessions with a damaged head or fact are left out of the index and are
/// returned as complaints, so that the store opens without them.
pub(super) fn build(txn: &WriteTransaction) -> Result<CheckReport, StoreFault> {
    let heads = txn.open_table(HEADS)?;
    let log = txn.open_table(LOG)?;
    let mut sessions = txn.open_table(SESSIONS)?;
    let mut skipped = CheckReport::default();
    for item in heads.iter()? {
        let (prefix, value) = item?;
        let spot = RecordLocation { table: "heads", key: prefix.value() };
        match creation(&log, spot, value.value()) {
            Ok(Some((of, user, at))) => insert(&mut sessions, &of, &user, at)?,
            Ok(None) => {}
            Err(fault @ StoreFault::Damaged { .. }) => skipped.add_fault(&fault),
            Err(fault) => return Err(fault),
        }
    }
    Ok(skipped)
}

/// Returns session, user, and time of creation of a session head; `None` for a session that nobody has used, or that
/// is deleted.
fn creation(
    log: &SessionsTable<'_>,
    spot: RecordLocation<'_>,
    head: &[u8],
) -> Result<Option<(SessionKey, UserId, Millis)>, StoreFault> {
    let head = SessionHead::unseal(spot, head)?;
    let (of, _) = tables::split_session_key(spot.key).ok_or_else(|| spot.damaged("not a session key"))?;
    let Some(user) = head.user.filter(|_| !head.deleted) else { return Ok(None) };
    Ok(Some((of, user, first_fact_time(log, spot.key)?)))
}

/// Returns the time of the first stored fact of a session; 0 if no fact is stored.
pub(super) fn first_fact_time(log: &SessionsTable<'_>, prefix: &[u8]) -> Result<Millis, StoreFault> {
    let first = tables::fact_key(prefix, Seq(0));
    let last = tables::fact_key(prefix, Seq(u64::MAX));
    let Some(item) = log.range(&*first..=&*last)?.next() else { return Ok(Millis(0)) };
    let (key, value) = item?;
    let spot = RecordLocation { table: "log", key: key.value() };
    let seq = spot.key.last_chunk().map(|seq| Seq(u64::from_be_bytes(*seq)));
    let seq = seq.ok_or_else(|| spot.damaged("invalid encoding"))?;
    Ok(LogRecord::unseal(spot, value.value())?.entry(spot, seq)?.1.time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_keys_sort_by_creation_within_tenant_and_user() {
        let tenant = |name| TenantId::parse(name).expect("a name");
        let user = |name| UserId::parse(name).expect("a name");
        let birth = |at, name| CreationKey { at: Millis(at), session: SessionId::parse(name).expect("a name") };
        let ann = user("ann");
        let anna = user("anna");
        let births = [birth(0, "z"), birth(1, "a"), birth(1, "a-b"), birth(256, "S"), birth(u64::MAX >> 1, "_")];
        let of = |tenant: &TenantId, user| births.each_ref().map(|birth| key(tenant, user, birth));
        for user in [None, Some(&ann)] {
            let keys = of(&tenant("t"), user);
            assert!(keys.is_sorted());
            for (key, birth) in keys.iter().zip(&births) {
                let entry = IndexKey { tenant: tenant("t"), user: user.cloned(), birth: birth.clone() };
                assert_eq!(IndexKey::parse(key), Some(entry));
            }
            let (first, end) = range(&tenant("t"), user, None);
            assert!(keys.iter().all(|key| *key >= first && *key < end));
            let (_, end) = range(&tenant("t"), user, Some(&births[2]));
            assert_eq!(keys.iter().filter(|key| **key < end).count(), 2);
            let strangers = [of(&tenant("t-1"), user), of(&tenant("t"), Some(&anna)), of(&tenant("t1"), None)];
            let (first, end) = range(&tenant("t"), user, None);
            assert!(strangers.iter().flatten().all(|key| *key < first || *key >= end));
        }
        for bad in [&b""[..], b"t\0", b"t\0u\0", b"t\0u\x001234567", b"t\0u\x0012345678", b"t\0u\x0012345678 "] {
            assert_eq!(IndexKey::parse(bad), None, "{bad:?}");
        }
    }
}
