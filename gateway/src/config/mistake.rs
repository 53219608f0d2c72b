//! Mistakes in a configuration, and the places where settings were made.
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use std::fmt;
use std::path::PathBuf;

/// The place where a setting was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingLocation {
    /// Not set by any source.
    #[default]
    Default,
    /// In the file; line and column count from 1.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// In the environment variable of this name.
    Env(String),
    /// On the command line, by this flag.
    Flag(&'static str),
}

/// A mistake that the operator must correct. The message has no values, because a URL may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigMistake {
    pub location: SettingLocation,
    /// Key that the mistake is about, if any, as the file names it.
    pub key: Option<String>,
    /// Message for people.
    pub message: String,
}

// === impl SettingLocation ===

impl SettingLocation {
    /// Returns the precedence of the place's source: flags are 0, then come the environment and the file.
    pub fn precedence(&self) -> u8 {
        match self {
            Self::Flag(_) => 0,
            Self::Env(_) => 1,
            Self::File { .. } | Self::Default => 2,
        }
    }
}

impl fmt::Display for SettingLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

// === impl ConfigMistake ===

impl ConfigMistake {
    /// Creates a mistake at a place, about no key.
    pub fn new(location: &SettingLocation, what: impl Into<String>) -> Self {
        Self { location: location.clone(), key: None, message: what.into() }
    }

    /// Creates a mistake about a key.
    pub fn for_key(key: impl fmt::Display, location: &SettingLocation, what: impl Into<String>) -> Self {
        Self { location: location.clone(), key: Some(key.to_string()), message: what.into() }
    }
}

impl fmt::Display for ConfigMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.location)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Serialises as `{"place", "key", "message"}`.
impl Serialize for ConfigMistake {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Mistake", 3)?;
        object.serialize_field("place", &self.location.to_string())?;
        object.serialize_field("key", &self.key)?;
        object.serialize_field("message", &self.message)?;
        object.end()
    }
}
