//! The errors of the embedded store: faults of a running store, and reasons why a store cannot be opened.
use crate::store::embedded::report::CheckReport;
use std::path::PathBuf;

/// A reason why the store can guarantee nothing any more. A retry does not help: the process ends, and the next
/// process reads what is really on the disk.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// redb or the disk below it failed.
    #[error("the disk failed: {0}")]
    Disk(#[from] redb::Error),
    /// A record is not what was written.
    #[error("damaged record in `{table}` at {key}: {what}")]
    Damaged {
        /// Name of the table.
        table: &'static str,
        /// Key of the record, with unprintable bytes escaped.
        key: String,
        /// The check that failed.
        what: &'static str,
    },
    /// Pages of the file contradict each other.
    #[error("the file's structure is damaged: {0}")]
    Structure(&'static str),
    /// The file is no longer where the next start looks for it.
    #[error("{what}: {path}")]
    FileLost {
        /// Former path of the file.
        path: PathBuf,
        /// The change that was found.
        what: &'static str,
    },
    /// A bug: an op panicked half-way.
    #[error("the store's writer thread panicked")]
    Panicked,
    /// The store has failed before.
    #[error("the store has already failed; restart the process")]
    AlreadyFailed,
}

impl StoreFault {
    /// Returns whether the data on the disk is not what was written, so that another attempt would find the same.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Structure(_) | Self::Panicked => true,
            Self::Disk(error) => matches!(error, redb::Error::Corrupted(_)),
            Self::FileLost { .. } | Self::AlreadyFailed => false,
        }
    }
}

macro_rules! define_from_redb {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for StoreFault {
            fn from(error: redb::$error) -> Self {
                Self::Disk(error.into())
            }
        })*
    };
}
define_from_redb!(StorageError, TableError, TransactionError, CommitError, DatabaseError, SetDurabilityError);

/// The reason why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedOpenError {
    /// The directory cannot be used.
    #[error("{path}: {error}")]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The directory contains no store.
    #[error("{path}: this directory contains no store")]
    Missing {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The target of a copy is not empty; nothing is ever overwritten.
    #[error("{path}: this directory is not empty; name an empty or new one")]
    NotEmpty {
        /// Path of the target.
        path: PathBuf,
    },
    /// Records or pages are damaged or contradict each other.
    #[error(
        "{path}: the store is damaged ({} problems found); first: {}",
        report.damages,
        report.complaints.first().map_or("", String::as_str)
    )]
    Damaged {
        /// Path of the store.
        path: PathBuf,
        /// All findings of the check.
        report: Box<CheckReport>,
    },
    /// Another process has the directory open.
    #[error("{path}: another process has this data directory open")]
    InUse {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The directory is on a network file system, whose locks and fsync do not keep the store's guarantees.
    #[error("{path}: this is a network file system ({kind}); use a local disk, or Redis as the store")]
    Network {
        /// Path of the directory.
        path: PathBuf,
        /// Name of the file system, such as NFS or SMB.
        kind: &'static str,
    },
    /// The data was written by a later release.
    #[error(
        "the data has format {found}, but this release reads format {known}: use the release that wrote the data or a \
         later one"
    )]
    Format {
        /// Format version of the data.
        found: u64,
        /// Format version that this release reads.
        known: u64,
    },
    /// The writer thread could not be started.
    #[error("the thread of the store could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The store failed while it was opened.
    #[error(transparent)]
    Fault(#[from] StoreFault),
}
