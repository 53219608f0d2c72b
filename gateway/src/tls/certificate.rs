//! Reads a certificate chain and its private key from files, checks that they match, and builds TLS configurations.
use super::validity;
use crate::config::TlsFiles;
use aws_lc_rs::hmac;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{Error, InconsistentKeys};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use turnway_core::time::Millis;

/// Maximum file size. A chain has some 5 KiB; a larger file was named by mistake.
const FILE_BYTES_MAX: u64 = 256 * 1024;
/// ALPN name offered over TCP.
const ALPN: &[u8] = b"http/1.1";
/// ALPN name of the native protocol over QUIC.
const QUIC_ALPN: &[u8] = b"turnway/1";
/// Purpose of [`CertificatePair::secret`], as HMAC key; another use needs another value.
const SECRET_PURPOSE: &[u8] = b"turnway address tokens";

/// A server certificate with its private key.
#[derive(Clone, Debug)]
pub struct CertificatePair {
    certified: Arc<CertifiedKey>,
    expires: Millis,
    secret: CertificateSecret,
}

/// A secret known to all servers with the same certificate.
#[derive(Clone)]
pub(super) struct CertificateSecret(pub(super) [u8; 32]);

impl std::fmt::Debug for CertificateSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<secret>")
    }
}

/// The reason why two files are not a valid pair.
#[derive(Debug, thiserror::Error)]
pub enum CertificatePairError {
    /// A file cannot be read.
    #[error("{path}: {error}", path = path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// A file has the wrong content.
    #[error("{path}: expected {expected} in PEM", path = path.display())]
    NotPem {
        path: PathBuf,
        /// Description of the expected content.
        expected: &'static str,
    },
    /// The certificate cannot be used.
    #[error("{path}: not usable as a server certificate: {error}", path = path.display())]
    Certificate { path: PathBuf, error: Error },
    /// A certificate of the chain has expired.
    #[error("{path}: a certificate in it has expired", path = path.display())]
    Expired { path: PathBuf },
    /// The key cannot be used.
    #[error("{path}: not usable as a server's private key", path = path.display())]
    Key {
        /// File of the key. The error is not included, because the content is secret.
        path: PathBuf,
    },
    /// Both are valid, but the key is not that of the certificate.
    #[error("{path}: the key does not belong to the certificate", path = path.display())]
    KeyMismatch {
        /// File of the key.
        path: PathBuf,
    },
}

// === impl CertificatePair ===

impl CertificatePair {
    /// Reads both files. A pair that has expired is refused.
    pub fn read(files: &TlsFiles, now: Millis) -> Result<Self, CertificatePairError> {
        let cert = files.cert.0.as_path();
        let key = files.key.0.as_path();
        Self::parse((cert, &read_file(cert)?), (key, &read_file(key)?), now)
    }

    /// Parses the contents of both files.
    pub(super) fn parse(
        (cert, chain): (&Path, &[u8]),
        (key, secret): (&Path, &[u8]),
        now: Millis,
    ) -> Result<Self, CertificatePairError> {
        let chain = certificates(cert, chain)?;
        // The chain is valid as long as all of its certificates are.
        let ends = chain.iter().map(|certificate| validity::not_after(certificate));
        let end = ends.collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().min());
        let unread = Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
        let end = end.ok_or(CertificatePairError::Certificate { path: cert.to_owned(), error: unread })?;
        if end <= now {
            return Err(CertificatePairError::Expired { path: cert.to_owned() });
        }
        let no_key = || CertificatePairError::Key { path: key.to_owned() };
        let secret = private_key(key, secret)?;
        let proof = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET_PURPOSE), secret.secret_der());
        let secret = default_provider().key_provider.load_private_key(secret);
        let certified = CertifiedKey::new(chain, secret.map_err(|_| no_key())?);
        match certified.keys_match() {
            // A match that cannot be determined is accepted.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(Error::InconsistentKeys(_)) => {
                return Err(CertificatePairError::KeyMismatch { path: key.to_owned() });
            }
            Err(error) => return Err(CertificatePairError::Certificate { path: cert.to_owned(), error }),
        }
        // HMAC-SHA-256 has 32 bytes.
        let proof = CertificateSecret(proof.as_ref().first_chunk().copied().unwrap_or_default());
        Ok(Self { certified: Arc::new(certified), expires: end, secret: proof })
    }

    /// Returns the end of the chain's validity.
    pub fn expires(&self) -> Millis {
        self.expires
    }

    /// Returns the secret shared by all nodes with this certificate.
    pub(super) fn secret(&self) -> CertificateSecret {
        self.secret.clone()
    }

    /// Returns true if both have the same certificate.
    pub(super) fn same_certificate(&self, other: &Self) -> bool {
        self.certified.cert == other.certified.cert
    }

    /// Returns the TLS configuration for TCP: TLS 1.3, or 1.2 for older clients.
    ///
    /// Sessions are never resumed. So there is no session state to keep, a connection always verifies the certificate
    /// in use and not an earlier one, and clients that are spread over nodes would rarely return to the node that knows
    /// them.
    pub(super) fn tcp_config(&self) -> Result<ServerConfig, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&self.certified))));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Returns the TLS configuration for QUIC: TLS 1.3 without 0-RTT, because an attacker could replay early data to
    /// another node (RFC 8446 §8, S-21).
    pub(super) fn quic_config(&self) -> Result<ServerConfig, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&self.certified))));
        config.alpn_protocols = vec![QUIC_ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(config)
    }
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificatePairError> {
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) | Err(_) => Err(CertificatePairError::NotPem { path: path.to_owned(), expected: "a certificate" }),
    }
}

fn private_key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, CertificatePairError> {
    let no_pem = |_| CertificatePairError::NotPem { path: path.to_owned(), expected: "a private key, not encrypted," };
    PrivateKeyDer::from_pem_slice(bytes).map_err(no_pem)
}

fn read_file(path: &Path) -> Result<Vec<u8>, CertificatePairError> {
    let read = || {
        // Rejects pipes: reading one could block for ever.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("not a file"));
        }
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        if read as u64 == FILE_BYTES_MAX {
            Err(io::Error::other("expected a file of less than 256 KiB"))
        } else {
            Ok(bytes)
        }
    };
    read().map_err(|error| CertificatePairError::Unreadable { path: path.to_owned(), error })
}

// === impl CertificatePairError ===

impl CertificatePairError {
    /// Returns true if the error concerns the key and not the certificate.
    pub fn concerns_key(&self, files: &TlsFiles) -> bool {
        match self {
            // Certificate and key may be in one file.
            Self::Unreadable { path, .. } | Self::NotPem { path, .. } => *path != files.cert.0,
            Self::Key { .. } | Self::KeyMismatch { .. } => true,
            Self::Certificate { .. } | Self::Expired { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::development;
    use super::*;
    use crate::clock::Clock;
    use crate::config::SettingLocation;
    use std::time::Duration;

    fn files(cert: &Path, key: &Path) -> TlsFiles {
        TlsFiles { cert: (cert.to_owned(), SettingLocation::Default), key: (key.to_owned(), SettingLocation::Default) }
    }

    #[test]
    fn mismatched_certificate_and_key_are_explained() {
        let dir = std::env::temp_dir().join(format!("turnway-pair-{}", std::process::id()));
        let now = Clock::start().now().store;
        let one = dir.join("one");
        let other = dir.join("other");
        let one = development::write(&one, now, development::VALID_DAYS).expect("a pair");
        let other = development::write(&other, now, development::VALID_DAYS).expect("a pair");
        let pair = CertificatePair::read(&files(&one.cert, &one.key), now).expect("good");
        assert!(pair.expires() > now.after(Duration::from_secs(300 * 86_400)));
        let read = |cert: &Path, key: &Path, now| {
            CertificatePair::read(&files(cert, key), now).map(|_| ()).map_err(|bad| {
                let key = bad.concerns_key(&files(cert, key));
                let message = bad.to_string();
                (key, message.rsplit(": ").next().unwrap_or_default().to_owned())
            })
        };
        let junk = dir.join("junk");
        std::fs::write(&junk, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("a file");
        let large = dir.join("large");
        std::fs::write(&large, vec![b'\n'; 300 * 1024]).expect("a file");
        for (cert, key, now, of_key, message) in [
            (&one.cert, &other.key, now, true, "the key does not belong to the certificate"),
            (&one.cert, &one.cert, now, false, "expected a private key, not encrypted, in PEM"),
            (&one.key, &one.key, now, false, "expected a certificate in PEM"),
            (&junk, &one.key, now, false, "BadEncoding"),
            (&large, &one.key, now, false, "expected a file of less than 256 KiB"),
            (&dir, &one.key, now, false, "not a file"),
            (&one.cert, &one.key, pair.expires(), false, "a certificate in it has expired"),
        ] {
            assert_eq!(read(cert, key, now), Err((of_key, message.to_owned())));
        }
        let (_, message) = read(&dir.join("nobody"), &one.key, now).expect_err("nothing");
        assert!(message.contains("No such file"), "{message}");
        std::fs::remove_dir_all(dir).expect("ours");
    }
}
