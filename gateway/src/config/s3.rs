//! The settings of an S3-compatible store for the bytes of files: its address, region and credentials. Credentials are never
//! part of the address, because addresses appear in logs.
use super::key::SettingKey;
use super::mistake::{ConfigMistake, SettingLocation};
use std::fmt;
use std::path::PathBuf;

/// Characters of a prefix: object names have at most 1024 bytes, and the names of tenant, session and body take 240.
const PREFIX_CHARACTERS_MAX: usize = 512;
/// Ends the messages about addresses.
const EXPECTED: &str = "expected https://HOST/BUCKET or https://HOST/BUCKET/PREFIX";

/// A bucket, addressed by path, and the prefix of the objects in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Url {
    pub is_https: bool,
    /// Host and port as the header `Host` has them, without a scheme's own port.
    pub host: String,
    pub bucket: String,
    /// Empty, or ends with a slash.
    pub prefix: String,
}

/// The place of files in an S3-compatible store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Place {
    pub url: S3Url,
    pub region: String,
    /// The file with the credentials; `None` takes them from the environment.
    pub credentials: Option<PathBuf>,
}

/// The settings of the place while the sources are read.
#[derive(Debug, Default)]
pub(super) struct S3Draft {
    pub(super) url: Option<S3Url>,
    pub(super) region: String,
    pub(super) credentials: Option<(PathBuf, SettingLocation)>,
}

// === impl S3Url ===

impl S3Url {
    /// Parses `https://HOST/BUCKET[/PREFIX]`, or the same with `http`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| Err(format!("{what}; {EXPECTED}"));
        let (is_https, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) | None => return wrong("the address begins with neither https:// nor http://"),
        };
        if rest.contains('@') {
            return wrong("credentials do not belong in an address: use blobs.credentials");
        }
        if rest.contains(['?', '#']) {
            return wrong("an address has no query and no fragment");
        }
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let authority = host.parse::<http::uri::Authority>().ok().filter(|authority| !authority.host().is_empty());
        if authority.is_none() || host.ends_with(':') {
            return wrong("the address has no valid host");
        }
        let own_port = if is_https { ":443" } else { ":80" };
        let host = host.strip_suffix(own_port).unwrap_or(host).to_ascii_lowercase();
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        if !is_bucket(bucket) {
            return wrong("a bucket has 3 to 63 lower-case letters, digits, dots and hyphens");
        }
        let prefix = prefix.trim_end_matches('/');
        if !prefix.is_empty() && !is_prefix(prefix) {
            return wrong("a prefix has names of letters, digits, dots, hyphens and underscores, with slashes between");
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { is_https, host, bucket: bucket.to_owned(), prefix })
    }
}

impl fmt::Display for S3Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}/{}/{}", self.host, self.bucket, self.prefix)
    }
}

fn is_bucket(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (3..=63).contains(&text.len()) && text.bytes().all(is_letter) && !text.starts_with(['.', '-'])
}

fn is_prefix(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    // Proxies resolve `.` and `..`, and the signature would not match any more.
    let is_name = |name: &str| !name.is_empty() && name != "." && name != ".." && name.bytes().all(is_letter);
    text.len() <= PREFIX_CHARACTERS_MAX && text.split('/').all(is_name)
}

/// Parses the name of a region.
pub(super) fn parse_region(text: &str) -> Result<String, String> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let fits = (1..=64).contains(&text.len()) && text.bytes().all(is_letter);
    if fits { Ok(text.to_owned()) } else { Err("expected the name of a region such as us-east-1".to_owned()) }
}

// === impl S3Draft ===

impl S3Draft {
    /// Returns the place; `None` if files lie in the store.
    pub(super) fn build(self, mistakes: &mut Vec<ConfigMistake>) -> Option<S3Place> {
        let Some(url) = self.url else {
            if let Some((_, location)) = &self.credentials {
                let what = "only valid with blobs.url";
                mistakes.push(ConfigMistake::for_key(SettingKey::BlobsCredentials, location, what));
            }
            return None;
        };
        Some(S3Place { url, region: self.region, credentials: self.credentials.map(|(path, _)| path) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: PR-24.
    #[test]
    fn bucket_address_is_parsed_into_its_parts() {
        for (text, host, bucket, prefix) in [
            ("https://s3.example.com/files", "s3.example.com", "files", ""),
            ("https://S3.example.com:443/my-files.1/", "s3.example.com", "my-files.1", ""),
            ("https://s3.example.com:9000/files/turnway", "s3.example.com:9000", "files", "turnway/"),
            ("http://127.0.0.1:80/files/a_b/C-d.e/", "127.0.0.1", "files", "a_b/C-d.e/"),
            ("http://[::1]:9000/files/a", "[::1]:9000", "files", "a/"),
        ] {
            let url = S3Url::parse(text).expect(text);
            assert_eq!((&*url.host, &*url.bucket, &*url.prefix), (host, bucket, prefix), "{text}");
            assert_eq!(url.is_https, text.starts_with("https"), "{text}");
        }
    }

    /// Covers: PR-24.
    #[test]
    fn bucket_address_with_credentials_or_without_bucket_is_refused() {
        for wrong in [
            "s3://files",
            "files",
            "https://",
            "https:///files",
            "https://s3.example.com",
            "https://s3.example.com/",
            "https://s3.example.com:/files",
            "https://key:secret@s3.example.com/files",
            "https://s3.example.com/files?region=x",
            "https://s3.example.com/files#x",
            "https://s3.example.com/Files",
            "https://s3.example.com/ab",
            "https://s3.example.com/files//a",
            "https://s3.example.com/files/../a",
            "https://s3.example.com/files/a b",
            "https://s3.example.com/files/a%20b",
        ] {
            let error = S3Url::parse(wrong).expect_err(wrong);
            assert!(!error.contains("secret"), "{error}");
        }
        for wrong in ["", "us east", "us/east"] {
            assert!(parse_region(wrong).is_err(), "{wrong}");
        }
    }
}
