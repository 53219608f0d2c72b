//! Creates self-signed certificates for development; only clients that are told to trust one accept it.
use super::certificate::{CertificatePair, CertificatePairError};
use crate::config::{SettingLocation, TlsFiles};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use turnway_core::time::Millis;

/// Names of the local machine.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Validity in days: long enough to need no care, and short enough to limit misuse.
pub const VALID_DAYS: u16 = 365;
/// Validity in days for browsers that accept a certificate by its hash, at most two weeks (W3C WebTransport,
/// `serverCertificateHashes`), less the day by which it is backdated.
pub const VALID_DAYS_BY_HASH: u16 = 13;
const DAY: Duration = Duration::from_secs(86_400);
/// Backdating, for clients whose clocks are late.
const BACKDATE: Duration = DAY;

/// The files of a new certificate.
#[derive(Clone, Debug)]
pub struct DevCertFiles {
    /// File of the certificate, which clients may be told to trust.
    pub cert: PathBuf,
    /// File of the private key.
    pub key: PathBuf,
    /// SHA-256 of the certificate, in base64.
    pub hash: String,
}

/// The reason why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum DevCertError {
    /// A file cannot be written. Existing files are never overwritten.
    #[error("{path}: {error}", path = path.display())]
    Write { path: PathBuf, error: io::Error },
    /// The certificate cannot be generated: a bug.
    #[error("cannot generate a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The existing files are not a valid pair.
    #[error(transparent)]
    Invalid(#[from] CertificatePairError),
}

/// A certificate and its key, in PEM.
struct DevCert {
    cert: String,
    key: String,
    hash: String,
}

/// Generates a certificate for the local machine, valid for `days` days from now. Its key is on P-256, which browsers
/// require.
fn generate(now: Millis, days: u16) -> Result<DevCert, DevCertError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(NAMES.map(str::to_owned))?;
    let name = DnValue::Utf8String("Turnway development".to_owned());
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.is_ca = IsCa::ExplicitNoCa;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_millis(now.0).saturating_sub(BACKDATE);
    params.not_after = epoch + Duration::from_millis(now.0) + DAY * u32::from(days);
    let cert = params.self_signed(&key)?;
    let hash = STANDARD.encode(digest(&SHA256, cert.der()));
    Ok(DevCert { cert: cert.pem(), key: key.serialize_pem(), hash })
}

/// Generates a pair without writing files.
pub fn ephemeral(now: Millis) -> Result<CertificatePair, DevCertError> {
    let DevCert { cert, key, .. } = generate(now, VALID_DAYS)?;
    let cert_name = Path::new("certificate");
    let key_name = Path::new("key");
    Ok(CertificatePair::parse((cert_name, cert.as_bytes()), (key_name, key.as_bytes()), now)?)
}

/// Reads the pair in a directory, and generates it if it is missing or has expired.
pub fn load_or_generate(dir: &Path, now: Millis) -> Result<CertificatePair, DevCertError> {
    let (cert, key) = file_paths(dir);
    let read = || {
        let files =
            TlsFiles { cert: (cert.clone(), SettingLocation::Default), key: (key.clone(), SettingLocation::Default) };
        CertificatePair::read(&files, now)
    };
    match read() {
        Ok(pair) => return Ok(pair),
        Err(CertificatePairError::Unreadable { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
        Err(CertificatePairError::Expired { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    for path in [&cert, &key] {
        // One of the two files may exist; it is useless without the other.
        let _ = std::fs::remove_file(path);
    }
    write(dir, now, VALID_DAYS)?;
    Ok(read()?)
}

fn file_paths(dir: &Path) -> (PathBuf, PathBuf) {
    (dir.join("cert.pem"), dir.join("key.pem"))
}

/// Generates a pair for the local machine, valid for `days` days from now, and writes `cert.pem` and `key.pem` to a
/// directory.
pub fn write(dir: &Path, now: Millis, days: u16) -> Result<DevCertFiles, DevCertError> {
    let made = generate(now, days)?;
    let unwritten = |path: &Path| {
        let path = path.to_owned();
        move |error| DevCertError::Write { path, error }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unwritten(dir))?;
    let (cert, key) = file_paths(dir);
    let written = DevCertFiles { cert, key, hash: made.hash };
    create(&written.key, 0o600, &made.key).map_err(unwritten(&written.key))?;
    create(&written.cert, 0o644, &made.cert).map_err(unwritten(&written.cert))?;
    Ok(written)
}

/// Writes a file that must not exist yet.
fn create(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(text.as_bytes())
}
