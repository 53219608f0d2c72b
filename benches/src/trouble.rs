//! What goes wrong with a load: with one connection, or with all of it.
use crate::target::BadTarget;
use std::fmt;
use std::time::Duration;
use tokio_tungstenite::tungstenite::Error;
use turnway::cli::Exit;

/// A connection, a handshake or an answer that everything waits for and that takes longer is not there.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Why a connection is no more, or never was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It could not be made.
    Unreachable(String),
    /// The server closed it, with this code; 1005 is without any.
    Closed(u16),
    /// It broke.
    Broken(String),
    /// Nothing came in time.
    Silent,
    /// The server did not want what it was told.
    Denied(String),
}

/// Why there are no figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was asked for wrongly.
    Usage(String),
    /// What it needs is not there.
    Unavailable(String),
    /// It did not work out.
    Failed(String),
}

// === impl Lost ===

impl Lost {
    /// Its name among the codes of errors.
    pub fn code(&self) -> String {
        match self {
            Self::Unreachable(_) => "unreachable".to_owned(),
            Self::Closed(code) => format!("close_{code}"),
            Self::Broken(_) => "broken".to_owned(),
            Self::Silent => "silent".to_owned(),
            Self::Denied(_) => "denied".to_owned(),
        }
    }
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Self::Broken(error.to_string())
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => f.write_str(why),
            Self::Closed(code) => write!(f, "the server closed a connection with {code}"),
            Self::Broken(why) => write!(f, "a connection broke: {why}"),
            Self::Silent => write!(f, "the server did not answer within {} s", PATIENCE.as_secs()),
            Self::Denied(why) => write!(f, "the server did not say welcome: {why}"),
        }
    }
}

// === impl Trouble ===

impl Trouble {
    /// What the process leaves with.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Unavailable(_) => Exit::Unavailable,
            Self::Failed(_) => Exit::Failed,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Unavailable(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl From<BadTarget> for Trouble {
    fn from(bad: BadTarget) -> Self {
        match bad {
            BadTarget::Url(..) | BadTarget::Foreign(_) | BadTarget::Sources => Self::Usage(bad.to_string()),
            BadTarget::Unknown(_) => Self::Unavailable(bad.to_string()),
        }
    }
}

impl From<Lost> for Trouble {
    fn from(lost: Lost) -> Self {
        Self::Unavailable(lost.to_string())
    }
}
