//! The journal of a tool runner: a line for each action begun and for each result, synced before it takes
//! effect. The file is appended to, and rewritten when most lines concern forgotten actions. A line torn by a
//! crash was never acted upon and is skipped.
use crate::cli::CliError;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use turnway_tool_executor::journal::JournalRecord;

const FILE_NAME: &str = "journal";
/// The journal is rewritten when it has this many lines more than twice the live ones: rare, and the file stays
/// small.
const SPARE_LINES: usize = 1024;

/// An open journal, locked against other processes.
pub(super) struct Journal {
    dir: PathBuf,
    file: Arc<File>,
    lines: usize,
    /// Serialised lines that have not been written yet.
    unsynced: Vec<u8>,
    /// Lock on the directory, held until the journal is dropped.
    _lock: File,
}

// === impl Journal ===

impl Journal {
    /// Opens the journal of a directory, creates the directory if necessary, and reads all records.
    pub(super) fn open(dir: &Path) -> Result<(Self, Vec<JournalRecord>), CliError> {
        let no = |error: io::Error| CliError::Unavailable(format!("{}: {error}", dir.display()));
        // Programs that run as another user must not read the directory.
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(no)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock")).map_err(no)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                CliError::Unavailable(format!("{}: another tool runner uses this directory", dir.display()))
            }
            TryLockError::Error(error) => no(error),
        })?;
        let bytes = match std::fs::read(dir.join(FILE_NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(no)?,
        };
        let records = parse_records(&bytes);
        let file = write_atomically(dir, records.iter()).map_err(no)?;
        let dir = dir.to_owned();
        let lines = records.len();
        Ok((Self { dir, file: Arc::new(file), lines, unsynced: Vec::new(), _lock: lock }, records))
    }

    /// Appends a record; the record is durable only after [`Self::sync`].
    pub(super) fn append(&mut self, record: &JournalRecord) {
        push_line(&mut self.unsynced, record);
        self.lines += 1;
    }

    /// Returns whether any record has not been synced.
    pub(super) fn is_dirty(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// Writes the pending records to the disk and syncs the file.
    pub(super) async fn sync(&mut self) -> io::Result<()> {
        let file = Arc::clone(&self.file);
        let waits = std::mem::take(&mut self.unsynced);
        let written = tokio::task::spawn_blocking(move || {
            (&*file).write_all(&waits)?;
            file.sync_data()
        });
        written.await.map_err(io::Error::other)?
    }

    /// Returns whether a journal with `count` live records should be rewritten.
    pub(super) fn needs_rewrite(&self, count: usize) -> bool {
        self.lines > count * 2 + SPARE_LINES
    }

    /// Replaces the journal's content by these records.
    pub(super) async fn rewrite(&mut self, records: Vec<JournalRecord>) -> io::Result<()> {
        let dir = self.dir.clone();
        let lines = records.len();
        let written = tokio::task::spawn_blocking(move || write_atomically(&dir, records.iter()));
        self.file = Arc::new(written.await.map_err(io::Error::other)??);
        (self.lines, self.unsynced) = (lines, Vec::new());
        Ok(())
    }
}

/// Parses complete lines. A line that is not a record is skipped: its action is too old to be begun again.
fn parse_records(bytes: &[u8]) -> Vec<JournalRecord> {
    let mut records = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n")) {
        match serde_json::from_slice(line) {
            Ok(record) => records.push(record),
            Err(error) => {
                tracing::warn!(bytes = line.len(), column = error.column(), "skipped an invalid line of the journal")
            }
        }
    }
    records
}

/// Writes a new journal under another name and renames it, so that a crash leaves the old file or the new one.
fn write_atomically<'a>(dir: &Path, records: impl Iterator<Item = &'a JournalRecord>) -> io::Result<File> {
    let path = dir.join("journal.new");
    let whole = dir.join(FILE_NAME);
    let mut bytes = Vec::new();
    for record in records {
        push_line(&mut bytes, record);
    }
    std::fs::write(&path, &bytes)?;
    File::open(&path)?.sync_all()?;
    std::fs::rename(&path, &whole)?;
    File::open(dir)?.sync_all()?;
    OpenOptions::new().append(true).open(&whole)
}

fn push_line(bytes: &mut Vec<u8>, record: &JournalRecord) {
    // Records have string keys and finite numbers, so serialising cannot fail.
    bytes.extend(serde_json::to_vec(record).unwrap_or_default());
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{EventId, QualifiedSession};
    use turnway_core::time::Millis;
    use turnway_tool_executor::journal::ToolOutcome;

    fn begun(n: u64) -> JournalRecord {
        let session = QualifiedSession::parse("s1").expect("a name");
        JournalRecord::Begun { id: EventId::new(Millis(n), 7), session, program: "x".to_owned() }
    }

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("turnway-journal-{name}-{}", std::process::id()));
        // Removes the directory of an earlier process with the same id.
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[tokio::test]
    async fn synced_records_persist_and_torn_ones_are_dropped() {
        let dir = directory("synced");
        let (mut journal, before) = Journal::open(&dir).expect("it opens");
        assert_eq!(before, []);
        assert!(Journal::open(&dir).is_err_and(|error| format!("{error:?}").contains("another tool runner")));
        journal.append(&begun(1));
        journal.append(&begun(2));
        assert!(journal.is_dirty());
        journal.sync().await.expect("synced");
        assert!(!journal.is_dirty());
        drop(journal);
        let path = dir.join(FILE_NAME);
        let mut bytes = std::fs::read(&path).expect("there");
        bytes.extend(b"no record\n{\"t\":\"begun\",\"id\":\"019");
        std::fs::write(&path, bytes).expect("written");
        let (mut journal, records) = Journal::open(&dir).expect("it opens");
        assert_eq!(records, [begun(1), begun(2)]);
        journal.append(&begun(3));
        journal.sync().await.expect("synced");
        drop(journal);
        assert_eq!(Journal::open(&dir).expect("it opens").1, [begun(1), begun(2), begun(3)]);
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[tokio::test]
    async fn long_journal_is_compacted() {
        let dir = directory("anew");
        let (mut journal, _) = Journal::open(&dir).expect("it opens");
        for n in 0..=SPARE_LINES as u64 {
            assert!(!journal.needs_rewrite(0));
            journal.append(&begun(n));
        }
        journal.sync().await.expect("synced");
        assert!(journal.needs_rewrite(0) && !journal.needs_rewrite(1));
        let session = QualifiedSession::parse("s1").expect("a name");
        let id = EventId::default();
        let outcome = ToolOutcome::failure("busy", "m");
        let ended = JournalRecord::Ended { id, session, program: None, outcome };
        journal.rewrite(vec![ended.clone()]).await.expect("written");
        journal.append(&begun(9));
        journal.sync().await.expect("synced");
        drop(journal);
        assert_eq!(Journal::open(&dir).expect("it opens").1, [ended, begun(9)]);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
