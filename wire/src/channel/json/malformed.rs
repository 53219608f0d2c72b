//! Reasons for rejecting a client's message. A reason names a field and never quotes content.
use std::fmt;
use turnway_core::id::RequestId;
use turnway_core::limits;

/// A text that is not a valid message of this protocol. Answered by `error{invalid_message}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The message's request id, if it could be read.
    pub request_id: Option<RequestId>,
    pub reason: MalformedReason,
}

/// A reason for rejecting a text. Contains no part of the text itself (S-38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedReason {
    /// Longer than [`limits::MESSAGE_BYTES_MAX`].
    TooLong,
    NotJson,
    /// A number of more than [`limits::JSON_NUMBER_BYTES_MAX`].
    NumberTooLong,
    NotAnObject,
    /// Nested deeper than [`limits::JSON_DEPTH_MAX`].
    TooDeep,
    /// More than [`limits::JSON_NODES_MAX`] values.
    TooManyValues,
    /// An object has a key twice; parsers disagree about which value counts.
    RepeatedKey,
    /// A key with a special meaning to our JSON library, which would misread the stored fact.
    ReservedKey,
    /// A `type` that this protocol does not have. The connection stays open.
    UnknownType,
    MissingField(&'static str),
    /// A field has the wrong type or form, or is out of range.
    InvalidField(&'static str),
    TooManyItems(&'static str),
    /// The message has no content.
    EmptyContent,
    RepeatedHello,
}

impl fmt::Display for MalformedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "longer than {} bytes", limits::MESSAGE_BYTES_MAX),
            Self::NotJson => f.write_str("not valid JSON"),
            Self::NumberTooLong => {
                write!(f, "a number is longer than {} bytes", limits::JSON_NUMBER_BYTES_MAX)
            }
            Self::NotAnObject => f.write_str("not a JSON object"),
            Self::TooDeep => write!(f, "nested deeper than {}", limits::JSON_DEPTH_MAX),
            Self::TooManyValues => write!(f, "more than {} values", limits::JSON_NODES_MAX),
            Self::RepeatedKey => f.write_str("an object has a duplicate key"),
            Self::ReservedKey => f.write_str("an object has a reserved key"),
            Self::UnknownType => f.write_str("unknown type"),
            Self::MissingField(field) => write!(f, "field missing: {field}"),
            Self::InvalidField(field) => write!(f, "field has the wrong type or format: {field}"),
            Self::TooManyItems(field) => write!(f, "too many items: {field}"),
            Self::EmptyContent => f.write_str("message.content is empty"),
            Self::RepeatedHello => f.write_str("hello was already received on this connection"),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Malformed {}
