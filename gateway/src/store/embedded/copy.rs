//! Copies of a store: whole, looked at, on the disk, and of a new era.
use crate::store::embedded::Options;
use crate::store::embedded::check::verdicts;
use crate::store::embedded::directory::{self, Directory};
use crate::store::embedded::engine::{builder, meta, ready, write_meta};
use crate::store::embedded::fault::{Fault, OpenError};
use crate::store::embedded::index::Line;
use crate::store::embedded::look::{look, shadow};
use crate::store::embedded::record::Spot;
use crate::store::embedded::report::Report;
use crate::store::embedded::salvage::{Remains, prefix_of, salvage};
use crate::store::embedded::tables::{self, ALL};
use redb::{Database, ReadableDatabase, ReadableTable, TableHandle};
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Copies a data directory that no process has open into a new or empty one, and reads the copy before
/// it counts. Damaged sessions are left out, and the report names them. The original is not touched. The copy is of a new era, so that whoever knew the original
/// notices that it may have forgotten.
pub fn copy(dir: &Path, to: &Path, options: &Options) -> Result<Report, OpenError> {
    let from = Directory::enter(dir)?;
    let found = look(&from.file(), options)?;
    if found.damages > 0 {
        return salvage_into(Target::take(to)?, &from, options);
    }
    let database = builder(options).create_with_backend(shadow(&from.file())?).map_err(Fault::from)?;
    ready(&database, 0, options.two_phase)?;
    let copied = Target::take(to)?.fill(&database, options, &AtomicBool::new(false))?;
    if copied.counts() != found.counts() {
        // Nobody else has either of them: this cannot be.
        return Err(OpenError::Damaged { path: to.to_owned(), report: Box::new(copied) });
    }
    Ok(copied)
}

/// Saves all that is whole of a data directory that no process has open into a new or empty one. The original is not
/// touched.
pub fn rescue(dir: &Path, to: &Path, options: &Options) -> Result<Report, OpenError> {
    let from = Directory::enter(dir)?;
    salvage_into(Target::take(to)?, &from, options)
}

/// Makes a data directory that no process has open whole: what is damaged is dropped, what is derived is made anew,
/// and the file as it was is kept beside. Nothing is done where nothing is damaged.
pub fn repair(dir: &Path, options: &Options) -> Result<Report, OpenError> {
    let directory = Directory::enter(dir)?;
    let found = look(&directory.file(), options)?;
    if found.damages == 0 {
        return Ok(found);
    }
    let fresh = directory.fresh()?;
    let report = save(&directory, &fresh, options)?;
    directory.replace(&fresh, (options.clock)().store.0)?;
    Ok(report)
}

fn salvage_into(target: Target, from: &Directory, options: &Options) -> Result<Report, OpenError> {
    let fresh = target.directory.fresh()?;
    let report = save(from, &fresh, options)?;
    target.directory.adopt(&fresh)?;
    Ok(report)
}

/// Writes what is whole into a fresh file, and reads that before it counts.
fn save(from: &Directory, fresh: &Path, options: &Options) -> Result<Report, OpenError> {
    let saved = salvage(&from.file(), fresh, Remains::Drop, options).and_then(|saved| {
        let whole = look(fresh, options)?;
        if whole.damages > 0 {
            return Err(OpenError::Damaged { path: fresh.to_owned(), report: Box::new(whole) });
        }
        let (left_out, complaints) = (saved.left_out, saved.complaints);
        Ok(Report { left_out, complaints, ..whole })
    });
    if saved.is_err() {
        // What went wrong is worse than what may go wrong here.
        let _ = fs::remove_file(fresh);
    }
    saved
}

/// Copies a store while its process runs.
#[derive(Clone)]
pub struct Copier {
    database: Weak<Database>,
    options: Options,
    copies: Arc<Copies>,
}

/// The copies that are being made.
#[derive(Default)]
pub(super) struct Copies {
    /// The store is being closed.
    stop: AtomicBool,
    count: Mutex<usize>,
    ended: Condvar,
}

/// One copy that is being made.
struct Copying<'a>(&'a Copies);

// === impl Copies ===

impl Copies {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Copying<'_> {
        *self.count() += 1;
        Copying(self)
    }

    /// Breaks copies off, and waits until none holds the database any more; for so long at most.
    pub(super) fn end(&self, patience: Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let waited = self.ended.wait_timeout_while(self.count(), patience, |count| *count > 0);
        drop(waited);
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.ended.notify_all();
    }
}

/// A directory that becomes a copy.
struct Target {
    directory: Directory,
}

// === impl Copier ===

impl Copier {
    pub(super) fn new(database: &Arc<Database>, options: Options, copies: Arc<Copies>) -> Self {
        Self { database: Arc::downgrade(database), options, copies }
    }

    /// Copies the store as it is now into a new or empty directory; see [`copy`]. What is accepted
    /// meanwhile is not in it, and needs more room on the disk until the copy is made. Takes as long as
    /// the disk does.
    pub fn copy(&self, to: &Path) -> Result<Report, OpenError> {
        // Ends after the database was let go of.
        let _copying = self.copies.begin();
        let database = self.database.upgrade().ok_or(Fault::Dead)?;
        Target::take(to)?.fill(&database, &self.options, &self.copies.stop)
    }
}

// === impl Target ===

impl Target {
    fn take(to: &Path) -> Result<Self, OpenError> {
        let directory = Directory::prepare(to)?;
        if !directory.is_empty()? {
            return Err(OpenError::Occupied { path: to.to_owned() });
        }
        Ok(Self { directory })
    }

    /// Makes it a copy, or leaves it empty.
    fn fill(self, database: &Database, options: &Options, stop: &AtomicBool) -> Result<Report, OpenError> {
        let fresh = self.directory.fresh()?;
        let made = catch_unwind(AssertUnwindSafe(|| transcribe(database, &fresh, options, stop)));
        let made = made.unwrap_or(Err(Fault::Structure("its pages contradict each other")));
        let made = made.map_err(OpenError::from).and_then(|damaged| {
            let mut report = look(&fresh, options)?;
            if report.damages > 0 {
                return Err(OpenError::Damaged { path: fresh.clone(), report: Box::new(report) });
            }
            self.directory.adopt(&fresh)?;
            report.leave_out(&damaged);
            Ok(report)
        });
        if made.is_err() {
            // What went wrong is worse than what may go wrong here.
            let _ = fs::remove_file(&fresh);
        }
        made
    }
}

/// Writes every table anew, without sessions that are damaged: those are returned. All of it is of one moment, and on
/// the disk when this returns.
fn transcribe(
    database: &Database,
    to: &Path,
    options: &Options,
    stop: &AtomicBool,
) -> Result<BTreeMap<Vec<u8>, String>, Fault> {
    let source = database.begin_read()?;
    let damaged = verdicts(&source)?;
    let copied = builder(options).create(to)?;
    let target = copied.begin_write()?;
    let is_damaged = |prefix: &[u8]| damaged.contains_key(prefix);
    for definition in ALL {
        let (from, mut to) = (source.open_table(definition)?, target.open_table(definition)?);
        for item in from.iter()? {
            if stop.load(Ordering::Relaxed) {
                return Err(Fault::Dead);
            }
            let (key, value) = item?;
            let is_left_out = match definition.name() {
                "values" => Spot { table: "values", key: key.value() }.unseal(value.value()).is_err(),
                "meta" => false,
                "sessions" => {
                    Line::read(key.value()).is_none_or(|line| is_damaged(&tables::prefix(&line.session())))
                }
                _ => prefix_of(key.value()).is_none_or(is_damaged),
            };
            if !is_left_out {
                to.insert(key.value(), value.value())?;
            }
        }
    }
    // Later than the original's, whatever the clock says.
    let before = meta(database, "era")?.unwrap_or_default();
    write_meta(&target, "era", (options.clock)().store.0.max(before + 1))?;
    target.commit()?;
    copied.close()?;
    directory::sync(to.parent().unwrap_or(to)).map_err(redb::Error::Io)?;
    Ok(damaged)
}
