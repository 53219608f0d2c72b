//! The tables of the database and the encoding of their keys. The keys of a session begin with `tenant NUL session
//! NUL`, so keys sort by session and all records of a session are adjacent. Numbers are big-endian.
use crate::store::embedded::fault::StoreFault;
use redb::{Table, TableDefinition, WriteTransaction};
use turnway_core::id::{ControlId, InboxPosition, RunId, Seq, SessionId, SessionKey, TenantId};

/// A table definition from bytes to bytes.
pub(super) type TableDef = TableDefinition<'static, &'static [u8], &'static [u8]>;
pub(super) type WriteTable<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

/// Session head by session.
pub(super) const HEADS: TableDef = TableDefinition::new("heads");
/// Nonce and fact by session and sequence number.
pub(super) const LOG: TableDef = TableDefinition::new("log");
/// Input or control entry by session, lane, and position.
pub(super) const LANES: TableDef = TableDefinition::new("lanes");
/// Record of an accepted input or control entry by session, kind, and id; the table of a session's blobs is a kind of its
/// own, without an id.
pub(super) const IDS: TableDef = TableDefinition::new("ids");
/// Cursor and state by session.
pub(super) const SNAPSHOTS: TableDef = TableDefinition::new("snapshots");
/// Empty value by session, for the sessions that a sweep may find.
pub(super) const WORK: TableDef = TableDefinition::new("work");
/// Empty value by tenant, user or none, time, and session; see [`super::index`].
pub(super) const SESSIONS: TableDef = TableDefinition::new("sessions");
/// Version and value by name.
pub(super) const VALUES: TableDef = TableDefinition::new("values");
/// Row by conversation, whose key is written as text.
pub(super) const CONVERSATIONS: TableDef = TableDefinition::new("conversations");
/// Empty value by session and conversation, for active bindings; derived from the rows.
pub(super) const SESSION_CONVERSATIONS: TableDef = TableDefinition::new("session_conversations");
/// Empty value by time and conversation, for rows that want to be tended; derived from the rows.
pub(super) const CONVERSATION_TIMES: TableDef = TableDefinition::new("conversation_times");
/// Properties of the whole store.
pub(super) const META: TableDef = TableDefinition::new("meta");
/// Reason by quarantined session. Only a store in which damage was found has this table.
pub(super) const CLOSED: TableDef = TableDefinition::new("closed");
/// The tables that every store has.
pub(super) const ALL: [TableDef; 12] = [
    HEADS,
    LOG,
    LANES,
    IDS,
    SNAPSHOTS,
    WORK,
    SESSIONS,
    VALUES,
    CONVERSATIONS,
    SESSION_CONVERSATIONS,
    CONVERSATION_TIMES,
    META,
];

/// The open tables of one transaction.
pub(super) struct Tables<'txn> {
    pub(super) heads: WriteTable<'txn>,
    pub(super) log: WriteTable<'txn>,
    pub(super) lanes: WriteTable<'txn>,
    pub(super) ids: WriteTable<'txn>,
    pub(super) snapshots: WriteTable<'txn>,
    pub(super) work: WriteTable<'txn>,
    pub(super) sessions: WriteTable<'txn>,
    pub(super) values: WriteTable<'txn>,
}

impl<'txn> Tables<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, StoreFault> {
        Ok(Self {
            heads: txn.open_table(HEADS)?,
            log: txn.open_table(LOG)?,
            lanes: txn.open_table(LANES)?,
            ids: txn.open_table(IDS)?,
            snapshots: txn.open_table(SNAPSHOTS)?,
            work: txn.open_table(WORK)?,
            sessions: txn.open_table(SESSIONS)?,
            values: txn.open_table(VALUES)?,
        })
    }
}

/// A lane of waiting entries of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum InputLane {
    Control = b'c',
    Inbox = b'i',
}

/// Returns the prefix of all keys of a session.
pub(super) fn session_prefix(key: &SessionKey) -> Vec<u8> {
    let tenant = key.tenant.as_str().as_bytes();
    let session = key.session.as_str().as_bytes();
    let mut bytes = Vec::with_capacity(tenant.len() + session.len() + 2);
    for part in [tenant, session] {
        bytes.extend_from_slice(part);
        bytes.push(0);
    }
    bytes
}

/// Splits a key into its session and the rest.
pub(super) fn split_session_key(key: &[u8]) -> Option<(SessionKey, &[u8])> {
    let mut parts = key.splitn(3, |byte| *byte == 0);
    let mut name = || std::str::from_utf8(parts.next()?).ok();
    let tenant = TenantId::parse(name()?).ok()?;
    let session = SessionId::parse(name()?).ok()?;
    Some((SessionKey { tenant, session }, parts.next()?))
}

/// Returns the end of the range of keys that begin with a prefix, such as a session's. The prefix must end with NUL.
pub(super) fn prefix_range_end(prefix: &[u8]) -> Vec<u8> {
    // Incrementing the NUL at the end gives the next prefix.
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = 1;
    }
    end
}

fn join(prefix: &[u8], parts: [&[u8]; 2]) -> Vec<u8> {
    [prefix, parts[0], parts[1]].concat()
}

pub(super) fn fact_key(prefix: &[u8], seq: Seq) -> Vec<u8> {
    join(prefix, [&seq.0.to_be_bytes(), &[]])
}

pub(super) fn lane_key(prefix: &[u8], lane: InputLane, position: InboxPosition) -> Vec<u8> {
    join(prefix, [&[lane as u8], &position.0.to_be_bytes()])
}

/// Returns the key of a run id; all run ids of a session lie between [`runs_start`] and [`runs_end`].
pub(super) fn run_key(prefix: &[u8], run_id: &RunId) -> Vec<u8> {
    join(prefix, [b"r", run_id.as_str().as_bytes()])
}

pub(super) fn runs_start(prefix: &[u8]) -> Vec<u8> {
    join(prefix, [b"r", &[]])
}

pub(super) fn runs_end(prefix: &[u8]) -> Vec<u8> {
    join(prefix, [b"s", &[]])
}

/// Returns the key of a session's table of blobs.
pub(super) fn blobs_key(prefix: &[u8]) -> Vec<u8> {
    join(prefix, [BLOBS_KIND, &[]])
}

/// The rest of a key of the table of ids that has a session's table of blobs.
pub(super) const BLOBS_KIND: &[u8] = b"b";

pub(super) fn control_id_key(prefix: &[u8], id: &ControlId) -> Vec<u8> {
    join(prefix, [b"c", id.as_str().as_bytes()])
}
