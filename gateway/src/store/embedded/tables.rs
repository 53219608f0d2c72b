//! The tables, and how their keys are made.
//!
//! Every key of a session begins `tenant NUL session NUL`, so keys sort as sessions do and all of a
//! session lies together. Numbers in keys are big-endian.
use crate::store::embedded::fault::Fault;
use redb::{Table, TableDefinition, WriteTransaction};
use turnway_core::id::{ControlId, Place, RunId, Seq, SessionId, SessionKey, TenantId};

/// Bytes to bytes.
pub(super) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;
type Open<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

/// Session: its head.
pub(super) const HEADS: Definition = TableDefinition::new("heads");
/// Session, seq: nonce and fact.
pub(super) const LOG: Definition = TableDefinition::new("log");
/// Session, lane, place: input or control entry.
pub(super) const LANES: Definition = TableDefinition::new("lanes");
/// Session, kind, id: what was taken under it.
pub(super) const IDS: Definition = TableDefinition::new("ids");
/// Session: cursor and state.
pub(super) const SNAPSHOTS: Definition = TableDefinition::new("snapshots");
/// Session: nothing; those a sweep may find.
pub(super) const WORK: Definition = TableDefinition::new("work");
/// Tenant, user or none, time, session: nothing; see [`super::index`].
pub(super) const SESSIONS: Definition = TableDefinition::new("sessions");
/// Name: version and value.
pub(super) const VALUES: Definition = TableDefinition::new("values");
/// What is true of the whole.
pub(super) const META: Definition = TableDefinition::new("meta");
/// Session: why it is closed off. Only a store in which something was damaged has this table.
pub(super) const CLOSED: Definition = TableDefinition::new("closed");
/// All that every store has.
pub(super) const ALL: [Definition; 9] = [HEADS, LOG, LANES, IDS, SNAPSHOTS, WORK, SESSIONS, VALUES, META];

/// The tables of one transaction.
pub(super) struct Tables<'txn> {
    pub(super) heads: Open<'txn>,
    pub(super) log: Open<'txn>,
    pub(super) lanes: Open<'txn>,
    pub(super) ids: Open<'txn>,
    pub(super) snapshots: Open<'txn>,
    pub(super) work: Open<'txn>,
    pub(super) sessions: Open<'txn>,
    pub(super) values: Open<'txn>,
}

impl<'txn> Tables<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, Fault> {
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

/// Which lane of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Lane {
    /// Control entries.
    Control = b'c',
    /// Inputs.
    Inbox = b'i',
}

/// What the keys of a session begin with.
pub(super) fn prefix(key: &SessionKey) -> Vec<u8> {
    let (tenant, session) = (key.tenant.as_str().as_bytes(), key.session.as_str().as_bytes());
    let mut bytes = Vec::with_capacity(tenant.len() + session.len() + 2);
    for part in [tenant, session] {
        bytes.extend_from_slice(part);
        bytes.push(0);
    }
    bytes
}

/// The session a key begins with, and what follows.
pub(super) fn split(key: &[u8]) -> Option<(SessionKey, &[u8])> {
    let mut parts = key.splitn(3, |byte| *byte == 0);
    let mut name = || std::str::from_utf8(parts.next()?).ok();
    let (tenant, session) = (TenantId::parse(name()?).ok()?, SessionId::parse(name()?).ok()?);
    Some((SessionKey { tenant, session }, parts.next()?))
}

/// What is after every key that begins so, and before every other.
pub(super) fn end(prefix: &[u8]) -> Vec<u8> {
    // A prefix ends with NUL, and so there is a next byte.
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = 1;
    }
    end
}

/// Behind every key that begins with the prefix of a session.
pub(super) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    // It ends with a NUL.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn join(prefix: &[u8], parts: [&[u8]; 2]) -> Vec<u8> {
    [prefix, parts[0], parts[1]].concat()
}

pub(super) fn fact(prefix: &[u8], seq: Seq) -> Vec<u8> {
    join(prefix, [&seq.0.to_be_bytes(), &[]])
}

pub(super) fn waiting(prefix: &[u8], lane: Lane, place: Place) -> Vec<u8> {
    join(prefix, [&[lane as u8], &place.0.to_be_bytes()])
}

/// Run ids, and only they, lie between this and [`runs_end`].
pub(super) fn run(prefix: &[u8], run_id: &RunId) -> Vec<u8> {
    join(prefix, [b"r", run_id.as_str().as_bytes()])
}

pub(super) fn runs(prefix: &[u8]) -> Vec<u8> {
    join(prefix, [b"r", &[]])
}

pub(super) fn runs_end(prefix: &[u8]) -> Vec<u8> {
    join(prefix, [b"s", &[]])
}

pub(super) fn heard(prefix: &[u8], id: &ControlId) -> Vec<u8> {
    join(prefix, [b"c", id.as_str().as_bytes()])
}
