//! What is no HTTP/3, and what the RFC calls it.
use crate::listen::end::End;
use http::StatusCode;
use quinn::{Connection, VarInt};
use web_transport_proto::ConnectError;

/// `H3_NO_ERROR`: nothing is wrong, and it is over.
pub const NO_ERROR: u32 = 0x100;
/// `H3_STREAM_CREATION_ERROR`: a stream that must not be.
pub const STREAM_CREATION_ERROR: u32 = 0x103;
/// `H3_CLOSED_CRITICAL_STREAM`: a stream has ended that must not.
pub const CLOSED_CRITICAL_STREAM: u32 = 0x104;
/// `H3_FRAME_UNEXPECTED`: a frame that has no place where it is.
pub const FRAME_UNEXPECTED: u32 = 0x105;
/// `H3_FRAME_ERROR`: a frame that is not whole, or not what it says.
pub const FRAME_ERROR: u32 = 0x106;
/// `H3_EXCESSIVE_LOAD`: too much of something.
pub const EXCESSIVE_LOAD: u32 = 0x107;
/// `H3_ID_ERROR`: an id that is nobody's.
pub const ID_ERROR: u32 = 0x108;
/// `H3_SETTINGS_ERROR`: settings that are none.
pub const SETTINGS_ERROR: u32 = 0x109;
/// `H3_MISSING_SETTINGS`: something came before them.
pub const MISSING_SETTINGS: u32 = 0x10a;
/// `H3_REQUEST_INCOMPLETE`: a request ends before it has begun.
pub const REQUEST_INCOMPLETE: u32 = 0x10d;
/// `H3_MESSAGE_ERROR`: what a stream carries is none of its messages.
pub const MESSAGE_ERROR: u32 = 0x10e;
/// `QPACK_DECOMPRESSION_FAILED`: fields that nobody can read.
pub const QPACK_FAILED: u32 = 0x200;
/// `QPACK_ENCODER_STREAM_ERROR`: something is put into a table that has no room.
pub const QPACK_ENCODER_ERROR: u32 = 0x201;

/// What ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// As HTTP/3 says it (RFC 9114 §8.1, RFC 9204 §6).
    pub code: u32,
    /// For a person.
    pub why: &'static str,
}

/// Why a request is not one that could become a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is answered with this.
    Status(StatusCode),
    /// It is no HTTP/3.
    Fault(Fault),
    /// Its stream, or its connection, is gone.
    Gone,
}

// === impl Fault ===

impl Fault {
    /// Ends it.
    pub(super) fn end(self, connection: &Connection) {
        connection.close(VarInt::from_u32(self.code), self.why.as_bytes());
    }
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Close(1002, fault.why.into())
    }
}

// === impl Refusal ===

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<ConnectError> for Refusal {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::QpackError(_) => Fault { code: QPACK_FAILED, why: "not QPACK" }.into(),
            ConnectError::UnexpectedEnd | ConnectError::UnexpectedFrame(_) | ConnectError::FrameTooLarge => {
                Fault { code: FRAME_ERROR, why: "not a frame of headers" }.into()
            }
            ConnectError::FieldSectionTooLarge => Self::Status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            ConnectError::WrongMethod(_) => Self::Status(StatusCode::METHOD_NOT_ALLOWED),
            // RFC 9220 §3: for a protocol that is not known.
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
