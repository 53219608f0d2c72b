//! What an operator does with a data directory: look whether it is whole, and copy it.
use crate::store::embedded::directory::{self, Directory};
use crate::store::embedded::engine::{builder, write_meta};
use crate::store::embedded::fault::{Fault, OpenError};
use crate::store::embedded::head::Head;
use crate::store::embedded::index::{self, Line};
use crate::store::embedded::reading::Written;
use crate::store::embedded::record::{Eye, Spot, TakenInput};
use crate::store::embedded::tables::{self, ALL, Definition, HEADS, IDS, LANES, LOG, Lane, META, SNAPSHOTS};
use crate::store::embedded::tables::{SESSIONS, VALUES, WORK};
use crate::store::embedded::{Engine, Options};
use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata,
};
use std::path::Path;
use turnway_core::id::Seq;

/// Complaints that are listed; all are counted.
const LISTED: usize = 100;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Sessions.
    pub sessions: u64,
    /// Facts in their logs.
    pub facts: u64,
    /// Inputs and control entries that wait.
    pub waiting: u64,
    /// Message and control ids that are remembered.
    pub ids: u64,
    /// Kept states.
    pub snapshots: u64,
    /// Values under names.
    pub values: u64,
    /// What does not fit together.
    pub damages: u64,
    /// The first of those, in words.
    pub complaints: Vec<String>,
}

impl Report {
    fn complain(&mut self, fault: &Fault) {
        self.damages += 1;
        if self.complaints.len() < LISTED {
            self.complaints.push(fault.to_string());
        }
    }
    fn note(&mut self, result: Result<u64, Fault>) -> u64 {
        result.unwrap_or_else(|fault| {
            self.complain(&fault);
            0
        })
    }
}

/// Reads all of a data directory that no process has open, and tells what does not fit together.
pub fn check(dir: &Path, options: &Options) -> Result<Report, OpenError> {
    let engine = Engine::open(Directory::prepare(dir)?, options)?;
    let report = engine.check()?;
    engine.close()?;
    Ok(report)
}

/// Copies a data directory that no process has open into a new directory. The copy is of a new era, so
/// that whoever knew the original notices that it may have forgotten.
pub fn backup(dir: &Path, to: &Path, options: &Options) -> Result<(), OpenError> {
    let (from, target) = (Directory::prepare(dir)?, Directory::prepare(to)?);
    if target.exists() {
        let error = std::io::ErrorKind::AlreadyExists.into();
        return Err(OpenError::Directory { path: target.file(), error });
    }
    let database = builder(options).open(from.file()).map_err(Fault::from)?;
    let fresh = target.fresh()?;
    copy(&database, &fresh, options)?;
    target.adopt(&fresh)?;
    directory::sync(to).map_err(|error| OpenError::Directory { path: to.to_owned(), error })
}

fn copy(database: &Database, to: &Path, options: &Options) -> Result<(), Fault> {
    let copied = builder(options).create(to)?;
    let (source, target) = (database.begin_read()?, copied.begin_write()?);
    for definition in ALL {
        let mut to = target.open_table(definition)?;
        let from = match source.open_table(definition) {
            Ok(from) => from,
            // It was written before there was such a table; whoever opens the copy makes it.
            Err(redb::TableError::TableDoesNotExist(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        for item in from.iter()? {
            let (key, value) = item?;
            to.insert(key.value(), value.value())?;
        }
    }
    write_meta(&target, "era", (options.clock)().store.0)?;
    target.commit()?;
    Ok(copied.close()?)
}

type Open = ReadOnlyTable<&'static [u8], &'static [u8]>;

struct Examiner {
    heads: Open,
    log: Open,
    lanes: Open,
    ids: Open,
    snapshots: Open,
    work: Open,
    sessions: Open,
}

/// Looks at every record: its CRC, its form, and whether it fits its session's head.
pub(super) fn examine(database: &Database) -> Result<Report, Fault> {
    let txn = database.begin_read()?;
    let open = |definition: Definition| txn.open_table(definition);
    let (heads, log, lanes) = (open(HEADS)?, open(LOG)?, open(LANES)?);
    let (ids, snapshots, work, sessions) = (open(IDS)?, open(SNAPSHOTS)?, open(WORK)?, open(SESSIONS)?);
    let examiner = Examiner { heads, log, lanes, ids, snapshots, work, sessions };
    let mut report = Report::default();
    let (mut working, mut owned) = (0, 0);
    for item in examiner.heads.iter()? {
        let (key, value) = item?;
        let spot = Spot { table: "heads", key: key.value() };
        match Head::unseal(spot, value.value()) {
            Ok(head) => {
                examiner.session(spot.key, &head, &mut report)?;
                working += u64::from(head.standing().is_some());
                owned += u64::from(head.user.is_some());
            }
            Err(fault) => report.complain(&fault),
        }
        report.sessions += 1;
    }
    report.values = sealed(&txn, VALUES, "values", &mut report)?;
    sealed(&txn, META, "meta", &mut report)?;
    examiner.index(&mut report)?;
    examiner.orphans(working, owned, &mut report)?;
    Ok(report)
}

fn sealed(
    txn: &ReadTransaction,
    definition: Definition,
    table: &'static str,
    report: &mut Report,
) -> Result<u64, Fault> {
    let mut count = 0;
    for item in txn.open_table(definition)?.iter()? {
        let (key, value) = item?;
        let whole = Spot { table, key: key.value() }.unseal(value.value()).map(|_| 0);
        report.note(whole);
        count += 1;
    }
    Ok(count)
}

impl Examiner {
    fn session(&self, prefix: &[u8], head: &Head, report: &mut Report) -> Result<(), Fault> {
        let facts = self.facts(prefix, head);
        report.facts += report.note(facts);
        let waiting = self.waiting(prefix, head);
        report.waiting += report.note(waiting);
        let ids = self.ids(prefix);
        report.ids += report.note(ids);
        let snapshot = self.snapshot(prefix, head);
        report.snapshots += report.note(snapshot);
        let work = Spot { table: "work", key: prefix };
        if self.work.get(prefix)?.is_some() != head.standing().is_some() {
            report.complain(&work.damaged("does not fit the head"));
        }
        Ok(())
    }

    fn facts(&self, prefix: &[u8], head: &Head) -> Result<u64, Fault> {
        let (first, last) = (tables::fact(prefix, Seq(0)), tables::fact(prefix, Seq(u64::MAX)));
        let mut seq = head.floor;
        let mut epoch = None;
        for item in self.log.range(&*first..=&*last)? {
            let (key, value) = item?;
            let spot = Spot { table: "log", key: key.value() };
            seq.0 += 1;
            if spot.key != tables::fact(prefix, seq) {
                return Err(spot.damaged("a gap before it"));
            }
            epoch = Some(Written::unseal(spot, value.value())?.entry(spot, seq)?.0);
        }
        let end = Spot { table: "log", key: &last };
        if seq != head.end.seq || epoch.is_some_and(|epoch| epoch != head.end.epoch) {
            return Err(end.damaged("does not end where the head says"));
        }
        Ok(seq.0 - head.floor.0)
    }

    fn waiting(&self, prefix: &[u8], head: &Head) -> Result<u64, Fault> {
        let inbox = head.inbox.keys().map(|place| (Lane::Inbox, *place));
        let control = head.control.iter().map(|place| (Lane::Control, *place));
        let mut count = 0;
        for (lane, place) in inbox.chain(control) {
            let key = tables::waiting(prefix, lane, place);
            let spot = Spot { table: "lanes", key: &key };
            let value = self.lanes.get(&*key)?.ok_or_else(|| spot.damaged("missing"))?;
            spot.unseal(value.value())?;
            count += 1;
        }
        Ok(count)
    }

    fn ids(&self, prefix: &[u8]) -> Result<u64, Fault> {
        let (runs, end) = (tables::runs(prefix), tables::runs_end(prefix));
        let mut count = 0;
        // Kinds of ids sort `c`, `r`: all of a session lies between its prefix and the end of runs.
        for item in self.ids.range(prefix..&*end)? {
            let (key, value) = item?;
            let spot = Spot { table: "ids", key: key.value() };
            if spot.key >= &*runs {
                TakenInput::unseal(spot, value.value())?;
            } else {
                spot.unseal(value.value())?;
            }
            count += 1;
        }
        Ok(count)
    }

    fn snapshot(&self, prefix: &[u8], head: &Head) -> Result<u64, Fault> {
        let spot = Spot { table: "snapshots", key: prefix };
        let value = self.snapshots.get(prefix)?;
        let at = match &value {
            None => None,
            Some(value) => Eye(spot.unseal(value.value())?).cursor(),
        };
        if at == head.snapshot {
            Ok(at.into_iter().count() as u64)
        } else {
            Err(spot.damaged("another place"))
        }
    }

    /// Every line of the index is of a session, and its user's has the tenant's beside it.
    fn index(&self, report: &mut Report) -> Result<(), Fault> {
        for item in self.sessions.iter()? {
            let (key, _) = item?;
            let spot = Spot { table: "sessions", key: key.value() };
            let Some(line) = Line::read(spot.key) else {
                report.complain(&spot.damaged("form"));
                continue;
            };
            let prefix = tables::prefix(&line.session());
            let head = self.heads.get(&*prefix)?;
            let head =
                head.and_then(|head| Head::unseal(Spot { table: "heads", key: &prefix }, head.value()).ok());
            let user = head.and_then(|head| head.user);
            let other = if line.user.is_some() { None } else { user.as_ref() };
            let beside = index::key(&line.tenant, other, &line.birth);
            let fits = user.is_some() && (line.user.is_none() || line.user == user);
            if !fits || self.sessions.get(&*beside)?.is_none() {
                report.complain(&spot.damaged("does not fit the head"));
            }
        }
        Ok(())
    }

    /// Records that belong to no session, or to no head's knowledge.
    fn orphans(&self, working: u64, owned: u64, report: &mut Report) -> Result<(), Fault> {
        let counts = [
            ("log", self.log.len()?, report.facts),
            ("lanes", self.lanes.len()?, report.waiting),
            ("ids", self.ids.len()?, report.ids),
            ("snapshots", self.snapshots.len()?, report.snapshots),
            ("work", self.work.len()?, working),
            ("sessions", self.sessions.len()?, 2 * owned),
        ];
        // Where something is damaged, its neighbours were not counted.
        if report.damages == 0 {
            for (table, there, known) in counts {
                if there != known {
                    report.complain(&Spot { table, key: b"*" }.damaged("belongs to nothing"));
                }
            }
        }
        Ok(())
    }
}
