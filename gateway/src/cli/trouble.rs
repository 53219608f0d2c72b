//! What keeps a command from its end: how it is told, and as which exit code.
use super::complain;
use crate::config::Mistake;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Fine,
    /// It did not work out.
    Failed,
    /// It was asked for wrongly: usage or configuration.
    Usage,
    /// Something it depends on cannot be had.
    Unavailable,
    /// A bug of ours.
    Bug,
}

/// Why a command did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was asked for wrongly.
    Usage(String),
    /// The configuration is wrong.
    Mistakes(Vec<Mistake>),
    /// It did not work out.
    Failed(String),
    /// A gateway said no: one of the protocol's codes.
    Refused {
        /// Which.
        code: String,
        /// For a person.
        message: String,
    },
    /// Something it depends on cannot be had.
    Unavailable(String),
    /// A bug of ours.
    Bug(String),
    /// Whoever read the output has left, such as `head`: no trouble at all.
    Unread,
}

/// `{"error":{"code","message","mistakes"?}}`.
#[derive(Serialize)]
struct Told<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "<[Mistake]>::is_empty")]
    mistakes: &'a [Mistake],
}

// === impl Exit ===

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Fine => 0,
            Exit::Failed => 1,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::Bug => 70,
        })
    }
}

// === impl Trouble ===

impl Trouble {
    /// How the process ends.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Mistakes(_) => Exit::Usage,
            Self::Failed(_) | Self::Refused { .. } => Exit::Failed,
            Self::Unavailable(_) => Exit::Unavailable,
            Self::Bug(_) => Exit::Bug,
            Self::Unread => Exit::Fine,
        }
    }

    /// Prints it on stderr: lines for people, or one JSON object.
    pub fn tell(&self, json: bool) {
        if let (Self::Mistakes(mistakes), false) = (self, json) {
            return mistakes.iter().for_each(|mistake| complain(&format!("turnway: {mistake}\n")));
        }
        let (code, message) = self.words();
        if *self == Self::Unread {
            return;
        }
        if !json {
            return complain(&format!("turnway: {message}\n"));
        }
        let mistakes: &[Mistake] = if let Self::Mistakes(mistakes) = self { mistakes } else { &[] };
        let told = Told { error: Error { code, message, mistakes } };
        // These shapes can always be written.
        complain(&format!("{}\n", serde_json::to_string(&told).unwrap_or_default()));
    }

    /// Its code, and what it says.
    fn words(&self) -> (&str, &str) {
        match self {
            Self::Mistakes(_) => ("configuration", "the configuration is wrong"),
            Self::Usage(what) => ("usage", what),
            Self::Failed(what) => ("failed", what),
            Self::Refused { code, message } => (code, message),
            Self::Unavailable(what) => ("unavailable", what),
            Self::Bug(what) => ("internal_error", what),
            Self::Unread => ("unread", "the reader has left"),
        }
    }
}

impl fmt::Display for Trouble {
    /// Prints what it says, without its code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}
