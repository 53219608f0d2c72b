//! Salvage of a damaged store into a new one. A record is intact if its checksum matches; a session is intact if all
//! of its records exist and fit each other. Reads the damaged file only. Called by `opening` and `copy`.
use crate::store::embedded::Options;
use crate::store::embedded::check;
use crate::store::embedded::engine::{FORMAT, INDEXED, builder, write_meta};
use crate::store::embedded::fault::{Fault, OpenError};
use crate::store::embedded::head::Head;
use crate::store::embedded::index::{self, Line};
use crate::store::embedded::pages::{Pages, Slot};
use crate::store::embedded::record::{Eye, Pen, Spot};
use crate::store::embedded::report::Report;
use crate::store::embedded::tables::{
    self, ALL, CLOSED, HEADS, IDS, LANES, LOG, META, SESSIONS, SNAPSHOTS, WORK,
};
use redb::{Database, ReadableDatabase, ReadableTable, TableHandle, WriteTransaction};
use std::collections::BTreeMap;
use std::path::Path;

/// The treatment of the records of damaged sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    /// The records are kept, and the session is quarantined.
    Keep,
    /// The records are dropped, and the session is forgotten.
    Drop,
}

/// The damaged sessions by key prefix, each with a reason.
type Damaged = BTreeMap<Vec<u8>, String>;

/// Writes the intact data of a file into a new database at `to` and closes that database. The file is only read.
pub(super) fn salvage(
    file: &Path,
    to: &Path,
    remains: Remains,
    options: &Options,
) -> Result<Report, OpenError> {
    let unreadable = |error| OpenError::Directory { path: file.to_owned(), error };
    let Some(mut pages) = Pages::open(file).map_err(unreadable)? else {
        return Err(nothing(file, "its header cannot be read: no commit was found"));
    };
    let Some(slot) = choose(&mut pages).map_err(unreadable)? else {
        return Err(nothing(file, "the roots of its tables cannot be read"));
    };
    let target = builder(options).create(to).map_err(Fault::from)?;
    let mut report = Report::default();
    let mut damaged = Damaged::new();
    gather(&mut pages, &slot, &target, &mut damaged, &mut report).map_err(|error| match error {
        Gathering::Reading(error) => unreadable(error),
        Gathering::Writing(fault) => fault.into(),
    })?;
    if pages.lost > 0 {
        report.object(format!("{} pages cannot be read; their contents are lost", pages.lost));
    }
    describe(&target, options)?;
    damaged.extend(check::verdicts(&target.begin_read().map_err(Fault::from)?)?);
    settle(&target, &damaged, remains)?;
    report.leave_out(&damaged);
    target.close().map_err(Fault::from)?;
    Ok(report)
}

/// Returns the newest commit whose pages can all be read; without one, the newest whose roots can be read.
fn choose(pages: &mut Pages) -> std::io::Result<Option<Slot>> {
    let slots = pages.header.slots.clone();
    let names: Vec<&str> = ALL.iter().map(TableHandle::name).collect();
    let mut usable = None;
    for slot in slots {
        let (damaged, lost) = (pages.damaged, pages.lost);
        let has_heads = pages.table(&slot, HEADS.name(), &mut |_, _| {})?;
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
enum Gathering {
    Reading(std::io::Error),
    Writing(Fault),
}

impl<E: Into<Fault>> From<E> for Gathering {
    fn from(error: E) -> Self {
        Self::Writing(error.into())
    }
}

/// Copies every intact record. Notes the sessions of all other records as damaged.
fn gather(
    pages: &mut Pages,
    slot: &Slot,
    target: &Database,
    damaged: &mut Damaged,
    report: &mut Report,
) -> Result<(), Gathering> {
    let txn = target.begin_write().map_err(Fault::from)?;
    for definition in ALL.into_iter().chain([CLOSED]) {
        let (name, mut failed) = (definition.name().to_owned(), None);
        {
            let mut table = txn.open_table(definition).map_err(Fault::from)?;
            let walked = pages.table(slot, &name, &mut |key, value| {
                let spot = Spot { table: static_name(&name), key };
                let is_index = name == SESSIONS.name();
                let whole = if is_index { Line::read(key).is_some() } else { spot.unseal(value).is_ok() };
                if name == WORK.name() {
                    // The table is rebuilt.
                } else if whole {
                    failed = failed.take().or(table.insert(key, value).err());
                } else {
                    let fault = spot.damaged("checksum");
                    report.complain(&fault);
                    if !is_index && let Some(prefix) = prefix_of(key) {
                        damaged.entry(prefix.to_vec()).or_insert_with(|| fault.to_string());
                    }
                }
            });
            walked.map_err(Gathering::Reading)?;
        }
        if let Some(error) = failed {
            return Err(Fault::from(error).into());
        }
    }
    txn.commit().map_err(Fault::from)?;
    Ok(())
}

/// Writes the format and a new era, so that a node that knew the original notices that data may be missing.
fn describe(target: &Database, options: &Options) -> Result<(), Fault> {
    let txn = target.begin_write()?;
    let before = {
        let meta = txn.open_table(META)?;
        let spot = Spot { table: "meta", key: b"era" };
        let era = meta.get(spot.key)?;
        era.and_then(|era| Eye(spot.unseal(era.value()).ok()?).u64()).unwrap_or_default()
    };
    write_meta(&txn, "format", FORMAT)?;
    write_meta(&txn, INDEXED, 1)?;
    write_meta(&txn, "era", (options.clock)().store.0.max(before + 1))?;
    Ok(txn.commit()?)
}

/// Quarantines or drops the damaged sessions, and rebuilds the derived tables of the others.
fn settle(target: &Database, damaged: &Damaged, remains: Remains) -> Result<(), Fault> {
    let txn = target.begin_write()?;
    mark(&txn, damaged, remains)?;
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
            let head = Head::unseal(Spot { table: "heads", key: key.value() }, value.value())?;
            if head.standing().is_some() {
                work.insert(key.value(), &[][..])?;
            }
            if let (Some((of, _)), Some(user)) = (tables::split(key.value()), head.user) {
                births.push((of, user));
            }
        }
    }
    reindex(&txn, births)?;
    Ok(txn.commit()?)
}

fn mark(txn: &WriteTransaction, damaged: &Damaged, remains: Remains) -> Result<(), Fault> {
    let mut closed = txn.open_table(CLOSED)?;
    if remains == Remains::Keep {
        for (prefix, why) in damaged {
            closed.insert(&**prefix, &*Pen::new(why.len()).raw(why.as_bytes()).seal(prefix))?;
        }
        return Ok(());
    }
    closed.retain(|_, _| false)?;
    for definition in [HEADS, LOG, LANES, IDS, SNAPSHOTS] {
        let mut table = txn.open_table(definition)?;
        for prefix in damaged.keys() {
            let end = tables::prefix_end(prefix);
            table.retain_in(&**prefix..&*end, |_, _| false)?;
        }
    }
    Ok(())
}

/// Keeps the index entries that fit an intact session, and adds missing ones.
fn reindex(
    txn: &WriteTransaction,
    births: Vec<(turnway_core::id::SessionKey, turnway_core::id::UserId)>,
) -> Result<(), Fault> {
    let mut sessions = txn.open_table(SESSIONS)?;
    let mut lines: BTreeMap<_, Vec<Line>> = BTreeMap::new();
    for item in sessions.iter()? {
        if let Some(line) = Line::read(item?.0.value()) {
            lines.entry(line.session()).or_default().push(line);
        }
    }
    sessions.retain(|_, _| false)?;
    let log = txn.open_table(LOG)?;
    for (of, user) in births {
        let known = lines.remove(&of).unwrap_or_default();
        // Both entries of a session hold its time; a single one may be the damaged one.
        let agreed = known.iter().find(|line| {
            line.user.as_ref().is_none_or(|of| *of == user)
                && known.iter().any(|other| other.birth == line.birth && other.user != line.user)
        });
        let at = match agreed {
            Some(line) => line.birth.at,
            None => index::first_time(&log, &tables::prefix(&of))?,
        };
        index::enter(&mut sessions, &of, &user, at)?;
    }
    Ok(())
}

/// Returns the part of a key that names its session.
pub(super) fn prefix_of(key: &[u8]) -> Option<&[u8]> {
    let (_, rest) = tables::split(key)?;
    key.get(..key.len() - rest.len())
}

fn static_name(name: &str) -> &'static str {
    let known = ["heads", "log", "lanes", "ids", "snapshots", "work", "sessions", "values", "meta"];
    known.into_iter().find(|known| *known == name).unwrap_or("closed")
}

fn nothing(file: &Path, what: &str) -> OpenError {
    let mut report = Report::default();
    report.object(what.to_owned());
    OpenError::Damaged { path: file.to_owned(), report: Box::new(report) }
}
