//! Copies and repairs of a store. Every copy is checked before it counts, is flushed to disk, and gets a new era. The
//! original is never changed. Called by the CLI and the admin endpoint.
use crate::store::embedded::EmbeddedOptions;
use crate::store::embedded::check::damaged_sessions;
use crate::store::embedded::conversations;
use crate::store::embedded::directory::{self, DataDirectory};
use crate::store::embedded::engine::{builder, initialise, read_meta, write_meta};
use crate::store::embedded::fault::{EmbeddedOpenError, StoreFault};
use crate::store::embedded::index::IndexKey;
use crate::store::embedded::meter;
use crate::store::embedded::offline_check::{check_file, open_overlay};
use crate::store::embedded::record::RecordLocation;
use crate::store::embedded::report::CheckReport;
use crate::store::embedded::salvage::{DamagedPolicy, prefix_of, salvage};
use crate::store::embedded::tables::{self, ALL, CONVERSATION_TIMES, SESSION_CONVERSATIONS};
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
pub fn copy(dir: &Path, to: &Path, options: &EmbeddedOptions) -> Result<CheckReport, EmbeddedOpenError> {
    let from = DataDirectory::open_existing(dir)?;
    let found = check_file(&from.database_path(), options)?;
    if found.damages > 0 {
        return salvage_into(CopyTarget::open(to)?, &from, options);
    }
    let database =
        builder(options).create_with_backend(open_overlay(&from.database_path())?).map_err(StoreFault::from)?;
    initialise(&database, 0, options.two_phase)?;
    let copied = CopyTarget::open(to)?.fill(&database, options, &AtomicBool::new(false))?;
    if copied.counts() != found.counts() {
        // No other process has either directory open, so the counts cannot differ.
        return Err(EmbeddedOpenError::Damaged { path: to.to_owned(), report: Box::new(copied) });
    }
    Ok(copied)
}

/// Saves the intact data of a directory that no process has open into a new or empty directory. The original is not
/// touched.
pub fn rescue(dir: &Path, to: &Path, options: &EmbeddedOptions) -> Result<CheckReport, EmbeddedOpenError> {
    let from = DataDirectory::open_existing(dir)?;
    salvage_into(CopyTarget::open(to)?, &from, options)
}

/// Repairs a data directory that no process has open: damaged data is dropped, derived data is rebuilt, and the
/// original file is kept beside the new one. Does nothing if nothing is damaged.
pub fn repair(dir: &Path, options: &EmbeddedOptions) -> Result<CheckReport, EmbeddedOpenError> {
    let directory = DataDirectory::open_existing(dir)?;
    let found = check_file(&directory.database_path(), options)?;
    if found.damages == 0 {
        return Ok(found);
    }
    let fresh = directory.create_fresh_file()?;
    let report = salvage_and_check(&directory, &fresh, options)?;
    directory.replace(&fresh, (options.clock)().store.0)?;
    Ok(report)
}

fn salvage_into(
    target: CopyTarget,
    from: &DataDirectory,
    options: &EmbeddedOptions,
) -> Result<CheckReport, EmbeddedOpenError> {
    let fresh = target.directory.create_fresh_file()?;
    let report = salvage_and_check(from, &fresh, options)?;
    target.directory.install(&fresh)?;
    Ok(report)
}

/// Writes the intact data into a fresh file and checks that file before it counts.
fn salvage_and_check(
    from: &DataDirectory,
    fresh: &Path,
    options: &EmbeddedOptions,
) -> Result<CheckReport, EmbeddedOpenError> {
    let saved = salvage(&from.database_path(), fresh, DamagedPolicy::Drop, options).and_then(|saved| {
        let whole = check_file(fresh, options)?;
        if whole.damages > 0 {
            return Err(EmbeddedOpenError::Damaged { path: fresh.to_owned(), report: Box::new(whole) });
        }
        let left_out = saved.left_out;
        let complaints = saved.complaints;
        Ok(CheckReport { left_out, complaints, ..whole })
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
    options: EmbeddedOptions,
    copies: Arc<ActiveCopies>,
}

/// The copies in progress.
#[derive(Default)]
pub(super) struct ActiveCopies {
    /// Set when the store closes.
    stop: AtomicBool,
    count: Mutex<usize>,
    ended: Condvar,
}

/// A guard that counts one copy as in progress until it is dropped.
struct CopyGuard<'a>(&'a ActiveCopies);

// === impl ActiveCopies ===

impl ActiveCopies {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> CopyGuard<'_> {
        *self.count() += 1;
        CopyGuard(self)
    }

    /// Cancels the copies and waits until none holds the database, for at most `patience`.
    pub(super) fn cancel(&self, patience: Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let waited = self.ended.wait_timeout_while(self.count(), patience, |count| *count > 0);
        drop(waited);
    }
}

impl Drop for CopyGuard<'_> {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.ended.notify_all();
    }
}

/// An empty directory that receives a copy.
struct CopyTarget {
    directory: DataDirectory,
}

// === impl Copier ===

impl Copier {
    pub(super) fn new(database: &Arc<Database>, options: EmbeddedOptions, copies: Arc<ActiveCopies>) -> Self {
        Self { database: Arc::downgrade(database), options, copies }
    }

    /// Copies the store as of now into a new or empty directory; see [`copy`]. Inputs accepted meanwhile are not in
    /// the copy and take extra disk space until the copy ends. Blocks for as long as the disk needs.
    pub fn copy(&self, to: &Path) -> Result<CheckReport, EmbeddedOpenError> {
        // Declared before the database handle, so that the guard is dropped after it.
        let _copying = self.copies.begin();
        let database = self.database.upgrade().ok_or(StoreFault::AlreadyFailed)?;
        CopyTarget::open(to)?.fill(&database, &self.options, &self.copies.stop)
    }
}

// === impl CopyTarget ===

impl CopyTarget {
    fn open(to: &Path) -> Result<Self, EmbeddedOpenError> {
        let directory = DataDirectory::open_or_create(to)?;
        if !directory.is_empty()? {
            return Err(EmbeddedOpenError::NotEmpty { path: to.to_owned() });
        }
        Ok(Self { directory })
    }

    /// Fills the directory with a copy, or leaves the directory empty on failure.
    fn fill(
        self,
        database: &Database,
        options: &EmbeddedOptions,
        stop: &AtomicBool,
    ) -> Result<CheckReport, EmbeddedOpenError> {
        let fresh = self.directory.create_fresh_file()?;
        let made = catch_unwind(AssertUnwindSafe(|| copy_tables(database, &fresh, options, stop)));
        let made = made.unwrap_or(Err(StoreFault::Structure("its pages contradict each other")));
        let made = made.map_err(EmbeddedOpenError::from).and_then(|damaged| {
            let mut report = check_file(&fresh, options)?;
            if report.damages > 0 {
                return Err(EmbeddedOpenError::Damaged { path: fresh.clone(), report: Box::new(report) });
            }
            self.directory.install(&fresh)?;
            report.record_left_out(&damaged);
            Ok(report)
        });
        if made.is_err() {
            // The error that led here matters more than an error of the removal.
            let _ = fs::remove_file(&fresh);
        }
        made
    }
}

/// Writes every table to a new file, without the damaged sessions, which are returned. The copy is a snapshot of one
/// moment and is on the disk when this function returns.
fn copy_tables(
    database: &Database,
    to: &Path,
    options: &EmbeddedOptions,
    stop: &AtomicBool,
) -> Result<BTreeMap<Vec<u8>, String>, StoreFault> {
    let source = database.begin_read()?;
    let damaged = damaged_sessions(&source)?;
    let copied = builder(options).create(to)?;
    let target = copied.begin_write()?;
    let is_damaged = |prefix: &[u8]| damaged.contains_key(prefix);
    let mut is_partial = false;
    for definition in ALL {
        let is_derived = [SESSION_CONVERSATIONS, CONVERSATION_TIMES].iter().any(|of| of.name() == definition.name());
        let from = source.open_table(definition)?;
        let mut to = target.open_table(definition)?;
        for item in from.iter()? {
            if stop.load(Ordering::Relaxed) {
                return Err(StoreFault::AlreadyFailed);
            }
            let (key, value) = item?;
            let is_left_out = match definition.name() {
                "values" => RecordLocation { table: "values", key: key.value() }.unseal(value.value()).is_err(),
                "meta" => false,
                "conversations" => !conversations::is_intact(key.value(), value.value()),
                // Built from the rows below.
                "session_conversations" | "conversation_times" => true,
                "sessions" => {
                    IndexKey::parse(key.value()).is_none_or(|line| is_damaged(&tables::session_prefix(&line.session())))
                }
                _ => prefix_of(key.value()).is_none_or(is_damaged),
            };
            if !is_left_out {
                to.insert(key.value(), value.value())?;
            }
            is_partial |= is_left_out && !is_derived;
        }
    }
    conversations::rebuild(&target)?;
    if is_partial {
        // The copied byte counts of users include what was left out, and a damaged count was left out itself.
        meter::build(&target)?;
    }
    // The new era must be later than the original's, whatever the clock says.
    let before = read_meta(database, "era")?.unwrap_or_default();
    write_meta(&target, "era", (options.clock)().store.0.max(before + 1))?;
    target.commit()?;
    copied.close()?;
    directory::sync(to.parent().unwrap_or(to)).map_err(redb::Error::Io)?;
    Ok(damaged)
}
