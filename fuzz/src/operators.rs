//! What operators write: the configuration file, and agents on one line.
use std::path::PathBuf;
use turnway::agent::directory::parse_agent;
use turnway::config::{Place, Sources, load};

/// A configuration file. Every mistake has its place in it.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let file = Some((PathBuf::from("turnway.toml"), text.to_owned()));
    let loaded = load(&Sources { file, ..Sources::default() });
    for mistake in loaded.mistakes {
        if let Place::File { line, column, .. } = mistake.place {
            assert!(line >= 1 && column >= 1 && line <= text.lines().count() + 1, "{line}:{column}");
        }
        assert!(!mistake.what.is_empty());
    }
}

/// `ID=URL[,key=value…]`.
pub fn agent(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(mistakes) = parse_agent(text) {
        assert!(!mistakes.is_empty());
    }
}
