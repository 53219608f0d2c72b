//! Errors of a single connection, and errors of a whole load.
use crate::target::BadTarget;
use std::fmt;
use std::time::Duration;
use tokio_tungstenite::tungstenite::Error;
use turnway::cli::CliExit;

/// Timeout for connecting, for a handshake, and for an answer that the whole load waits for.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why a connection was lost or could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionFailure {
    /// The connection could not be established.
    Unreachable(String),
    /// The server closed the connection with this code; 1005 means without a code.
    Closed(u16),
    /// The connection broke.
    Broken(String),
    /// No answer arrived in time.
    TimedOut,
    /// The server refused a request.
    Denied(String),
}

/// The reason why a load has no figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BenchError {
    /// The arguments of the command line are wrong.
    Usage(String),
    /// Something that the load needs is not available.
    Unavailable(String),
    /// The load did not succeed.
    Failed(String),
}

// === impl ConnectionFailure ===

impl ConnectionFailure {
    /// Returns the code under which the loss is counted among errors.
    pub fn code(&self) -> String {
        match self {
            Self::Unreachable(_) => "unreachable".to_owned(),
            Self::Closed(code) => format!("close_{code}"),
            Self::Broken(_) => "broken".to_owned(),
            Self::TimedOut => "silent".to_owned(),
            Self::Denied(_) => "denied".to_owned(),
        }
    }
}

impl From<Error> for ConnectionFailure {
    fn from(error: Error) -> Self {
        Self::Broken(error.to_string())
    }
}

impl fmt::Display for ConnectionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => f.write_str(why),
            Self::Closed(code) => write!(f, "the server closed a connection with {code}"),
            Self::Broken(why) => write!(f, "a connection broke: {why}"),
            Self::TimedOut => write!(f, "the server did not answer within {} s", ANSWER_TIMEOUT.as_secs()),
            Self::Denied(why) => write!(f, "the server did not answer with welcome: {why}"),
        }
    }
}

// === impl BenchError ===

impl BenchError {
    /// Returns the exit code of the process.
    pub fn exit_status(&self) -> CliExit {
        match self {
            Self::Usage(_) => CliExit::Usage,
            Self::Unavailable(_) => CliExit::Unavailable,
            Self::Failed(_) => CliExit::Failed,
        }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Unavailable(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl From<BadTarget> for BenchError {
    fn from(bad: BadTarget) -> Self {
        match bad {
            BadTarget::Url(..) | BadTarget::Foreign(_) | BadTarget::Sources => Self::Usage(bad.to_string()),
            BadTarget::Unknown(_) => Self::Unavailable(bad.to_string()),
        }
    }
}

impl From<ConnectionFailure> for BenchError {
    fn from(lost: ConnectionFailure) -> Self {
        Self::Unavailable(lost.to_string())
    }
}
