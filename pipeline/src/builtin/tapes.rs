//! A tape store in files: one for each session, with a line of JSON for each entry (TP-N12).
use crate::failure::HookError;
use crate::limits;
use crate::plugin::{HookFuture, TapeStore};
use futures_util::FutureExt;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

/// A folder of tapes.
#[derive(Clone, Debug)]
pub(super) struct FileTapeStore(PathBuf);

// === impl FileTapeStore ===

impl FileTapeStore {
    /// Creates a tape store in this folder, which is created on the first write.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    async fn write(&self, session_id: &str, entries: &[Value]) -> io::Result<()> {
        let path = self.0.join(file_name(session_id)?);
        let folder = self.0.clone();
        let mut lines = String::new();
        for entry in entries {
            lines.push_str(&format!("{entry}\n"));
        }
        // One task: it runs to its end even if the turn is dropped, so that no turn is stored in part.
        let written = spawn_blocking(move || {
            fs::create_dir_all(folder)?;
            append_exclusively(&path, |file| file.write_all(lines.as_bytes()))
        });
        written.await.map_err(io::Error::other)?
    }
}

impl TapeStore for FileTapeStore {
    fn append<'a>(&'a self, session_id: &'a str, entries: &'a [Value]) -> HookFuture<'a, ()> {
        async move {
            let written = self.write(session_id, entries).await;
            written.map_err(|why| HookError::new("tape", why.to_string()))
        }
        .boxed()
    }
}

/// Appends to a file under the file's lock, so that large appends of several turns do not interleave, even if several
/// stores or processes use one folder. Removes what a failed append has written.
fn append_exclusively(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut file = File::options().create(true).read(true).append(true).open(path)?;
    // Released when the file is closed. Where a file system has no locks, one process must do without others.
    file.lock().or_else(|error| if error.kind() == io::ErrorKind::Unsupported { Ok(()) } else { Err(error) })?;
    let before = file.metadata()?.len();
    let written = write(&mut file);
    if written.is_err() {
        // The first error is the one to report.
        let _ = file.set_len(before);
    }
    written
}

/// Returns a file name that is valid on any system and unique to the session: letters, digits, `-` and `_` stay
/// unchanged.
fn file_name(session_id: &str) -> io::Result<PathBuf> {
    let mut name = String::new();
    for byte in session_id.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    if name.len() > limits::TAPE_NAME_BYTES_MAX {
        return Err(io::Error::other("the session id is too long for a file name"));
    }
    Ok(Path::new(&name).with_extension("jsonl"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use serde_json::json;
    use std::fs::TryLockError;
    use tokio::runtime::Builder;

    /// More than tokio writes to a file in one step, 2 MiB.
    const LARGE_BYTES: usize = 5 * 1024 * 1024 / 2;

    /// With one thread for blocking work, the steps of several appends alternate, unless an append is one step.
    ///
    /// Covers: TP-G2, TP-N12.
    #[test]
    fn large_appends_of_several_turns_do_not_interleave() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = FileTapeStore::new(dir.path().join("tapes"));
        let turns: Vec<[Value; 2]> =
            ["a", "b", "c"].map(|letter| [0, 1].map(|n| json!([n, letter.repeat(LARGE_BYTES)]))).into();
        let runtime = Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime");
        let appended = runtime.block_on(join_all(turns.iter().map(|entries| store.append("s1", entries))));
        assert!(appended.iter().all(Result::is_ok), "{appended:?}");
        let tape = fs::read_to_string(dir.path().join("tapes/s1.jsonl")).expect("a tape");
        let mut lines: Vec<Value> =
            tape.lines().map(|line| serde_json::from_str(line).expect("a whole entry")).collect();
        assert_eq!(lines.len(), 6);
        let mut stored: Vec<[Value; 2]> = lines.chunks_exact_mut(2).map(|two| [two[0].take(), two[1].take()]).collect();
        stored.sort_by_key(|[first, _]| first[1].as_str().map(|text| text[..1].to_owned()));
        assert!(stored == turns, "the entries of one turn stand together, in order");
    }

    /// Covers: TP-N12.
    #[test]
    fn append_holds_the_lock_of_the_tape() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("s1.jsonl");
        let locked = append_exclusively(&path, |_| {
            let other = File::open(&path)?;
            assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
            Ok(())
        });
        locked.expect("appended");
        File::open(&path).expect("a tape").try_lock().expect("the lock is released");
    }

    /// Covers: TP-N12.
    #[test]
    fn failed_append_leaves_the_tape_unchanged() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("s1.jsonl");
        let append = |text: &[u8], ended: io::Result<()>| {
            append_exclusively(&path, |file| {
                file.write_all(text)?;
                ended
            })
        };
        append(b"one\n", Ok(())).expect("appended");
        let failure = append(b"tw", Err(io::ErrorKind::StorageFull.into())).expect_err("the disk is full");
        assert_eq!(failure.kind(), io::ErrorKind::StorageFull);
        append(b"three\n", Ok(())).expect("appended");
        assert_eq!(fs::read_to_string(&path).expect("a tape"), "one\nthree\n");
    }
}
