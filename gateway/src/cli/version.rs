//! `turnway version`: prints the build's version and protocol. Called by `main`.
use super::{Exit, Trouble, say, say_json};
use serde::Serialize;

#[derive(Serialize)]
struct Version {
    name: &'static str,
    version: &'static str,
    protocol: &'static str,
}

/// Prints the version, as text or as JSON.
pub fn run(json: bool) -> Result<Exit, Trouble> {
    let Version { name, version, protocol } =
        Version { name: "turnway", version: env!("CARGO_PKG_VERSION"), protocol: "turnway.v1" };
    if json {
        say_json(&Version { name, version, protocol })?
    } else {
        say(&format!("{name} {version}\n"))?
    }
    Ok(Exit::Fine)
}
