//! Fuzz targets for input from operators: configuration file, agents on one line, lists of host names and
//! origins.
use std::path::PathBuf;
use turnway::agent::directory::parse_agent;
use turnway::config::{AllowedHosts, ConfigSources, Origin, SettingLocation, load};

/// Parses a configuration file, and asserts that every mistake has a place in it.
pub fn file(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let file = Some((PathBuf::from("turnway.toml"), text.to_owned()));
    let loaded = load(&ConfigSources { file, ..ConfigSources::default() });
    let right = usize::from(loaded.mistakes.is_empty());
    for mistake in loaded.mistakes {
        if let SettingLocation::File { line, column, .. } = mistake.location {
            assert!(line >= 1 && column >= 1 && line <= text.lines().count() + 1, "{line}:{column}");
        }
        assert!(!mistake.message.is_empty());
    }
    right
}

/// Parses `ID=URL[,key=value…]`.
pub fn agent(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    match parse_agent(text) {
        Ok(_) => 1,
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            0
        }
    }
}

/// Parses `listen.hosts` and `listen.origins`. Asserts that an origin is kept as it was written, as browsers
/// write it.
pub fn host_and_origin_lists(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let origins = Origin::parse_list(text);
    for (origin, written) in origins.iter().flatten().zip(text.split(',')) {
        assert_eq!(origin.as_str(), written.trim());
    }
    usize::from(origins.is_ok()) + usize::from(AllowedHosts::parse(text).is_ok())
}
