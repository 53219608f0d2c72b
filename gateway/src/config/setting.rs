//! One row of the table of settings: what there is to say of each.
use super::key::Key;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// `true` or `false`.
    Switch,
    /// A string with a number of bytes, such as `"64KiB"`.
    Size,
}

/// What holds where nobody says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// This, as it would be written.
    Fixed(&'static str),
    /// What is found out at the start.
    Found {
        /// For people.
        how: &'static str,
        /// A value that could stand there.
        example: &'static str,
    },
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Which.
    pub key: Key,
    /// As it is written in the file: section and key.
    pub name: &'static str,
    /// How its value is written.
    pub kind: Kind,
    /// The value's form, as a placeholder.
    pub form: &'static str,
    /// On the command line; not every setting is there.
    pub flag: Option<&'static str>,
    /// What holds where nobody says anything.
    pub default: Fallback,
    /// What it is; one sentence or more.
    pub doc: &'static str,
}

// === impl Setting ===

impl Setting {
    /// Its section, empty where it is in none, and its name within.
    pub fn split(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').unwrap_or(("", self.name))
    }

    /// As it is written in the environment: `TURNWAY_<SECTION>_<KEY>`.
    pub fn env(&self) -> String {
        format!("TURNWAY_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }
}
