//! What is wrong with a configuration, and where.
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

/// Something an operator has to put right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// Where.
    pub place: Place,
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
        Self { place: place.clone(), what: what.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}
