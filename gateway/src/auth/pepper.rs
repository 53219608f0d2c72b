//! Reads the pepper, the secret that API keys are hashed with. It is not stored with the keys, so that access to the
//! store alone does not allow guessing keys. All nodes of a fleet share one pepper.
use super::key::ApiKeyHash;
use aws_lc_rs::hmac;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A shorter pepper could be guessed.
const BYTES_MIN: usize = 32;
/// Prefix of the HMAC input for a record, distinct from the prefix for a secret.
const SEAL: &[u8] = b"api-key-record:1:";
/// Above this size the file is not a pepper; it was probably named by mistake.
const BYTES_MAX: u64 = 4096;

/// The secret that API keys are hashed with.
#[derive(Clone)]
pub struct Pepper {
    key: Arc<hmac::Key>,
    id: PepperId,
}

/// An id of a pepper, which distinguishes peppers and reveals nothing about them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PepperId(String);

/// The reason why a pepper cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadPepper {
    /// The file cannot be read.
    #[error("{path}: {error}", path = path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The text is too short, or far too long.
    #[error("{path}: expected {BYTES_MIN} bytes or more of text, such as `openssl rand -hex 32` makes", path = path.display())]
    InvalidLength { path: PathBuf },
}

// === impl PepperId ===

impl PepperId {
    /// Returns the id as text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl Pepper ===

impl Pepper {
    /// Reads a pepper from a file. Surrounding whitespace is ignored.
    pub fn read(path: &Path) -> Result<Self, BadPepper> {
        let mut text = String::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        let read = read.map_err(|error| BadPepper::Unreadable { path: path.to_owned(), error })?;
        let fits = Self::from_text(&text).filter(|_| (read as u64) < BYTES_MAX);
        fits.ok_or_else(|| BadPepper::InvalidLength { path: path.to_owned() })
    }

    /// Creates a pepper from a text, if the text is long enough.
    pub fn from_text(text: &str) -> Option<Self> {
        let text = text.trim();
        (text.len() >= BYTES_MIN).then(|| {
            let key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()));
            let tag = hmac::sign(&key, b"which pepper");
            let id = tag.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            Self { key, id: PepperId(id) }
        })
    }

    /// Returns the id of the pepper.
    pub fn id(&self) -> &PepperId {
        &self.id
    }

    /// Derives a key for another purpose. It reveals nothing about the pepper or about keys for other purposes.
    pub fn key_for(&self, purpose: &str) -> hmac::Key {
        let tag = hmac::sign(&self.key, format!("key for: {purpose}").as_bytes());
        hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref())
    }

    pub(super) fn hash(&self, id: &str, secret: &str) -> ApiKeyHash {
        let tag = hmac::sign(&self.key, hmac_input(id, secret).as_bytes());
        let mut hash = [0; 32];
        hash.copy_from_slice(tag.as_ref());
        ApiKeyHash(hash)
    }

    /// Returns the HMAC of a record's fields.
    pub(super) fn seal(&self, fields: &[u8]) -> ApiKeyHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(hmac::sign(&self.key, &[SEAL, fields].concat()).as_ref());
        ApiKeyHash(hash)
    }

    /// Returns true if the fields are those that were sealed. Takes constant time.
    pub(super) fn verify_seal(&self, fields: &[u8], seal: &ApiKeyHash) -> bool {
        hmac::verify(&self.key, &[SEAL, fields].concat(), &seal.0).is_ok()
    }

    /// Returns true if the hash is that of this id and secret. Takes constant time.
    pub(super) fn verify(&self, id: &str, secret: &str, hash: &ApiKeyHash) -> bool {
        hmac::verify(&self.key, hmac_input(id, secret).as_bytes(), &hash.0).is_ok()
    }
}

/// Returns the HMAC input of a secret. Unambiguous, because both parts have a fixed length.
fn hmac_input(id: &str, secret: &str) -> String {
    format!("api-key:{id}:{secret}")
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<pepper>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pepper_is_rejected() {
        let path = std::env::temp_dir().join(format!("turnway-pepper-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            Pepper::read(&path).map_err(|bad| bad.to_string())
        };
        let good = "0123456789abcdef0123456789abcdef";
        let plain = read(good).expect("good");
        let spaced = read(&format!("\n{good} \n")).expect("good");
        assert!(spaced.verify("id", "secret", &plain.hash("id", "secret")));
        for bad in ["", &good[1..], &format!("{}{}", &good[1..], " ".repeat(40)), &"x".repeat(5000)] {
            assert!(read(bad).expect_err("bad").contains("openssl rand"), "{bad}");
        }
        std::fs::remove_file(&path).expect("ours");
        assert!(Pepper::read(&path).is_err());
    }
}
