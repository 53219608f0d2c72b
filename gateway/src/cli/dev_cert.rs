//! `turnway dev-cert`: writes a self-signed certificate for trying TLS on this machine. Called by `main`.
use super::{CliError, CliExit, write_json, write_stdout};
use crate::clock::Clock;
use crate::tls::development::{self, DevCertError};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `turnway dev-cert`.
#[derive(Clone, Debug, Args)]
pub struct DevCertArgs {
    /// Directory for `cert.pem` and `key.pem`; created if necessary
    pub dir: PathBuf,

    /// Validity in days; browsers accept a certificate by its hash only up to 13
    #[arg(long, value_name = "DAYS", default_value_t = development::VALID_DAYS,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(development::VALID_DAYS)))]
    pub days: u16,
}

/// Writes a certificate and its key, and prints how to use both.
pub fn run(args: &DevCertArgs, json: bool) -> Result<CliExit, CliError> {
    let written = development::write(&args.dir, Clock::start().now().store, args.days);
    let written = written.map_err(|error| match error {
        DevCertError::Write { .. } => CliError::Failed(error.to_string()),
        DevCertError::Generate(_) | DevCertError::Invalid(_) => CliError::Bug(error.to_string()),
    })?;
    let cert = written.cert.display().to_string();
    let key = written.key.display().to_string();
    let hash = &written.hash;
    let days = args.days;
    if json {
        write_json(&json!({ "cert": cert, "key": key, "days": days, "sha256": hash }))?;
        return Ok(CliExit::Success);
    }
    write_stdout(&format!(
        "{cert} and {key}, valid for {days} days, for localhost, 127.0.0.1 and ::1.\n\n  \
           turnway serve --demo --tls-cert {cert} --tls-key {key}\n  \
           SSL_CERT_FILE={cert} turnway chat --url wss://localhost:8080\n  \
           curl --cacert {cert} https://localhost:8080/\n\n\
         SHA-256 of the certificate, in base64: {hash}\n{by_hash}\n\
         No other machine trusts this certificate. For other machines, get one from a certificate authority that they \
         trust.\n",
        by_hash = hash_hint(days),
    ))?;
    Ok(CliExit::Success)
}

/// Returns a hint on using the certificate's hash in a web page (`serverCertificateHashes` of WebTransport).
fn hash_hint(days: u16) -> &'static str {
    if days <= development::VALID_DAYS_BY_HASH {
        "A web page may use the hash to connect by WebTransport: docs/protocol.md, 1.9.\n"
    } else {
        "For web pages that connect by WebTransport, use --days 13: browsers accept no longer validity by hash.\n"
    }
}
