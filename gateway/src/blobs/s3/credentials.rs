//! The credentials for an S3-compatible store: from the environment, or from a file that is read at each request. They
//! appear in no log and no error.
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use turnway_core::limits;

const ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const TOKEN: &str = "AWS_SESSION_TOKEN";

/// A place of credentials.
#[derive(Clone, Debug)]
pub enum S3Credentials {
    /// Those of the environment, which cannot change.
    Fixed(Arc<AccessKey>),
    File(Arc<Path>),
}

/// An access key of an S3-compatible store.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    id: String,
    secret: String,
    /// Present if the key is a temporary one.
    token: Option<String>,
}

/// A reason why there are no credentials. Names variables and files, and no values.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} has characters other than printable ASCII")]
    Unprintable(&'static str),
    #[error("line {0} is not NAME=VALUE with a known name")]
    Line(usize),
    #[error("blobs.credentials: {}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("blobs.credentials: {}: {error}", path.display())]
    Content { path: PathBuf, error: Box<CredentialsError> },
}

// === impl S3Credentials ===

impl S3Credentials {
    /// Opens the credentials of a file, or else those of the environment, and checks them.
    pub async fn open(file: Option<&Path>) -> Result<Self, CredentialsError> {
        let found = match file {
            Some(path) => Self::File(path.into()),
            None => Self::Fixed(Arc::new(AccessKey::of(|name| std::env::var(name).ok())?)),
        };
        found.key().await?;
        Ok(found)
    }

    /// Returns the key to sign a request with.
    pub(super) async fn key(&self) -> Result<Arc<AccessKey>, CredentialsError> {
        let path = match self {
            Self::Fixed(key) => return Ok(Arc::clone(key)),
            Self::File(path) => path,
        };
        let text = read(path).await.map_err(|error| CredentialsError::File { path: path.to_path_buf(), error })?;
        let key = AccessKey::parse(&text);
        let key =
            key.map_err(|error| CredentialsError::Content { path: path.to_path_buf(), error: Box::new(error) })?;
        Ok(Arc::new(key))
    }
}

async fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = tokio::fs::File::open(path).await?;
    file.take(limits::S3_CREDENTIALS_BYTES_MAX).read_to_string(&mut text).await?;
    Ok(text)
}

// === impl AccessKey ===

impl AccessKey {
    /// Parses lines `NAME=VALUE`; empty ones and comments are ignored.
    pub(super) fn parse(text: &str) -> Result<Self, CredentialsError> {
        let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
        let mut values = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let pair = line.split_once('=').map(|(name, value)| (name.trim_end(), value.trim_start()));
            let pair = pair.filter(|(name, _)| [ID, SECRET, TOKEN].contains(name));
            values.push(pair.ok_or(CredentialsError::Line(number))?);
        }
        Self::of(|name| values.iter().find(|(named, _)| *named == name).map(|(_, value)| (*value).to_owned()))
    }

    fn of(value_of: impl Fn(&str) -> Option<String>) -> Result<Self, CredentialsError> {
        let value = |name: &'static str| match value_of(name).filter(|value| !value.is_empty()) {
            Some(value) if value.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Some(value)),
            Some(_) => Err(CredentialsError::Unprintable(name)),
            None => Ok(None),
        };
        let id = value(ID)?.ok_or(CredentialsError::Missing(ID))?;
        let secret = value(SECRET)?.ok_or(CredentialsError::Missing(SECRET))?;
        Ok(Self { id, secret, token: value(TOKEN)? })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    /// Covers: PR-24.
    #[test]
    fn credentials_are_parsed_and_errors_name_no_value() {
        let text = "# of the bucket\n\nAWS_ACCESS_KEY_ID = id\nAWS_SECRET_ACCESS_KEY=a=b/c\n";
        let key = AccessKey::parse(text).expect("a key");
        assert_eq!((key.id(), key.secret(), key.token()), ("id", "a=b/c", None));
        let key = AccessKey::parse(&format!("{text}AWS_SESSION_TOKEN=t\r\n")).expect("a key");
        assert_eq!(key.token(), Some("t"));
        assert_eq!(format!("{key:?}"), "AccessKey(..)");
        for wrong in [
            "",
            "AWS_ACCESS_KEY_ID=hidden",
            "AWS_SECRET_ACCESS_KEY=hidden",
            "AWS_ACCESS_KEY_ID=\nAWS_SECRET_ACCESS_KEY=hidden",
            "AWS_ACCESS_KEY_ID=id\nAWS_SECRET_ACCESS_KEY=hid den",
            "AWS_ACCESS_KEY_ID=id\nAWS_SECRET_ACCESS_KEY=x\nhidden",
            "AWS_ACCESS_KEY_ID=id\nAWS_SECRET_ACCESS_KEY=x\nAWS_HIDDEN=hidden",
        ] {
            let error = AccessKey::parse(wrong).expect_err(wrong).to_string();
            assert!(!error.contains("hid"), "{error}");
        }
    }

    /// Covers: PR-24.
    #[tokio::test]
    async fn changed_file_gives_the_new_credentials() {
        let dir = tempdir().expect("a directory");
        let path = dir.path().join("credentials");
        assert!(matches!(S3Credentials::open(Some(&path)).await, Err(CredentialsError::File { .. })));
        for id in ["first", "second"] {
            std::fs::write(&path, format!("AWS_ACCESS_KEY_ID={id}\nAWS_SECRET_ACCESS_KEY=s\n")).expect("a file");
            let credentials = S3Credentials::open(Some(&path)).await.expect("credentials");
            assert_eq!(credentials.key().await.expect("a key").id(), id);
        }
    }
}
