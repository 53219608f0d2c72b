//! The data directory: its lock, its file names, the check for a network file system, and the free disk space. Used
//! by opening, copies, and repair.
use crate::store::embedded::fault::OpenError;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::time::Mono;

/// File name of the database.
const DATABASE: &str = "turnway.redb";
/// File name of a database that is being written.
const FRESH: &str = "turnway.redb.new";
/// Prefix of a damaged database that was replaced; the time in milliseconds follows.
const DAMAGED: &str = "turnway.redb.damaged-";
/// Maximum replaced files that are kept; the oldest are removed first. A few suffice to investigate damage and
/// repair.
const DAMAGED_MAX: usize = 3;
/// File name of the lock that is held while the directory is in use.
const LOCK: &str = "turnway.lock";
/// Interval between two checks of the free space.
const LOOK: Duration = Duration::from_secs(1);

/// A data directory locked by this process.
pub(super) struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Opens and locks the directory, and creates it if missing.
    pub(super) fn prepare(path: &Path) -> Result<Self, OpenError> {
        let fail = |error| OpenError::Directory { path: path.to_owned(), error };
        if !path.is_dir() {
            make(path).map_err(fail)?;
        }
        if let Some(kind) = network(path).map_err(fail)? {
            return Err(OpenError::Network { path: path.to_owned(), kind });
        }
        let lock = File::options().create(true).truncate(false).write(true).open(path.join(LOCK));
        Self::lock(path, lock.map_err(fail)?)
    }

    /// Opens and locks an existing directory that contains a database. Writes nothing but the lock file; if not even
    /// the lock file can be written, no other process can write either.
    pub(super) fn enter(path: &Path) -> Result<Self, OpenError> {
        let fail = |error| OpenError::Directory { path: path.to_owned(), error };
        if !path.join(DATABASE).is_file() {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        let lock = File::options().create(true).truncate(false).write(true).open(path.join(LOCK));
        let lock = match lock {
            Err(error) if is_closed(&error) => File::open(path.join(LOCK)).or_else(|_| File::open(path)),
            lock => lock,
        };
        Self::lock(path, lock.map_err(fail)?)
    }

    fn lock(path: &Path, lock: File) -> Result<Self, OpenError> {
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(OpenError::Directory { path: path.to_owned(), error }),
        }
    }

    /// Returns whether the directory contains no foreign files.
    pub(super) fn is_empty(&self) -> Result<bool, OpenError> {
        let fail = |error| OpenError::Directory { path: self.path.clone(), error };
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            // Leftovers of an earlier attempt, and what file systems keep in their roots.
            if name != LOCK && name != FRESH && name != "lost+found" {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the path of the database.
    pub(super) fn file(&self) -> PathBuf {
        self.path.join(DATABASE)
    }
    /// Returns whether the directory contains a database.
    pub(super) fn exists(&self) -> bool {
        self.file().exists()
    }
    /// Creates an empty file for a new database and removes the leftovers of an earlier attempt.
    pub(super) fn fresh(&self) -> Result<PathBuf, OpenError> {
        let fresh = self.path.join(FRESH);
        match empty(&fresh) {
            Ok(()) => Ok(fresh),
            Err(error) => Err(OpenError::Directory { path: fresh, error }),
        }
    }
    /// Renames a new database, complete and closed, to the database's name.
    pub(super) fn adopt(&self, fresh: &Path) -> Result<(), OpenError> {
        let adopted = fs::rename(fresh, self.file()).and_then(|()| sync(&self.path));
        adopted.map_err(|error| OpenError::Directory { path: self.path.clone(), error })
    }
}

impl Directory {
    /// Replaces the database with a new one and keeps the old one under another name, for later recovery. A crash at
    /// any moment leaves either database under the database's name. Returns the other name.
    pub(super) fn replace(&self, fresh: &Path, at: u64) -> Result<PathBuf, OpenError> {
        let old = self.path.join(format!("{DAMAGED}{at}"));
        let kept = fs::hard_link(self.file(), &old).or_else(|_| fs::copy(self.file(), &old).map(|_| ()));
        kept.map_err(|error| OpenError::Directory { path: old.clone(), error })?;
        self.adopt(fresh)?;
        self.forget_old()?;
        Ok(old)
    }

    /// Removes the oldest replaced files above the maximum: each may be as large as the store.
    fn forget_old(&self) -> Result<(), OpenError> {
        let fail = |error| OpenError::Directory { path: self.path.clone(), error };
        let mut old = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let at =
                path.file_name().and_then(|name| name.to_str()?.strip_prefix(DAMAGED)?.parse::<u64>().ok());
            old.extend(at.map(|at| (at, path)));
        }
        old.sort();
        let too_many = old.len().saturating_sub(DAMAGED_MAX);
        for (_, path) in old.into_iter().take(too_many) {
            fs::remove_file(&path).map_err(|error| OpenError::Directory { path, error })?;
        }
        Ok(())
    }
}

/// Returns whether the error says that the path exists but is not writable.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn make(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    // The store contains what users wrote.
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync(parent.unwrap_or(Path::new(".")))
}

fn empty(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options();
    file.write(true).create_new(true);
    // The directory may have been created by an operator and be open to other users.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
    file.open(path).map(drop)
}

/// Flushes a directory: a new name in it is durable only afterwards.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// Returns the name of the network file system that a path lies on, if it lies on one.
#[cfg(target_os = "linux")]
fn network(path: &Path) -> io::Result<Option<&'static str>> {
    let kind = rustix::fs::statfs(path)?.f_type;
    // Numbers of linux/magic.h. They are 32 bits wide; the field's width and sign vary.
    Ok(match kind as u32 {
        0x6969 => Some("NFS"),
        0xff53_4d42 => Some("CIFS"),
        0xfe53_4d42 => Some("SMB2"),
        0x517b => Some("SMB"),
        0x0102_1997 => Some("9P"),
        0x00c3_6400 => Some("Ceph"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        0x0161_1970 => Some("GFS2"),
        0x7375_7245 => Some("Coda"),
        _ => None,
    })
}

#[cfg(not(target_os = "linux"))]
fn network(_: &Path) -> io::Result<Option<&'static str>> {
    Ok(None)
}

/// The free disk space, checked at most once a second.
pub(super) struct Room {
    /// None for a storage backend of the caller, which has no disk to check.
    path: Option<PathBuf>,
    reserve: u64,
    looked: Option<Mono>,
    full: bool,
    /// Free bytes above the reserve, if known.
    spare: Option<u64>,
    /// Called when `full` changes.
    tell: Arc<dyn Fn(bool) + Send + Sync>,
}

impl Room {
    pub(super) fn of(
        directory: Option<&Directory>,
        reserve: u64,
        tell: Arc<dyn Fn(bool) + Send + Sync>,
    ) -> Self {
        let path = directory.map(|directory| directory.path.clone());
        Self { path, reserve, looked: None, full: false, spare: None, tell }
    }

    /// Returns whether inputs have to be refused, so that the engine itself never finds the disk full.
    pub(super) fn is_full(&mut self, now: Mono) -> bool {
        if let Some(path) = &self.path
            && self.looked.is_none_or(|looked| now - looked >= LOOK)
        {
            let free = free(path);
            let full = free.is_some_and(|bytes| bytes < self.reserve);
            self.spare = free.map(|bytes| bytes.saturating_sub(self.reserve));
            if std::mem::replace(&mut self.full, full) != full {
                (self.tell)(full);
            }
            self.looked = Some(now);
        }
        self.full
    }

    /// Returns the free space above the reserve as of the last check.
    pub(super) fn spare(&self) -> Option<u64> {
        self.spare
    }
}

/// Returns the bytes that this process may still write, if known.
#[cfg(unix)]
fn free(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
fn free(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_directory_is_locked_exclusively() {
        let dir = std::env::temp_dir().join(format!("turnway-directory-{}", std::process::id()));
        let first = Directory::prepare(&dir).expect("taken");
        assert!(matches!(Directory::prepare(&dir), Err(OpenError::InUse { .. })));
        drop(first);
        assert!(Directory::prepare(&dir).is_ok());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
