//! What can go wrong with a disk.
use crate::store::embedded::report::Report;
use std::path::PathBuf;

/// Why nothing more can be promised. Not repaired by asking again: the process ends, and its
/// successor reads what is really there.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The engine or the disk below it failed.
    #[error("the disk failed: {0}")]
    Disk(#[from] redb::Error),
    /// A record is not what was written.
    #[error("damaged record in `{table}` at {key}: {what}")]
    Damaged {
        /// In which table.
        table: &'static str,
        /// Under which key, readable.
        key: String,
        /// How it shows.
        what: &'static str,
    },
    /// Pages of the file contradict each other.
    #[error("the file's structure is damaged: {0}")]
    Structure(&'static str),
    /// The file is not where the next start will look for it.
    #[error("{what}: {path}")]
    Gone {
        /// Where it was.
        path: PathBuf,
        /// What became of it.
        what: &'static str,
    },
    /// A bug: a step panicked half-way.
    #[error("the store's writer panicked")]
    Panicked,
    /// It failed before.
    #[error("the store has failed before")]
    Dead,
}

impl Fault {
    /// Whether what is on the disk is not what was written: another try finds the same.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Structure(_) | Self::Panicked => true,
            Self::Disk(error) => matches!(error, redb::Error::Corrupted(_)),
            Self::Gone { .. } | Self::Dead => false,
        }
    }
}

macro_rules! define_from_redb {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for Fault {
            fn from(error: redb::$error) -> Self {
                Self::Disk(error.into())
            }
        })*
    };
}
define_from_redb!(StorageError, TableError, TransactionError, CommitError, DatabaseError, SetDurabilityError);

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("{path}: {error}")]
    Directory {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// There is no store to look at.
    #[error("{path}: there is no store here")]
    Missing {
        /// Which one.
        path: PathBuf,
    },
    /// Something lies where a copy was to be made; nothing is ever overwritten.
    #[error("{path}: this directory is not empty, and nothing is overwritten")]
    Occupied {
        /// Which one.
        path: PathBuf,
    },
    /// What was read does not fit together.
    #[error("{path}: damaged ({} complaints); {}", report.damages, report.complaints.first().map_or("", String::as_str))]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// All of it.
        report: Box<Report>,
    },
    /// Another process has it.
    #[error("{path}: another process has this data directory open")]
    InUse {
        /// Which one.
        path: PathBuf,
    },
    /// Locks and fsync of network file systems do not hold what is promised here.
    #[error("{path}: this is a network file system ({kind}); use a local disk, or Redis as the store")]
    Network {
        /// Which one.
        path: PathBuf,
        /// NFS, SMB or the like.
        kind: &'static str,
    },
    /// Written by a later release.
    #[error("the data is of format {found}, this release reads {known}")]
    Format {
        /// What the data says.
        found: u64,
        /// What is known here.
        known: u64,
    },
    /// The writer's thread could not be started.
    #[error("no thread for the store: {0}")]
    Thread(#[from] std::io::Error),
    /// What is there cannot be read.
    #[error(transparent)]
    Fault(#[from] Fault),
}
