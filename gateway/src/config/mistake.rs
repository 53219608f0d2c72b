//! What is wrong with a configuration, and where.
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use std::fmt;
use std::path::PathBuf;

/// Where a setting was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Nowhere.
    #[default]
    Default,
    /// In the file; line and column count from 1.
    File {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// Which character of it.
        column: usize,
    },
    /// In the environment, under this name.
    Env(String),
    /// On the command line, by this flag.
    Flag(&'static str),
}

/// Something an operator has to put right. Values are not in it: a URL may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// Where.
    pub place: Place,
    /// Of which key, where it is about one; as the file would name it.
    pub key: Option<String>,
    /// What; for a person.
    pub what: String,
}

// === impl Place ===

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

// === impl Mistake ===

impl Mistake {
    /// Something wrong at a place.
    pub fn new(place: &Place, what: impl Into<String>) -> Self {
        Self { place: place.clone(), key: None, what: what.into() }
    }

    /// Something wrong with a key.
    pub fn of(key: impl fmt::Display, place: &Place, what: impl Into<String>) -> Self {
        Self { place: place.clone(), key: Some(key.to_string()), what: what.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// `{"place", "key", "message"}`.
impl Serialize for Mistake {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Mistake", 3)?;
        object.serialize_field("place", &self.place.to_string())?;
        object.serialize_field("key", &self.key)?;
        object.serialize_field("message", &self.what)?;
        object.end()
    }
}
