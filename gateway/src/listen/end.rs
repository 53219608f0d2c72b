//! Reasons why a link closes, and the close code of each. The transports produce a reason, the connection task acts on
//! it.
use super::seam::Breach;
use crate::links::{Fate, Gone};
use quinn::ConnectionError;
use std::borrow::Cow;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};

/// The reason why a link closes.
#[derive(Debug)]
pub(super) enum End {
    /// The server closes the connection, with this close code and reason.
    Close(u16, Cow<'static, str>),
    /// The client closed the connection, with this close code.
    Closed(u16),
    /// The connection ended without a close frame.
    Lost,
}

impl End {
    /// Returns the reason that follows from a failed read, or `None` where the link machine has to decide.
    pub(super) fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Capacity(CapacityError::MessageTooLong { .. }) => None,
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Some(Self::Lost),
            Error::Protocol(_) => Some(Self::Close(1002, "invalid WebSocket frame (RFC 6455)".into())),
            Error::Io(error) => match error.get_ref().and_then(|error| error.downcast_ref()) {
                Some(Breach::Hello) => None,
                Some(Breach::Header) => Some(Self::Close(1002, "invalid WebSocket frame (RFC 6455)".into())),
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

    /// Returns the reason that follows from an ended QUIC connection; `code` maps an application error code to a close
    /// code.
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
            Fate::Revoked => Self::Close(4401, "the credential is no longer valid".into()),
            Fate::Leaving => Self::Close(4503, "draining".into()),
        }
    }
}
