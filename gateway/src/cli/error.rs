//! Errors of commands: how an error is printed, and the exit code that it leads to. Used by every command.
use super::write_stderr;
use crate::config::ConfigMistake;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

/// The result of a command, as an exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CliExit {
    /// Exit code 0.
    Success,
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
pub enum CliError {
    Usage(String),
    /// A wrong configuration, with every mistake.
    InvalidConfig(Vec<ConfigMistake>),
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
    StdoutClosed,
}

/// The JSON form of an error: `{"error":{"code","message","mistakes"?}}`.
#[derive(Serialize)]
struct ErrorReport<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "<[ConfigMistake]>::is_empty")]
    mistakes: &'a [ConfigMistake],
}

// === impl CliExit ===

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> Self {
        Self::from(match exit {
            CliExit::Success => 0,
            CliExit::Failed => 1,
            CliExit::Usage => 64,
            CliExit::Unavailable => 69,
            CliExit::Bug => 70,
        })
    }
}

// === impl CliError ===

impl CliError {
    /// Returns the exit code that this error leads to.
    pub fn exit_status(&self) -> CliExit {
        match self {
            Self::Usage(_) | Self::InvalidConfig(_) => CliExit::Usage,
            Self::Failed(_) | Self::Refused { .. } => CliExit::Failed,
            Self::Unavailable(_) => CliExit::Unavailable,
            Self::Bug(_) => CliExit::Bug,
            Self::StdoutClosed => CliExit::Success,
        }
    }

    /// Prints the error on stderr: as lines for people, or as one JSON object.
    pub fn print(&self, json: bool) {
        if let (Self::InvalidConfig(mistakes), false) = (self, json) {
            return mistakes.iter().for_each(|mistake| write_stderr(&format!("turnway: {mistake}\n")));
        }
        let (code, message) = self.code_and_message();
        if *self == Self::StdoutClosed {
            return;
        }
        if !json {
            return write_stderr(&format!("turnway: {message}\n"));
        }
        let mistakes: &[ConfigMistake] = if let Self::InvalidConfig(mistakes) = self { mistakes } else { &[] };
        let report = ErrorReport { error: ErrorFields { code, message, mistakes } };
        // These types always serialise.
        write_stderr(&format!("{}\n", serde_json::to_string(&report).unwrap_or_default()));
    }

    /// Returns the error's code and message.
    fn code_and_message(&self) -> (&str, &str) {
        match self {
            Self::InvalidConfig(_) => ("configuration", "the configuration is wrong"),
            Self::Usage(what) => ("usage", what),
            Self::Failed(what) => ("failed", what),
            Self::Refused { code, message } => (code, message),
            Self::Unavailable(what) => ("unavailable", what),
            Self::Bug(what) => ("internal_error", what),
            Self::StdoutClosed => ("unread", "stdout was closed"),
        }
    }
}

impl fmt::Display for CliError {
    /// Prints the message without the code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code_and_message().1)
    }
}
