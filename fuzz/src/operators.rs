//! What operators write: the configuration file, agents on one line, names and origins with commas between them.
use std::path::PathBuf;
use turnway::agent::directory::parse_agent;
use turnway::config::{Hosts, Origin, Place, Sources, load};

/// A configuration file. Every mistake has its place in it.
pub fn file(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let file = Some((PathBuf::from("turnway.toml"), text.to_owned()));
    let loaded = load(&Sources { file, ..Sources::default() });
    let right = usize::from(loaded.mistakes.is_empty());
    for mistake in loaded.mistakes {
        if let Place::File { line, column, .. } = mistake.place {
            assert!(line >= 1 && column >= 1 && line <= text.lines().count() + 1, "{line}:{column}");
        }
        assert!(!mistake.what.is_empty());
    }
    right
}

/// `ID=URL[,key=value…]`.
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

/// `listen.hosts` and `listen.origins`. An origin is what a browser writes, so it is read as it is written.
pub fn welcome(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let origins = Origin::parse_list(text);
    for (origin, written) in origins.iter().flatten().zip(text.split(',')) {
        assert_eq!(origin.as_str(), written.trim());
    }
    usize::from(origins.is_ok()) + usize::from(Hosts::parse(text).is_ok())
}
