//! The data directory: whose it is, what it lies on, and how much room it has.
use crate::store::embedded::fault::OpenError;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::time::Mono;

/// The database within its directory.
const DATABASE: &str = "turnway.redb";
/// A database in the making.
const FRESH: &str = "turnway.redb.new";
/// A database that was replaced because it was damaged; the time follows, in milliseconds.
const DAMAGED: &str = "turnway.redb.damaged-";
/// Of these as many are kept: the first damage and its repair are what anybody looks into.
const DAMAGED_MAX: usize = 3;
/// Held as long as the directory is in use.
const LOCK: &str = "turnway.lock";
/// Between two looks at the room left.
const LOOK: Duration = Duration::from_secs(1);

/// A data directory that this process, and no other, has open.
pub(super) struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Makes the directory if it is not there, and takes it.
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

    /// Takes a directory that must be there, with a database in it. Nothing but the lock is written, and
    /// where not even that can be, nobody else can write either.
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

    /// Whether nothing of anybody's lies in it.
    pub(super) fn is_empty(&self) -> Result<bool, OpenError> {
        let fail = |error| OpenError::Directory { path: self.path.clone(), error };
        for entry in fs::read_dir(&self.path).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            // What an earlier try left there, and what file systems keep in their roots.
            if name != LOCK && name != FRESH && name != "lost+found" {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where the database lies.
    pub(super) fn file(&self) -> PathBuf {
        self.path.join(DATABASE)
    }
    /// Whether it has a database.
    pub(super) fn exists(&self) -> bool {
        self.file().exists()
    }
    /// An empty file to make a new one in; what an earlier try left there is gone.
    pub(super) fn fresh(&self) -> Result<PathBuf, OpenError> {
        let fresh = self.path.join(FRESH);
        match empty(&fresh) {
            Ok(()) => Ok(fresh),
            Err(error) => Err(OpenError::Directory { path: fresh, error }),
        }
    }
    /// Makes a new database, complete and closed, the database.
    pub(super) fn adopt(&self, fresh: &Path) -> Result<(), OpenError> {
        let adopted = fs::rename(fresh, self.file()).and_then(|()| sync(&self.path));
        adopted.map_err(|error| OpenError::Directory { path: self.path.clone(), error })
    }
}

impl Directory {
    /// Makes a new database the database, and keeps the old one under another name: for whoever can read more of it.
    /// A crash at any moment leaves one or the other under the database's name. Returns the other name.
    pub(super) fn replace(&self, fresh: &Path, at: u64) -> Result<PathBuf, OpenError> {
        let old = self.path.join(format!("{DAMAGED}{at}"));
        let kept = fs::hard_link(self.file(), &old).or_else(|_| fs::copy(self.file(), &old).map(|_| ()));
        kept.map_err(|error| OpenError::Directory { path: old.clone(), error })?;
        self.adopt(fresh)?;
        self.forget_old()?;
        Ok(old)
    }

    /// Removes the oldest of the files that were replaced, where there are too many: each may be as large as the store.
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

/// Whether a place is there and may not be written to.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn make(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    // What people say lies here.
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
    // Whoever made the directory may have left it open to others.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
    file.open(path).map(drop)
}

/// A name in a directory is durable only with the directory.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// Which network file system a path lies on, if on one.
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

/// How much room is left, looked at now and then.
pub(super) struct Room {
    /// None: a disk of somebody's own making, which has room.
    path: Option<PathBuf>,
    reserve: u64,
    looked: Option<Mono>,
    full: bool,
    /// Space above the reserve, where that can be known.
    spare: Option<u64>,
    /// Told when `full` changes.
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

    /// Whether inputs are to be refused, so that the engine itself never finds the disk full.
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

    /// Returns the space above the reserve when it was last looked at.
    pub(super) fn spare(&self) -> Option<u64> {
        self.spare
    }
}

/// Bytes this process may still write, where that can be known.
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
    fn a_directory_is_taken_once() {
        let dir = std::env::temp_dir().join(format!("turnway-directory-{}", std::process::id()));
        let first = Directory::prepare(&dir).expect("taken");
        assert!(matches!(Directory::prepare(&dir), Err(OpenError::InUse { .. })));
        drop(first);
        assert!(Directory::prepare(&dir).is_ok());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
