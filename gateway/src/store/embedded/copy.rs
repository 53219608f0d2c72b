//! Copies and repairs of a store. Every copy is checked before it counts, is flushed to disk, and gets a new era. The
//! original is never changed. Called by the CLI and the admin endpoint.
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

/// Copies a data directory that no process has open into a new or empty one, and checks the copy before it counts.
/// Damaged sessions are left out and named in the report. The original is not touched. The copy gets a new era, so
/// that a node that knew the original notices that data may be missing.
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
        // No other process has either directory open, so the counts cannot differ.
        return Err(OpenError::Damaged { path: to.to_owned(), report: Box::new(copied) });
    }
    Ok(copied)
}

/// Saves the intact data of a directory that no process has open into a new or empty directory. The original is not
/// touched.
pub fn rescue(dir: &Path, to: &Path, options: &Options) -> Result<Report, OpenError> {
    let from = Directory::enter(dir)?;
    salvage_into(Target::take(to)?, &from, options)
}

/// Repairs a data directory that no process has open: damaged data is dropped, derived data is rebuilt, and the
/// original file is kept beside the new one. Does nothing if nothing is damaged.
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

/// Writes the intact data into a fresh file and checks that file before it counts.
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
        // The error that led here matters more than an error of the removal.
        let _ = fs::remove_file(fresh);
    }
    saved
}

/// A handle that copies a store while its process runs.
#[derive(Clone)]
pub struct Copier {
    database: Weak<Database>,
    options: Options,
    copies: Arc<Copies>,
}

/// The copies in progress.
#[derive(Default)]
pub(super) struct Copies {
    /// Set when the store closes.
    stop: AtomicBool,
    count: Mutex<usize>,
    ended: Condvar,
}

/// A guard that counts one copy as in progress until it is dropped.
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

    /// Cancels the copies and waits until none holds the database, for at most `patience`.
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

/// An empty directory that receives a copy.
struct Target {
    directory: Directory,
}

// === impl Copier ===

impl Copier {
    pub(super) fn new(database: &Arc<Database>, options: Options, copies: Arc<Copies>) -> Self {
        Self { database: Arc::downgrade(database), options, copies }
    }

    /// Copies the store as of now into a new or empty directory; see [`copy`]. Inputs accepted meanwhile are not in
    /// the copy and take extra disk space until the copy ends. Blocks for as long as the disk needs.
    pub fn copy(&self, to: &Path) -> Result<Report, OpenError> {
        // Declared before the database handle, so that the guard is dropped after it.
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

    /// Fills the directory with a copy, or leaves the directory empty on failure.
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
            // The error that led here matters more than an error of the removal.
            let _ = fs::remove_file(&fresh);
        }
        made
    }
}

/// Writes every table to a new file, without the damaged sessions, which it returns. The copy is a snapshot of one
/// moment and is on the disk when this function returns.
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
    // The new era must be later than the original's, whatever the clock says.
    let before = meta(database, "era")?.unwrap_or_default();
    write_meta(&target, "era", (options.clock)().store.0.max(before + 1))?;
    target.commit()?;
    copied.close()?;
    directory::sync(to.parent().unwrap_or(to)).map_err(redb::Error::Io)?;
    Ok(damaged)
}
