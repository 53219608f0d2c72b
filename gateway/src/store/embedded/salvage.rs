//! Salvage of a damaged store into a new one. A record is intact if its checksum matches; a session is intact if all
//! of its records exist and fit each other. Reads the damaged file only. Called by `opening` and `copy`.
use crate::store::embedded::EmbeddedOptions;
use crate::store::embedded::check;
use crate::store::embedded::conversations;
use crate::store::embedded::engine::{FORMAT, INDEXED, METERED, builder, write_meta};
use crate::store::embedded::fault::{EmbeddedOpenError, StoreFault};
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::index::{self, IndexKey};
use crate::store::embedded::meter;
use crate::store::embedded::pages::{CommitSlot, PageReader};
use crate::store::embedded::record::{RecordLocation, RecordReader, RecordWriter};
use crate::store::embedded::report::CheckReport;
use crate::store::embedded::tables::{
    self, ALL, CLOSED, CONVERSATION_TIMES, CONVERSATIONS, HEADS, IDS, LANES, LOG, META, SESSION_CONVERSATIONS,
    SESSIONS, SNAPSHOTS, VALUES, WORK,
};
use redb::{Database, ReadableDatabase, ReadableTable, TableHandle, WriteTransaction};
use std::collections::BTreeMap;
use std::path::Path;

/// The treatment of the records of damaged sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DamagedPolicy {
    /// The records are kept, and the session is quarantined.
    Keep,
    /// The records are dropped, and the session is forgotten.
    Drop,
}

/// The damaged sessions by key prefix, each with a reason.
type DamagedSessions = BTreeMap<Vec<u8>, String>;

/// Writes the intact data of a file into a new database at `to` and closes that database. The file is only read.
pub(super) fn salvage(
    file: &Path,
    to: &Path,
    remains: DamagedPolicy,
    options: &EmbeddedOptions,
) -> Result<CheckReport, EmbeddedOpenError> {
    let unreadable = |error| EmbeddedOpenError::Directory { path: file.to_owned(), error };
    let Some(mut pages) = PageReader::open(file).map_err(unreadable)? else {
        return Err(damaged_error(file, "its header cannot be read: no commit was found"));
    };
    let Some(slot) = choose_commit(&mut pages).map_err(unreadable)? else {
        return Err(damaged_error(file, "the roots of its tables cannot be read"));
    };
    let target = builder(options).create(to).map_err(StoreFault::from)?;
    let mut report = CheckReport::default();
    let mut damaged = DamagedSessions::new();
    copy_intact(&mut pages, &slot, &target, &mut damaged, &mut report).map_err(|error| match error {
        SalvageError::Read(error) => unreadable(error),
        SalvageError::Write(fault) => fault.into(),
    })?;
    if pages.lost > 0 {
        report.add_complaint(format!("{} pages cannot be read; their contents are lost", pages.lost));
    }
    write_meta_entries(&target, options)?;
    damaged.extend(check::damaged_sessions(&target.begin_read().map_err(StoreFault::from)?)?);
    rebuild_derived(&target, &damaged, remains)?;
    report.record_left_out(&damaged);
    target.close().map_err(StoreFault::from)?;
    Ok(report)
}

/// Returns the newest commit whose pages can all be read; without one, the newest whose roots can be read.
fn choose_commit(pages: &mut PageReader) -> std::io::Result<Option<CommitSlot>> {
    let slots = pages.header.slots.clone();
    let names: Vec<&str> = ALL.iter().map(TableHandle::name).collect();
    let mut usable = None;
    for slot in slots {
        let damaged = pages.damaged;
        let lost = pages.lost;
        let has_heads = pages.visit_table(&slot, HEADS.name(), &mut |_, _| {})?;
        let is_whole = has_heads && pages.is_readable(&slot, &names)?;
        (pages.damaged, pages.lost) = (damaged, lost);
        if is_whole {
            return Ok(Some(slot));
        }
        usable = usable.or(has_heads.then_some(slot));
    }
    Ok(usable)
}

/// The reason why records could not be copied.
enum SalvageError {
    Read(std::io::Error),
    Write(StoreFault),
}

impl<E: Into<StoreFault>> From<E> for SalvageError {
    fn from(error: E) -> Self {
        Self::Write(error.into())
    }
}

/// Copies every intact record. Notes the sessions of all other records as damaged.
fn copy_intact(
    pages: &mut PageReader,
    slot: &CommitSlot,
    target: &Database,
    damaged: &mut DamagedSessions,
    report: &mut CheckReport,
) -> Result<(), SalvageError> {
    let txn = target.begin_write().map_err(StoreFault::from)?;
    for definition in ALL.into_iter().chain([CLOSED]) {
        let name = definition.name().to_owned();
        let mut failed = None;
        {
            let mut table = txn.open_table(definition).map_err(StoreFault::from)?;
            let walked = pages.visit_table(slot, &name, &mut |key, value| {
                let spot = RecordLocation { table: static_name(&name), key };
                let is_index = name == SESSIONS.name();
                let whole = if is_index { IndexKey::parse(key).is_some() } else { spot.unseal(value).is_ok() };
                if [WORK, SESSION_CONVERSATIONS, CONVERSATION_TIMES].iter().any(|derived| derived.name() == name) {
                    // The table is rebuilt.
                } else if whole {
                    failed = failed.take().or(table.insert(key, value).err());
                } else {
                    let fault = spot.damaged("checksum mismatch");
                    report.add_fault(&fault);
                    // The names of byte counts have the form of a session's keys.
                    let is_of_session = !is_index && name != VALUES.name() && name != CONVERSATIONS.name();
                    if is_of_session && let Some(prefix) = prefix_of(key) {
                        damaged.entry(prefix.to_vec()).or_insert_with(|| fault.to_string());
                    }
                }
            });
            walked.map_err(SalvageError::Read)?;
        }
        if let Some(error) = failed {
            return Err(StoreFault::from(error).into());
        }
    }
    txn.commit().map_err(StoreFault::from)?;
    Ok(())
}

/// Writes the format and a new era, so that a node that knew the original notices that data may be missing.
fn write_meta_entries(target: &Database, options: &EmbeddedOptions) -> Result<(), StoreFault> {
    let txn = target.begin_write()?;
    let before = {
        let meta = txn.open_table(META)?;
        let spot = RecordLocation { table: "meta", key: b"era" };
        let era = meta.get(spot.key)?;
        era.and_then(|era| RecordReader(spot.unseal(era.value()).ok()?).u64()).unwrap_or_default()
    };
    write_meta(&txn, "format", FORMAT)?;
    write_meta(&txn, INDEXED, 1)?;
    write_meta(&txn, "era", (options.clock)().store.0.max(before + 1))?;
    Ok(txn.commit()?)
}

/// Quarantines or drops the damaged sessions, rebuilds the derived tables of the others, and counts the stored bytes of
/// users again: the copied counts include what was lost, and damaged counts were not copied.
fn rebuild_derived(target: &Database, damaged: &DamagedSessions, remains: DamagedPolicy) -> Result<(), StoreFault> {
    let txn = target.begin_write()?;
    apply_policy(&txn, damaged, remains)?;
    let whole = |key: &[u8]| prefix_of(key).is_some_and(|prefix| !damaged.contains_key(prefix));
    let mut births = Vec::new();
    {
        let heads = txn.open_table(HEADS)?;
        let mut work = txn.open_table(WORK)?;
        work.retain(|_, _| false)?;
        for item in heads.iter()? {
            let (key, value) = item?;
            if !whole(key.value()) {
                continue;
            }
            let head = SessionHead::unseal(RecordLocation { table: "heads", key: key.value() }, value.value())?;
            if head.sweep_state().is_some() {
                work.insert(key.value(), &[][..])?;
            }
            // A deleted session keeps its head and is in no index.
            let user = head.user.filter(|_| !head.deleted);
            if let (Some((of, _)), Some(user)) = (tables::split_session_key(key.value()), user) {
                births.push((of, user));
            }
        }
    }
    reindex(&txn, births)?;
    conversations::rebuild(&txn)?;
    meter::build(&txn)?;
    write_meta(&txn, METERED, 1)?;
    Ok(txn.commit()?)
}

fn apply_policy(txn: &WriteTransaction, damaged: &DamagedSessions, remains: DamagedPolicy) -> Result<(), StoreFault> {
    let mut closed = txn.open_table(CLOSED)?;
    if remains == DamagedPolicy::Keep {
        for (prefix, why) in damaged {
            closed.insert(&**prefix, &*RecordWriter::new(why.len()).raw(why.as_bytes()).seal(prefix))?;
        }
        return Ok(());
    }
    closed.retain(|_, _| false)?;
    for definition in [HEADS, LOG, LANES, IDS, SNAPSHOTS] {
        let mut table = txn.open_table(definition)?;
        for prefix in damaged.keys() {
            let end = tables::prefix_range_end(prefix);
            table.retain_in(&**prefix..&*end, |_, _| false)?;
        }
    }
    Ok(())
}

/// Keeps the index entries that fit an intact session, and adds missing ones.
fn reindex(
    txn: &WriteTransaction,
    births: Vec<(turnway_core::id::SessionKey, turnway_core::id::UserId)>,
) -> Result<(), StoreFault> {
    let mut sessions = txn.open_table(SESSIONS)?;
    let mut entries: BTreeMap<_, Vec<IndexKey>> = BTreeMap::new();
    for item in sessions.iter()? {
        if let Some(entry) = IndexKey::parse(item?.0.value()) {
            entries.entry(entry.session()).or_default().push(entry);
        }
    }
    sessions.retain(|_, _| false)?;
    let log = txn.open_table(LOG)?;
    for (of, user) in births {
        let known = entries.remove(&of).unwrap_or_default();
        // Both entries of a session hold its time; a single one may be the damaged one.
        let agreed = known.iter().find(|entry| {
            entry.user.as_ref().is_none_or(|of| *of == user)
                && known.iter().any(|other| other.birth == entry.birth && other.user != entry.user)
        });
        let at = match agreed {
            Some(entry) => entry.birth.at,
            None => index::first_fact_time(&log, &tables::session_prefix(&of))?,
        };
        index::insert(&mut sessions, &of, &user, at)?;
    }
    Ok(())
}

/// Returns the part of a key that names its session.
pub(super) fn prefix_of(key: &[u8]) -> Option<&[u8]> {
    let (_, rest) = tables::split_session_key(key)?;
    key.get(..key.len() - rest.len())
}

fn static_name(name: &str) -> &'static str {
    const NAMES: [&str; 12] = [
        "heads",
        "log",
        "lanes",
        "ids",
        "snapshots",
        "work",
        "sessions",
        "values",
        "conversations",
        "session_conversations",
        "conversation_times",
        "meta",
    ];
    NAMES.into_iter().find(|known| *known == name).unwrap_or("closed")
}

fn damaged_error(file: &Path, what: &str) -> EmbeddedOpenError {
    let mut report = CheckReport::default();
    report.add_complaint(what.to_owned());
    EmbeddedOpenError::Damaged { path: file.to_owned(), report: Box::new(report) }
}
