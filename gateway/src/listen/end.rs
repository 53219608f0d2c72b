//! How a link ends, and with which close code.
use super::seam::Breach;
use crate::links::{Fate, Gone};
use quinn::ConnectionError;
use std::borrow::Cow;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};

/// How a link ends.
#[derive(Debug)]
pub(super) enum End {
    /// We close.
    Close(u16, Cow<'static, str>),
    /// The client closed, with this code.
    Closed(u16),
    /// The connection is gone without a word.
    Lost,
}

impl End {
    /// What follows from a failed read; nothing, if the link has to decide.
    pub(super) fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Capacity(CapacityError::MessageTooLong { .. }) => None,
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Some(Self::Lost),
            Error::Protocol(_) => Some(Self::Close(1002, "not RFC 6455".into())),
            Error::Io(error) => match error.get_ref().and_then(|error| error.downcast_ref()) {
                Some(Breach::Hello) => None,
                Some(Breach::Header) => Some(Self::Close(1002, "not RFC 6455".into())),
                Some(Breach::TooManyFragments) => Some(Self::Close(4400, "too many fragments".into())),
                None => Some(Self::Lost),
            },
            Error::Utf8(_) => Some(Self::Close(1007, "not UTF-8".into())),
            Error::ConnectionClosed
            | Error::AlreadyClosed
            | Error::Tls(_)
            | Error::Capacity(CapacityError::TooManyHeaders)
            | Error::WriteBufferFull(_)
            | Error::AttackAttempt
            | Error::Url(_)
            | Error::Http(_)
            | Error::HttpFormat(_) => Some(Self::Lost),
        }
    }

    /// How a connection of QUIC has ended that is gone; `code` reads the application's own codes.
    pub(super) fn of_quic(error: &ConnectionError, code: fn(u64) -> u16) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => Self::Closed(code(close.error_code.into_inner())),
            ConnectionError::ConnectionClosed(_)
            | ConnectionError::VersionMismatch
            | ConnectionError::TransportError(_)
            | ConnectionError::Reset
            | ConnectionError::TimedOut
            | ConnectionError::LocallyClosed
            | ConnectionError::CidsExhausted => Self::Lost,
        }
    }

    pub(super) fn code(&self) -> u16 {
        match self {
            Self::Close(code, _) | Self::Closed(code) => *code,
            Self::Lost => 1006,
        }
    }
}

impl From<Gone> for End {
    fn from(Gone: Gone) -> Self {
        Fate::Leaving.into()
    }
}

impl From<Fate> for End {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Slow => Self::Close(4508, "slow consumer".into()),
            Fate::Revoked => Self::Close(4401, "the credential is not good any more".into()),
            Fate::Leaving => Self::Close(4503, "draining".into()),
        }
    }
}
