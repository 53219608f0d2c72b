//! Errors of commands: how an error is printed, and the exit code that it leads to. Used by every command.
use super::complain;
use crate::config::Mistake;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

/// The result of a command, as an exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Exit code 0.
    Fine,
    /// Exit code 1: the command did not succeed.
    Failed,
    /// Exit code 64: wrong usage or configuration.
    Usage,
    /// Exit code 69: something that the command depends on is not available.
    Unavailable,
    /// Exit code 70: a bug in this program.
    Bug,
}

/// The reason why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Wrong arguments.
    Usage(String),
    /// A wrong configuration, with every mistake.
    Mistakes(Vec<Mistake>),
    /// The command did not succeed.
    Failed(String),
    /// A refusal by the gateway, with one of the protocol's error codes.
    Refused {
        /// Error code of the protocol (docs/protocol.md).
        code: String,
        /// Explanation for people.
        message: String,
    },
    /// Something that the command depends on is not available.
    Unavailable(String),
    /// A bug in this program.
    Bug(String),
    /// The reader of stdout has closed it, as `head` does. Not an error: the exit code is 0.
    Unread,
}

/// The JSON form of an error: `{"error":{"code","message","mistakes"?}}`.
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
    /// Returns the exit code that this error leads to.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Mistakes(_) => Exit::Usage,
            Self::Failed(_) | Self::Refused { .. } => Exit::Failed,
            Self::Unavailable(_) => Exit::Unavailable,
            Self::Bug(_) => Exit::Bug,
            Self::Unread => Exit::Fine,
        }
    }

    /// Prints the error on stderr: as lines for people, or as one JSON object.
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
        // These types always serialise.
        complain(&format!("{}\n", serde_json::to_string(&told).unwrap_or_default()));
    }

    /// Returns the error's code and message.
    fn words(&self) -> (&str, &str) {
        match self {
            Self::Mistakes(_) => ("configuration", "the configuration is wrong"),
            Self::Usage(what) => ("usage", what),
            Self::Failed(what) => ("failed", what),
            Self::Refused { code, message } => (code, message),
            Self::Unavailable(what) => ("unavailable", what),
            Self::Bug(what) => ("internal_error", what),
            Self::Unread => ("unread", "stdout was closed"),
        }
    }
}

impl fmt::Display for Trouble {
    /// Prints the message without the code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}
