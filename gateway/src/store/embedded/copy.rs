//! Copies of a store: whole, looked at, on the disk, and of a new era.
use crate::store::embedded::Options;
use crate::store::embedded::directory::{self, Directory};
use crate::store::embedded::engine::{builder, meta, ready, write_meta};
use crate::store::embedded::fault::{Fault, OpenError};
use crate::store::embedded::look::{look, shadow};
use crate::store::embedded::report::Report;
use crate::store::embedded::tables::ALL;
use redb::{Database, ReadableDatabase, ReadableTable};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Weak};

/// Copies a data directory that no process has open into a new or empty one, and reads the copy before
/// it counts. The original is not touched. The copy is of a new era, so that whoever knew the original
/// notices that it may have forgotten.
pub fn copy(dir: &Path, to: &Path, options: &Options) -> Result<Report, OpenError> {
    let from = Directory::enter(dir)?;
    let found = look(&from.file(), options)?;
    if found.damages > 0 {
        return Err(OpenError::Damaged { path: dir.to_owned(), report: Box::new(found) });
    }
    let database = builder(options).create_with_backend(shadow(&from.file())?).map_err(Fault::from)?;
    ready(&database, 0, options.two_phase)?;
    let copied = Target::take(to)?.fill(&database, options)?;
    if copied.counts() != found.counts() {
        // Nobody else has either of them: this cannot be.
        return Err(OpenError::Damaged { path: to.to_owned(), report: Box::new(copied) });
    }
    Ok(copied)
}

/// Copies a store while its process runs.
#[derive(Clone)]
pub struct Copier {
    database: Weak<Database>,
    options: Options,
}

/// A directory that becomes a copy.
struct Target {
    directory: Directory,
}

// === impl Copier ===

impl Copier {
    pub(super) fn new(database: &Arc<Database>, options: Options) -> Self {
        Self { database: Arc::downgrade(database), options }
    }

    /// Copies the store as it is now into a new or empty directory; see [`copy`]. What is accepted
    /// meanwhile is not in it, and needs more room on the disk until the copy is made. Takes as long as
    /// the disk does.
    pub fn copy(&self, to: &Path) -> Result<Report, OpenError> {
        let database = self.database.upgrade().ok_or(Fault::Dead)?;
        Target::take(to)?.fill(&database, &self.options)
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
    fn fill(self, database: &Database, options: &Options) -> Result<Report, OpenError> {
        let fresh = self.directory.fresh()?;
        let made = transcribe(database, &fresh, options).map_err(OpenError::from);
        let made = made.and_then(|()| look(&fresh, options)).and_then(|report| {
            if report.damages > 0 {
                return Err(OpenError::Damaged { path: fresh.clone(), report: Box::new(report) });
            }
            self.directory.adopt(&fresh)?;
            Ok(report)
        });
        if made.is_err() {
            // What went wrong is worse than what may go wrong here.
            let _ = fs::remove_file(&fresh);
        }
        made
    }
}

/// Writes every table anew. All of it is of one moment, and on the disk when this returns.
fn transcribe(database: &Database, to: &Path, options: &Options) -> Result<(), Fault> {
    let copied = builder(options).create(to)?;
    let (source, target) = (database.begin_read()?, copied.begin_write()?);
    for definition in ALL {
        let (from, mut to) = (source.open_table(definition)?, target.open_table(definition)?);
        for item in from.iter()? {
            let (key, value) = item?;
            to.insert(key.value(), value.value())?;
        }
    }
    // Later than the original's, whatever the clock says.
    let before = meta(database, "era")?.unwrap_or_default();
    write_meta(&target, "era", (options.clock)().store.0.max(before + 1))?;
    target.commit()?;
    copied.close()?;
    Ok(directory::sync(to.parent().unwrap_or(to)).map_err(redb::Error::Io)?)
}
