//! The offline check of a store that no process has open: reads all of it and writes nothing. Called by `turnway
//! store check`, by copies, and by repair.
use crate::store::embedded::EmbeddedOptions;
use crate::store::embedded::check::check_records;
use crate::store::embedded::directory::DataDirectory;
use crate::store::embedded::engine::{builder, initialise, read_meta};
use crate::store::embedded::fault::{EmbeddedOpenError, StoreFault};
use crate::store::embedded::overlay::OverlayFile;
use crate::store::embedded::report::CheckReport;
use redb::{Database, DatabaseError, StorageError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads a whole data directory that no process has open and reports what does not fit together.
pub fn check(dir: &Path, options: &EmbeddedOptions) -> Result<CheckReport, EmbeddedOpenError> {
    let directory = DataDirectory::open_existing(dir)?;
    check_file(&directory.database_path(), options)
}

/// Reads a whole database file: its pages, then every record.
pub(super) fn check_file(file: &Path, options: &EmbeddedOptions) -> Result<CheckReport, EmbeddedOpenError> {
    let shadow = open_overlay(file)?;
    let bytes = redb::StorageBackend::len(&shadow).map_err(|error| unreadable(file, error))?;
    let unclosed = Arc::new(AtomicBool::new(false));
    let noticed = Arc::clone(&unclosed);
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = builder(options);
        builder.set_repair_callback(move |_| noticed.store(true, Ordering::Relaxed));
        match builder.create_with_backend(shadow) {
            Ok(database) => inspect(database, options),
            Err(error) => Ok(report_of_error(&error)),
        }
    }));
    let mut report = looked.unwrap_or_else(|_| {
        // A damaged page may lead redb anywhere, so a panic here is not a bug of this check.
        let mut report = CheckReport::default();
        report.add_complaint("the file cannot be read completely: its pages contradict each other".to_owned());
        Ok(report)
    })?;
    (report.bytes, report.unclosed) = (bytes, unclosed.load(Ordering::Relaxed));
    Ok(report)
}

/// Returns an overlay of a file, which redb can open without changing the file.
pub(super) fn open_overlay(file: &Path) -> Result<OverlayFile, EmbeddedOpenError> {
    OverlayFile::of(file).map_err(|error| unreadable(file, error))
}

fn inspect(mut database: Database, options: &EmbeddedOptions) -> Result<CheckReport, EmbeddedOpenError> {
    match database.check_integrity() {
        Ok(true) => {}
        Ok(false) => {
            // After a repair by redb, data may be missing.
            let mut report = CheckReport::default();
            report.add_complaint("page checksums do not match".to_owned());
            return Ok(report);
        }
        Err(error) => return Ok(report_of_error(&error)),
    }
    match read_meta(&database, "format") {
        Ok(Some(_)) => {}
        Ok(None) => {
            let mut report = CheckReport::default();
            report.add_complaint("the file contains no Turnway store".to_owned());
            return Ok(report);
        }
        Err(fault) => return Ok(report_of_fault(&fault)),
    }
    match initialise(&database, 0, options.two_phase) {
        Ok(_) => Ok(check_records(&database)),
        Err(EmbeddedOpenError::Fault(fault)) => Ok(report_of_fault(&fault)),
        Err(error) => Err(error),
    }
}

fn report_of_error(error: &DatabaseError) -> CheckReport {
    let mut report = CheckReport::default();
    report.add_complaint(if let DatabaseError::Storage(StorageError::Corrupted(what)) = error {
        format!("the file is damaged: {what}")
    } else {
        format!("the file cannot be read: {error}")
    });
    report
}

fn report_of_fault(fault: &StoreFault) -> CheckReport {
    let mut report = CheckReport::default();
    report.add_fault(fault);
    report
}

fn unreadable(path: &Path, error: io::Error) -> EmbeddedOpenError {
    EmbeddedOpenError::Directory { path: path.to_owned(), error }
}
