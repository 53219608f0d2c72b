//! The data file as redb's storage backend. Writes nothing to a file until its opening has succeeded, and fails a
//! commit once the file is no longer where the next start looks for it. Used by `opening` and the engine.
use crate::store::embedded::overlay::OverlayFile;
use crate::store::embedded::pages::FileHeader;
use redb::StorageBackend;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Length of the file header in bytes; every commit changes the header.
const HEAD_BYTES: usize = 320;

/// An open data file, as redb's storage backend.
#[derive(Debug)]
pub(super) struct DataFile(Arc<DataFileMonitor>);

/// A view of the same file that checks whether the file is still in place.
#[derive(Debug)]
pub(super) struct DataFileMonitor {
    path: PathBuf,
    file: File,
    /// Device and inode: another file may have the same name.
    identity: (u64, u64),
    /// Length of the file in bytes, as the engine last set it.
    length: AtomicU64,
    /// The first bytes of the file as the engine last wrote them.
    head: Mutex<Vec<u8>>,
    is_staging: AtomicBool,
    /// The engine's writes while nothing may be written to the file.
    staged: Mutex<Option<OverlayFile>>,
}

// === impl DataFile ===

impl DataFile {
    /// Opens an existing file. Writes stay in memory until [`DataFileMonitor::flush_staged`].
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let about = file.metadata()?;
        let mut head = vec![0; HEAD_BYTES.min(usize::try_from(about.len()).unwrap_or(HEAD_BYTES))];
        file.read_exact_at(&mut head, 0)?;
        Ok(Self(Arc::new(DataFileMonitor {
            path: path.to_owned(),
            identity: (about.dev(), about.ino()),
            length: AtomicU64::new(about.len()),
            head: Mutex::new(head),
            is_staging: AtomicBool::new(true),
            staged: Mutex::new(Some(OverlayFile::of(path)?)),
            file,
        })))
    }

    /// Returns the view that monitors the file.
    pub(super) fn monitor(&self) -> Arc<DataFileMonitor> {
        Arc::clone(&self.0)
    }
}

impl StorageBackend for DataFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.length.load(Ordering::Acquire))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.with_staged(|held| held.read(offset, out)) {
            Some(read) => read,
            None => self.0.file.read_exact_at(out, offset),
        }
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        match self.0.with_staged(|held| held.set_len(length)) {
            Some(set) => set?,
            None => self.0.file.set_len(length)?,
        }
        self.0.length.store(length, Ordering::Release);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.0.is_staging.load(Ordering::Acquire) {
            return Ok(());
        }
        self.0.file.sync_data()?;
        // Data that is durable in a file that the next start cannot find is lost.
        self.0.loss().map_or(Ok(()), |what| Err(io::Error::other(what)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.0.with_staged(|held| held.write(offset, data)) {
            Some(written) => written?,
            None => {
                // A commit ends with the header. Foreign bytes in it must not be hidden by the engine's own write.
                if offset < HEAD_BYTES as u64
                    && let Some(what) = self.0.header_mismatch()
                {
                    return Err(io::Error::other(what));
                }
                self.0.file.write_all_at(data, offset)?;
            }
        }
        self.0.record_header(offset, data);
        Ok(())
    }
}

// === impl DataFileMonitor ===

impl DataFileMonitor {
    fn head(&self) -> MutexGuard<'_, Vec<u8>> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_staged<T>(&self, act: impl FnOnce(&OverlayFile) -> T) -> Option<T> {
        if !self.is_staging.load(Ordering::Acquire) {
            return None;
        }
        self.staged.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(act)
    }

    /// Records the header bytes as they are written.
    fn record_header(&self, offset: u64, data: &[u8]) {
        let Ok(offset) = usize::try_from(offset) else { return };
        if offset < HEAD_BYTES {
            let mut head = self.head();
            let end = (offset + data.len()).min(HEAD_BYTES);
            if head.len() < end {
                head.resize(end, 0);
            }
            head[offset..end].copy_from_slice(&data[..end - offset]);
        }
    }

    /// Returns the file header as the engine last wrote it.
    pub(super) fn header(&self) -> Option<FileHeader> {
        FileHeader::read(&self.head())
    }

    /// Writes the staged data to the file; later writes go directly to the file.
    pub(super) fn flush_staged(&self) -> io::Result<()> {
        let mut held = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shadow) = held.take() {
            shadow.write_through(&self.file)?;
        }
        self.is_staging.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns the reason why the next start would not find this file's data, if there is one.
    pub(super) fn loss(&self) -> Option<&'static str> {
        let Ok(there) = fs::metadata(&self.path) else {
            return Some("the data file was removed, or its directory was renamed");
        };
        if (there.dev(), there.ino()) != self.identity {
            return Some("the data file was replaced by another file");
        }
        if there.len() < self.length.load(Ordering::Acquire) {
            return Some("the data file was truncated");
        }
        self.header_mismatch()
    }

    /// Returns the reason why the first bytes are not those that the engine wrote, if they differ.
    fn header_mismatch(&self) -> Option<&'static str> {
        let head = self.head();
        let mut found = vec![0; head.len()];
        match self.file.read_exact_at(&mut found, 0) {
            Ok(()) if found == *head => None,
            Ok(()) => Some("the data file was overwritten by another program"),
            Err(_) => Some("the data file cannot be read"),
        }
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
