//! Reasons why a link closes, and the close code of each. The transports produce a reason, the connection task acts on
//! it.
use super::frame_guard::FrameViolation;
use crate::links::{CloseReason, SwitchboardGone};
use quinn::ConnectionError;
use std::borrow::Cow;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use turnway_wire::channel::close_code;

/// The reason why a link closes.
#[derive(Debug)]
pub(super) enum LinkCloseReason {
    /// The server closes the connection, with this close code and reason.
    ByServer(u16, Cow<'static, str>),
    /// The client closed the connection, with this close code.
    ByClient(u16),
    /// The connection ended without a close frame.
    Lost,
}

impl LinkCloseReason {
    /// Returns the reason that follows from a failed read, or `None` where the link machine has to decide.
    pub(super) fn from_websocket_error(error: &Error) -> Option<Self> {
        match error {
            Error::Capacity(CapacityError::MessageTooLong { .. }) => None,
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Some(Self::Lost),
            Error::Protocol(_) => {
                Some(Self::ByServer(close_code::INVALID_FRAME, "invalid WebSocket frame (RFC 6455)".into()))
            }
            Error::Io(error) => match error.get_ref().and_then(|error| error.downcast_ref()) {
                Some(FrameViolation::HelloTooLong) => None,
                Some(FrameViolation::InvalidHeader) => {
                    Some(Self::ByServer(close_code::INVALID_FRAME, "invalid WebSocket frame (RFC 6455)".into()))
                }
                Some(FrameViolation::TooManyFragments) => {
                    Some(Self::ByServer(close_code::MALFORMED, "too many fragments".into()))
                }
                None => Some(Self::Lost),
            },
            Error::Utf8(_) => Some(Self::ByServer(close_code::NOT_UTF8, "not UTF-8".into())),
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
    pub(super) fn from_quic_error(error: &ConnectionError, code: fn(u64) -> u16) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => Self::ByClient(code(close.error_code.into_inner())),
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
            Self::ByServer(code, _) | Self::ByClient(code) => *code,
            Self::Lost => 1006,
        }
    }
}

impl From<SwitchboardGone> for LinkCloseReason {
    fn from(SwitchboardGone: SwitchboardGone) -> Self {
        CloseReason::Shutdown.into()
    }
}

impl From<CloseReason> for LinkCloseReason {
    fn from(fate: CloseReason) -> Self {
        match fate {
            CloseReason::SlowConsumer => Self::ByServer(close_code::SLOW_READER, "slow consumer".into()),
            CloseReason::Revoked => {
                Self::ByServer(close_code::UNAUTHORIZED, "the credential is no longer valid".into())
            }
            CloseReason::Shutdown => Self::ByServer(close_code::DRAINING, "draining".into()),
        }
    }
}
