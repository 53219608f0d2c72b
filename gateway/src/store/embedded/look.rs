//! The offline check of a store that no process has open: reads all of it and writes nothing. Called by `turnway
//! store check`, by copies, and by repair.
use crate::store::embedded::Options;
use crate::store::embedded::check::examine;
use crate::store::embedded::directory::Directory;
use crate::store::embedded::engine::{builder, meta, ready};
use crate::store::embedded::fault::{Fault, OpenError};
use crate::store::embedded::report::Report;
use crate::store::embedded::shadow::Shadow;
use redb::{Database, DatabaseError, StorageError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads a whole data directory that no process has open and reports what does not fit together.
pub fn check(dir: &Path, options: &Options) -> Result<Report, OpenError> {
    let directory = Directory::enter(dir)?;
    look(&directory.file(), options)
}

/// Reads a whole database file: its pages, then every record.
pub(super) fn look(file: &Path, options: &Options) -> Result<Report, OpenError> {
    let shadow = shadow(file)?;
    let bytes = redb::StorageBackend::len(&shadow).map_err(|error| unreadable(file, error))?;
    let unclosed = Arc::new(AtomicBool::new(false));
    let noticed = Arc::clone(&unclosed);
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = builder(options);
        builder.set_repair_callback(move |_| noticed.store(true, Ordering::Relaxed));
        match builder.create_with_backend(shadow) {
            Ok(database) => inspect(database, options),
            Err(error) => Ok(complaint(&error)),
        }
    }));
    let mut report = looked.unwrap_or_else(|_| {
        // A damaged page may lead redb anywhere, so a panic here is not a bug of this check.
        let mut report = Report::default();
        report.object("the file cannot be read completely: its pages contradict each other".to_owned());
        Ok(report)
    })?;
    (report.bytes, report.unclosed) = (bytes, unclosed.load(Ordering::Relaxed));
    Ok(report)
}

/// Returns an overlay of a file, which redb can open without changing the file.
pub(super) fn shadow(file: &Path) -> Result<Shadow, OpenError> {
    Shadow::of(file).map_err(|error| unreadable(file, error))
}

fn inspect(mut database: Database, options: &Options) -> Result<Report, OpenError> {
    match database.check_integrity() {
        Ok(true) => {}
        Ok(false) => {
            // After a repair by redb, data may be missing.
            let mut report = Report::default();
            report.object("page checksums do not match".to_owned());
            return Ok(report);
        }
        Err(error) => return Ok(complaint(&error)),
    }
    match meta(&database, "format") {
        Ok(Some(_)) => {}
        Ok(None) => {
            let mut report = Report::default();
            report.object("the file contains no Turnway store".to_owned());
            return Ok(report);
        }
        Err(fault) => return Ok(complaint_of(&fault)),
    }
    match ready(&database, 0, options.two_phase) {
        Ok(_) => Ok(examine(&database)),
        Err(OpenError::Fault(fault)) => Ok(complaint_of(&fault)),
        Err(error) => Err(error),
    }
}

fn complaint(error: &DatabaseError) -> Report {
    let mut report = Report::default();
    report.object(if let DatabaseError::Storage(StorageError::Corrupted(what)) = error {
        format!("the file is damaged: {what}")
    } else {
        format!("the file cannot be read: {error}")
    });
    report
}

fn complaint_of(fault: &Fault) -> Report {
    let mut report = Report::default();
    report.complain(fault);
    report
}

fn unreadable(path: &Path, error: io::Error) -> OpenError {
    OpenError::Directory { path: path.to_owned(), error }
}
