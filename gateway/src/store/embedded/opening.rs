//! Opening of a data file that may be damaged: intact data is saved into a new file, damaged sessions are
//! quarantined, and the damaged file is kept beside. Called by the engine.
use crate::store::embedded::EmbeddedOptions;
use crate::store::embedded::datafile::{DataFile, DataFileMonitor};
use crate::store::embedded::directory::DataDirectory;
use crate::store::embedded::engine::builder;
use crate::store::embedded::fault::{EmbeddedOpenError, StoreFault};
use crate::store::embedded::pages::{FileHeader, PageReader};
use crate::store::embedded::salvage::{DamagedPolicy, salvage};
use crate::store::embedded::tables::ALL;
use redb::{Database, DatabaseError, StorageBackend, StorageError, TableHandle};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use turnway_core::limits;

/// Opens the database of a directory; replaces a damaged database with a new one made of its intact data.
pub(super) fn open(
    directory: &DataDirectory,
    options: &EmbeddedOptions,
) -> Result<(Database, Arc<DataFileMonitor>), EmbeddedOpenError> {
    let fault = match try_open(&directory.database_path(), options) {
        Err(EmbeddedOpenError::Fault(fault)) if fault.is_damage() => fault,
        opened => return opened,
    };
    tracing::error!(%fault, "the store is damaged; saving the intact data into a new file");
    let fresh = directory.create_fresh_file()?;
    let report = salvage(&directory.database_path(), &fresh, DamagedPolicy::Keep, options)?;
    let kept = directory.replace(&fresh, (options.clock)().store.0)?;
    tracing::error!(
        closed_off = report.left_out,
        damages = report.damages,
        kept = %kept.display(),
        "a new store was made from the intact data; the damaged file is kept"
    );
    for complaint in &report.complaints {
        tracing::warn!(complaint, "damage found while saving the store");
    }
    try_open(&directory.database_path(), options)
}

/// Opens a file if its pages are intact; the file is changed only then.
fn try_open(path: &Path, options: &EmbeddedOptions) -> Result<(Database, Arc<DataFileMonitor>), EmbeddedOpenError> {
    let fail = |error| EmbeddedOpenError::Directory { path: path.to_owned(), error };
    let file = DataFile::open(path).map_err(fail)?;
    let watched = file.monitor();
    let Some(before) = watched.header() else {
        return Err(StoreFault::Structure("its header cannot be read").into());
    };
    if before.is_closed && before.selects_older_commit {
        return Err(StoreFault::Structure("its header selects an older commit").into());
    }
    let is_small = file.len().map_err(fail)? <= limits::STORE_VERIFIED_BYTES_MAX;
    let mut builder = builder(options);
    builder.set_check_integrity_on_open(is_small);
    let opened = catch_unwind(AssertUnwindSafe(|| builder.create_with_backend(file)));
    let database = match opened {
        Ok(opened) => opened.map_err(classify_open_error)?,
        Err(_) => return Err(StoreFault::Structure("its pages contradict each other").into()),
    };
    if is_rolled_back(path, &before, &watched).map_err(fail)? {
        return Err(StoreFault::Structure("the last commit is damaged").into());
    }
    watched.flush_staged().map_err(fail)?;
    Ok((database, watched))
}

/// Distinguishes a failing disk from wrong bytes in the file. Wrong bytes would only be read again on a retry.
#[expect(clippy::wildcard_enum_match_arm, reason = "the engine may have further errors")]
fn classify_open_error(error: DatabaseError) -> StoreFault {
    let is_damage = match &error {
        DatabaseError::Storage(StorageError::Io(error)) => {
            matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
        }
        DatabaseError::Storage(StorageError::Corrupted(_)) | DatabaseError::UpgradeRequired(_) => true,
        _ => false,
    };
    if is_damage { StoreFault::Structure("page checksums do not match") } else { error.into() }
}

/// Returns whether redb went back behind the last commit although that commit had been complete. A commit half
/// written in a crash differs in whole pages, damage in a byte or two.
fn is_rolled_back(path: &Path, before: &FileHeader, watched: &DataFileMonitor) -> std::io::Result<bool> {
    let after = watched.header();
    let (Some(last), Some(now)) = (before.newest(), after.as_ref().and_then(FileHeader::newest)) else {
        return Ok(false);
    };
    if last.has_same_root(now) {
        return Ok(false);
    }
    if before.is_closed {
        return Ok(true);
    }
    let names: Vec<&str> = ALL.iter().map(TableHandle::name).collect();
    let last = *last;
    let is_whole = match PageReader::open(path)? {
        Some(mut pages) => pages.is_readable(&last, &names)? && pages.unrepaired == 0,
        None => false,
    };
    if !is_whole {
        tracing::warn!("the last commit before a crash was incomplete; it was never acknowledged, so nothing is lost");
    }
    Ok(is_whole)
}
