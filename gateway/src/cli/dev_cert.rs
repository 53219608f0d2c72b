//! `turnway dev-cert`: a certificate to try TLS with.
use super::{Exit, Trouble, say, say_json};
use crate::clock::Clock;
use crate::tls::development::{self, NoPair};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Where to.
#[derive(Clone, Debug, Args)]
pub struct DevCertArgs {
    /// A directory for `cert.pem` and `key.pem`; made if it is not there
    pub dir: PathBuf,
}

/// Writes a pair, and says what to do with it.
pub fn run(args: &DevCertArgs, json: bool) -> Result<Exit, Trouble> {
    let written = development::write(&args.dir, Clock::start().now().store).map_err(|error| match error {
        NoPair::Unwritten { .. } => Trouble::Failed(error.to_string()),
        NoPair::Unmade(_) | NoPair::Bad(_) => Trouble::Bug(error.to_string()),
    })?;
    let (cert, key) = (written.cert.display().to_string(), written.key.display().to_string());
    if json {
        say_json(&json!({ "cert": cert, "key": key }))?;
        return Ok(Exit::Fine);
    }
    say(&format!(
        "{cert} and {key}, good for a year, for localhost, 127.0.0.1 and ::1.\n\n  \
           turnway serve --demo --tls-cert {cert} --tls-key {key}\n  \
           SSL_CERT_FILE={cert} turnway chat --url wss://localhost:8080\n  \
           curl --cacert {cert} https://localhost:8080/\n\n\
         Nobody else trusts it. For other machines get a certificate from somebody they trust.\n"
    ))?;
    Ok(Exit::Fine)
}
