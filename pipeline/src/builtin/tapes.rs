//! A tape store in files: one for each session, with a line of JSON for each entry (TP-N12).
use crate::failure::HookError;
use crate::limits;
use crate::plugin::{HookFuture, TapeStore};
use futures_util::FutureExt;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

/// A folder of tapes.
#[derive(Clone, Debug)]
pub(super) struct FileTapeStore(PathBuf);

// === impl FileTapeStore ===

impl FileTapeStore {
    /// Creates a tape store in this folder, which is created on the first write.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    async fn write(&self, session_id: &str, entries: &[Value]) -> std::io::Result<()> {
        tokio::fs::create_dir_all(&self.0).await?;
        let path = self.0.join(file_name(session_id)?);
        let mut lines = String::new();
        for entry in entries {
            lines.push_str(&format!("{entry}\n"));
        }
        let mut file = File::options().create(true).append(true).open(path).await?;
        // All lines of a turn are written at once, so that those of another turn do not come between them.
        file.write_all(lines.as_bytes()).await?;
        file.flush().await
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

/// Returns a file name that is valid on any system and unique to the session: letters, digits, `-` and `_` stay
/// unchanged.
fn file_name(session_id: &str) -> std::io::Result<PathBuf> {
    let mut name = String::new();
    for byte in session_id.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    if name.len() > limits::TAPE_NAME_BYTES_MAX {
        return Err(std::io::Error::other("the session's name is too long for a file"));
    }
    Ok(Path::new(&name).with_extension("jsonl"))
}
