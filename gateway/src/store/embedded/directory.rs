//! The data directory: its lock, its file names, the check for a network file system, and the free disk space. Used
//! by opening, copies, and repair.
use crate::store::embedded::fault::EmbeddedOpenError;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::time::Mono;

/// File name of the database.
const DATABASE: &str = "turnway.redb";
/// File name of a database that is being written.
const FRESH_DATABASE: &str = "turnway.redb.new";
/// Prefix of a damaged database that was replaced; the time in milliseconds follows.
const DAMAGED_PREFIX: &str = "turnway.redb.damaged-";
/// Maximum replaced files that are kept; the oldest are removed first. A few suffice to investigate damage and
/// repair, and each is as large as the store: if every one were kept, a disk that damages files would also fill up.
const DAMAGED_MAX: usize = 3;
/// File name of the lock that is held while the directory is in use.
const LOCK: &str = "turnway.lock";
/// Interval between two checks of the free space.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A data directory locked by this process.
pub(super) struct DataDirectory {
    path: PathBuf,
    _lock: File,
}

impl DataDirectory {
    /// Opens and locks the directory, and creates it if missing.
    pub(super) fn open_or_create(path: &Path) -> Result<Self, EmbeddedOpenError> {
        let fail = |error| EmbeddedOpenError::Directory { path: path.to_owned(), error };
        if !path.is_dir() {
            create_directory(path).map_err(fail)?;
        }
        if let Some(kind) = network(path).map_err(fail)? {
            return Err(EmbeddedOpenError::Network { path: path.to_owned(), kind });
        }
        let lock = File::options().create(true).truncate(false).write(true).open(path.join(LOCK));
        Self::lock(path, lock.map_err(fail)?)
    }

    /// Opens and locks an existing directory that contains a database. Writes nothing but the lock file; if not even
    /// the lock file can be written, no other process can write either.
    pub(super) fn open_existing(path: &Path) -> Result<Self, EmbeddedOpenError> {
        let fail = |error| EmbeddedOpenError::Directory { path: path.to_owned(), error };
        if !path.join(DATABASE).is_file() {
            return Err(EmbeddedOpenError::Missing { path: path.to_owned() });
        }
        let lock = File::options().create(true).truncate(false).write(true).open(path.join(LOCK));
        let lock = match lock {
            Err(error) if is_not_writable(&error) => File::open(path.join(LOCK)).or_else(|_| File::open(path)),
            lock => lock,
        };
        Self::lock(path, lock.map_err(fail)?)
    }

    fn lock(path: &Path, lock: File) -> Result<Self, EmbeddedOpenError> {
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(EmbeddedOpenError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(EmbeddedOpenError::Directory { path: path.to_owned(), error }),
        }
    }

    /// Returns whether the directory contains no foreign files.
    pub(super) fn is_empty(&self) -> Result<bool, EmbeddedOpenError> {
        let fail = |error| EmbeddedOpenError::Directory { path: self.path.clone(), error };
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            // Leftovers of an earlier attempt, and what file systems keep in their roots.
            if name != LOCK && name != FRESH_DATABASE && name != "lost+found" {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the path of the database.
    pub(super) fn database_path(&self) -> PathBuf {
        self.path.join(DATABASE)
    }
    /// Returns whether the directory contains a database.
    pub(super) fn has_database(&self) -> bool {
        self.database_path().exists()
    }
    /// Creates an empty file for a new database and removes the leftovers of an earlier attempt.
    pub(super) fn create_fresh_file(&self) -> Result<PathBuf, EmbeddedOpenError> {
        let fresh = self.path.join(FRESH_DATABASE);
        match create_empty_file(&fresh) {
            Ok(()) => Ok(fresh),
            Err(error) => Err(EmbeddedOpenError::Directory { path: fresh, error }),
        }
    }
    /// Renames a new database, complete and closed, to the database's name.
    pub(super) fn install(&self, fresh: &Path) -> Result<(), EmbeddedOpenError> {
        let adopted = fs::rename(fresh, self.database_path()).and_then(|()| sync(&self.path));
        adopted.map_err(|error| EmbeddedOpenError::Directory { path: self.path.clone(), error })
    }
}

impl DataDirectory {
    /// Replaces the database with a new one and keeps the old one under another name, for later recovery. A crash at
    /// any moment leaves either database under the database's name. Returns the other name.
    pub(super) fn replace(&self, fresh: &Path, at: u64) -> Result<PathBuf, EmbeddedOpenError> {
        // The newest name even if the clock went back, so that no kept file is overwritten and this one is the last to
        // be removed.
        let newest = self.damaged_files()?.last().map(|(newest, _)| *newest);
        let at = newest.map_or(at, |newest| at.max(newest.saturating_add(1)));
        let old = self.path.join(format!("{DAMAGED_PREFIX}{at}"));
        let kept = link_or_copy(&self.database_path(), &old);
        kept.map_err(|error| EmbeddedOpenError::Directory { path: old.clone(), error })?;
        self.install(fresh)?;
        self.prune_damaged()?;
        Ok(old)
    }

    /// Removes the oldest replaced files above the maximum.
    fn prune_damaged(&self) -> Result<(), EmbeddedOpenError> {
        let old = self.damaged_files()?;
        let too_many = old.len().saturating_sub(DAMAGED_MAX);
        for (_, path) in old.into_iter().take(too_many) {
            tracing::warn!(removed = %path.display(), kept = DAMAGED_MAX, "the oldest kept damaged file is removed");
            fs::remove_file(&path).map_err(|error| EmbeddedOpenError::Directory { path, error })?;
        }
        Ok(())
    }

    /// Returns the replaced files with the times in their names, the oldest first.
    fn damaged_files(&self) -> Result<Vec<(u64, PathBuf)>, EmbeddedOpenError> {
        let fail = |error| EmbeddedOpenError::Directory { path: self.path.clone(), error };
        let mut old = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let at = path.file_name().and_then(|name| name.to_str()?.strip_prefix(DAMAGED_PREFIX)?.parse::<u64>().ok());
            old.extend(at.map(|at| (at, path)));
        }
        old.sort();
        Ok(old)
    }
}

/// Gives a file a second name, or copies the file where the file system has no links. Overwrites nothing.
fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => fs::copy(from, to).map(|_| ()),
        linked => linked,
    }
}

/// Returns whether the error says that the path exists but is not writable.
fn is_not_writable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn create_directory(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    // The store contains what users wrote.
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync(parent.unwrap_or(Path::new(".")))
}

fn create_empty_file(path: &Path) -> io::Result<()> {
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
pub(super) struct DiskSpace {
    /// None for a storage backend of the caller, which has no disk to check.
    path: Option<PathBuf>,
    reserve: u64,
    checked_at: Option<Mono>,
    is_low: bool,
    /// Free bytes above the reserve, if known.
    spare: Option<u64>,
    /// Called when `full` changes.
    on_change: Arc<dyn Fn(bool) + Send + Sync>,
}

impl DiskSpace {
    pub(super) fn of(
        directory: Option<&DataDirectory>,
        reserve: u64,
        on_change: Arc<dyn Fn(bool) + Send + Sync>,
    ) -> Self {
        let path = directory.map(|directory| directory.path.clone());
        Self { path, reserve, checked_at: None, is_low: false, spare: None, on_change }
    }

    /// Returns whether inputs have to be refused, so that the engine itself never finds the disk full.
    pub(super) fn is_low(&mut self, now: Mono) -> bool {
        if let Some(path) = &self.path
            && self.checked_at.is_none_or(|looked| now - looked >= SPACE_CHECK_INTERVAL)
        {
            let free = free(path);
            let full = free.is_some_and(|bytes| bytes < self.reserve);
            self.spare = free.map(|bytes| bytes.saturating_sub(self.reserve));
            if std::mem::replace(&mut self.is_low, full) != full {
                (self.on_change)(full);
            }
            self.checked_at = Some(now);
        }
        self.is_low
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
        let first = DataDirectory::open_or_create(&dir).expect("taken");
        assert!(matches!(DataDirectory::open_or_create(&dir), Err(EmbeddedOpenError::InUse { .. })));
        drop(first);
        assert!(DataDirectory::open_or_create(&dir).is_ok());
        fs::remove_dir_all(&dir).expect("removed");
    }

    /// A lock file that cannot be opened for writing may only be read if no process can write it.
    #[test]
    fn existing_directory_with_an_unusable_lock_file_is_refused() {
        let path = std::env::temp_dir().join(format!("turnway-lock-{}", std::process::id()));
        fs::create_dir_all(path.join(LOCK)).expect("a directory in place of the lock file");
        fs::write(path.join(DATABASE), "a database").expect("written");
        let opened = DataDirectory::open_existing(&path);
        assert!(matches!(opened.err(), Some(EmbeddedOpenError::Directory { .. })));
        fs::remove_dir_all(&path).expect("removed");
    }

    /// Replaces the file several times while the clock goes back or stands still.
    #[test]
    fn newest_damaged_files_are_kept_whatever_the_clock_says() {
        let path = std::env::temp_dir().join(format!("turnway-damaged-{}", std::process::id()));
        let directory = DataDirectory::open_or_create(&path).expect("taken");
        fs::write(directory.database_path(), "file 0").expect("written");
        let times = [500, 600, 700, 10, 10, 900];
        let mut kept = Vec::new();
        for (n, at) in times.into_iter().enumerate() {
            let fresh = directory.create_fresh_file().expect("created");
            fs::write(&fresh, format!("file {}", n + 1)).expect("written");
            kept.push(directory.replace(&fresh, at).expect("replaced"));
            let known = kept.iter().enumerate().skip(kept.len().saturating_sub(DAMAGED_MAX));
            for (n, old) in known {
                assert_eq!(fs::read_to_string(old).expect("kept"), format!("file {n}"), "at {at}: {kept:?}");
            }
            assert_eq!(directory.damaged_files().expect("read").len(), kept.len().min(DAMAGED_MAX));
        }
        assert_eq!(fs::read_to_string(directory.database_path()).expect("read"), "file 6");
        fs::remove_dir_all(&path).expect("removed");
    }

    #[test]
    fn kept_damaged_file_is_never_overwritten() {
        let path = std::env::temp_dir().join(format!("turnway-overwrite-{}", std::process::id()));
        let directory = DataDirectory::open_or_create(&path).expect("taken");
        let last = path.join(format!("{DAMAGED_PREFIX}{}", u64::MAX));
        fs::write(&last, "kept").expect("written");
        fs::write(directory.database_path(), "damaged").expect("written");
        let fresh = directory.create_fresh_file().expect("created");
        let refused = directory.replace(&fresh, 5);
        assert!(matches!(refused, Err(EmbeddedOpenError::Directory { .. })), "no later name: {refused:?}");
        assert_eq!(fs::read_to_string(&last).expect("read"), "kept");
        assert_eq!(fs::read_to_string(directory.database_path()).expect("read"), "damaged");
        fs::remove_dir_all(&path).expect("removed");
    }
}
