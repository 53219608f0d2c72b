//! Maps HTTP/3 and QPACK violations to the error codes of RFC 9114 §8.1 and RFC 9204 §6.
use crate::listen::close_reason::LinkCloseReason;
use http::StatusCode;
use quinn::{Connection, VarInt};
use turnway_wire::channel::close_code;
use web_transport_proto::ConnectError;

/// `H3_NO_ERROR`: a close without an error.
pub const NO_ERROR: u32 = 0x100;
/// `H3_STREAM_CREATION_ERROR`: a stream that must not exist.
pub const STREAM_CREATION_ERROR: u32 = 0x103;
/// `H3_CLOSED_CRITICAL_STREAM`: a stream ended that must stay open.
pub const CLOSED_CRITICAL_STREAM: u32 = 0x104;
/// `H3_FRAME_UNEXPECTED`: a frame in a place where it is not allowed.
pub const FRAME_UNEXPECTED: u32 = 0x105;
/// `H3_FRAME_ERROR`: a frame that is incomplete or malformed.
pub const FRAME_ERROR: u32 = 0x106;
/// `H3_EXCESSIVE_LOAD`: a limit was exceeded.
pub const EXCESSIVE_LOAD: u32 = 0x107;
/// `H3_ID_ERROR`: an id that was never used.
pub const ID_ERROR: u32 = 0x108;
/// `H3_SETTINGS_ERROR`: a setting that is not allowed.
pub const SETTINGS_ERROR: u32 = 0x109;
/// `H3_MISSING_SETTINGS`: another frame came before the settings.
pub const MISSING_SETTINGS: u32 = 0x10a;
/// `H3_REQUEST_INCOMPLETE`: a request ended before its headers.
pub const REQUEST_INCOMPLETE: u32 = 0x10d;
/// `H3_MESSAGE_ERROR`: a malformed message.
pub const MESSAGE_ERROR: u32 = 0x10e;
/// `QPACK_DECOMPRESSION_FAILED`: header fields that cannot be decoded.
pub const QPACK_FAILED: u32 = 0x200;
/// `QPACK_ENCODER_STREAM_ERROR`: an insertion into a table without capacity.
pub const QPACK_ENCODER_ERROR: u32 = 0x201;

/// A protocol error that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3Error {
    /// An HTTP/3 or QPACK error code (RFC 9114 §8.1, RFC 9204 §6).
    pub code: u32,
    /// Explanation for a person.
    pub why: &'static str,
}

/// The reason why a request cannot become a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum H3Refusal {
    /// The request is answered with this status.
    Status(StatusCode),
    /// The client violated HTTP/3.
    Protocol(H3Error),
    /// The stream or the connection is gone.
    Gone,
}

// === impl H3Error ===

impl H3Error {
    /// Closes the connection with this error.
    pub(super) fn close(self, connection: &Connection) {
        connection.close(VarInt::from_u32(self.code), self.why.as_bytes());
    }
}

impl From<H3Error> for LinkCloseReason {
    fn from(fault: H3Error) -> Self {
        Self::ByServer(close_code::INVALID_FRAME, fault.why.into())
    }
}

// === impl H3Refusal ===

impl From<H3Error> for H3Refusal {
    fn from(fault: H3Error) -> Self {
        Self::Protocol(fault)
    }
}

impl From<ConnectError> for H3Refusal {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::QpackError(_) => H3Error { code: QPACK_FAILED, why: "not QPACK" }.into(),
            ConnectError::UnexpectedEnd | ConnectError::UnexpectedFrame(_) | ConnectError::FrameTooLarge => {
                H3Error { code: FRAME_ERROR, why: "not a frame of headers" }.into()
            }
            ConnectError::FieldSectionTooLarge => Self::Status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            ConnectError::WrongMethod(_) => Self::Status(StatusCode::METHOD_NOT_ALLOWED),
            // RFC 9220 §3: the status for an unknown protocol.
            ConnectError::WrongProtocol(Some(_)) => Self::Status(StatusCode::NOT_IMPLEMENTED),
            ConnectError::InvalidMethod
            | ConnectError::InvalidUrl(_)
            | ConnectError::InvalidStatus
            | ConnectError::WrongStatus(_)
            | ConnectError::WrongScheme(_)
            | ConnectError::WrongAuthority
            | ConnectError::WrongProtocol(None)
            | ConnectError::WrongPath
            | ConnectError::InvalidProtocol
            | ConnectError::StructuredFieldError(_)
            | ConnectError::ErrorStatus(_)
            | ConnectError::Io(_)
            | ConnectError::InvalidHttpHeaderValue
            | ConnectError::InvalidHttpHeaderName
            | _ => Self::Status(StatusCode::BAD_REQUEST),
        }
    }
}
