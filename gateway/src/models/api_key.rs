//! The key of a provider: read from the environment at the start, or from a file that is read again when it has changed.
//! Never shown in logs or messages.
use crate::config::model::ApiKeySource;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::time::Mono;

/// A provider's key, and its place.
#[derive(Debug)]
pub struct ApiKeySlot {
    /// Present if the key is in a file.
    path: Option<PathBuf>,
    state: Mutex<KeyState>,
}

#[derive(Debug)]
struct KeyState {
    key: Option<Arc<Private<String>>>,
    version: Option<FileVersion>,
    checked: Mono,
}

/// The properties of a file that differ after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    modified: SystemTime,
    bytes: u64,
    /// Replaced files have another number.
    inode: u64,
}

/// A reason why a key cannot be used. Never has the key.
#[derive(Debug, thiserror::Error)]
pub enum BadApiKey {
    #[error("environment variable {0:?} is not set")]
    NoVariable(String),
    #[error("cannot be read: {0}")]
    File(#[from] std::io::Error),
    #[error("expected 1 to {} visible ASCII characters", limits::MODEL_API_KEY_BYTES_MAX)]
    Form,
}

// === impl ApiKeySlot ===

impl ApiKeySlot {
    /// Reads the key for the first time.
    pub fn open(source: &ApiKeySource, env: impl Fn(&str) -> Option<String>) -> Result<Self, BadApiKey> {
        let (path, key, version) = match source {
            ApiKeySource::None => (None, None, None),
            ApiKeySource::Env(name) => {
                let text = env(name).ok_or_else(|| BadApiKey::NoVariable(name.clone()))?;
                (None, Some(parse(&text)?), None)
            }
            ApiKeySource::File(path) => {
                let version = file_version(path)?;
                (Some(path.clone()), Some(read(path)?), Some(version))
            }
        };
        Ok(Self { path, state: Mutex::new(KeyState { key, version, checked: Mono(Duration::ZERO) }) })
    }

    /// Returns the key; none if the upstream needs none. Looks for a change of its file at most once in
    /// [`limits::MODEL_API_KEY_CHECK_INTERVAL`]: one system call, without a pause in which the task could wait. A file that
    /// cannot be read, or holds no key, leaves the last key in use.
    pub fn current(&self, now: Mono) -> Option<Arc<Private<String>>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &self.path else { return state.key.clone() };
        if now - state.checked < limits::MODEL_API_KEY_CHECK_INTERVAL {
            return state.key.clone();
        }
        state.checked = now;
        match file_version(path) {
            Ok(version) if Some(version) == state.version => {}
            Ok(version) => match read(path) {
                Ok(key) => {
                    tracing::info!(path = %path.display(), "a provider's key was read again");
                    state.key = Some(key);
                    state.version = Some(version);
                }
                Err(error) => tracing::error!(path = %path.display(), %error, "a provider's key is not replaced"),
            },
            Err(error) => tracing::error!(path = %path.display(), %error, "the file of a provider's key is missing"),
        }
        state.key.clone()
    }
}

fn file_version(path: &Path) -> Result<FileVersion, std::io::Error> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    Ok(FileVersion { modified: metadata.modified()?, bytes: metadata.len(), inode: metadata.ino() })
}

fn read(path: &Path) -> Result<Arc<Private<String>>, BadApiKey> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(limits::MODEL_API_KEY_BYTES_MAX + 2).read_to_string(&mut text)?;
    parse(&text)
}

fn parse(text: &str) -> Result<Arc<Private<String>>, BadApiKey> {
    let text = text.trim();
    let fits = !text.is_empty() && text.len() as u64 <= limits::MODEL_API_KEY_BYTES_MAX;
    if fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(Arc::new(Private(text.to_owned())))
    } else {
        Err(BadApiKey::Form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    /// Covers: PR-1.
    #[test]
    fn key_file_is_read_again_when_it_has_changed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        std::fs::write(&path, "sk-first\n").expect("written");
        let slot = ApiKeySlot::open(&ApiKeySource::File(path.clone()), |_| None).expect("a key");
        let shown = |now| slot.current(now).map(|key| key.reveal().to_owned());
        assert_eq!(shown(at(5)).as_deref(), Some("sk-first"));
        std::fs::write(&path, "sk-second\n").expect("written");
        assert_eq!(shown(at(5)).as_deref(), Some("sk-first"), "not before the next look");
        assert_eq!(shown(at(6)).as_deref(), Some("sk-second"));
        std::fs::write(&path, "two words").expect("written");
        assert_eq!(shown(at(8)).as_deref(), Some("sk-second"), "no key");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(shown(at(10)).as_deref(), Some("sk-second"), "no file");
        assert!(!format!("{slot:?}").contains("sk-"), "{slot:?}");
    }

    #[test]
    fn key_that_cannot_be_a_header_is_refused() {
        let open = |value: &str| {
            let value = value.to_owned();
            ApiKeySlot::open(&ApiKeySource::Env("KEY".to_owned()), move |_| Some(value.clone())).map(drop)
        };
        assert!(open(" sk-1 \n").is_ok());
        for bad in ["", "  ", "two words", "line\nline", "ключ"] {
            assert!(matches!(open(bad), Err(BadApiKey::Form)), "{bad:?}");
        }
        let missing = ApiKeySlot::open(&ApiKeySource::Env("KEY".to_owned()), |_| None);
        assert!(matches!(missing, Err(BadApiKey::NoVariable(_))));
    }
}
