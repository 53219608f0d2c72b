//! `turnway version`: prints the build's version and protocol. Called by `main`.
use super::{CliError, CliExit, write_json, write_stdout};
use serde::Serialize;
use turnway_wire::channel::PROTOCOL;

#[derive(Serialize)]
struct VersionInfo {
    name: &'static str,
    version: &'static str,
    protocol: &'static str,
}

/// Prints the version, as text or as JSON.
pub fn run(json: bool) -> Result<CliExit, CliError> {
    let VersionInfo { name, version, protocol } =
        VersionInfo { name: "turnway", version: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL };
    if json {
        write_json(&VersionInfo { name, version, protocol })?
    } else {
        write_stdout(&format!("{name} {version}\n"))?
    }
    Ok(CliExit::Success)
}
