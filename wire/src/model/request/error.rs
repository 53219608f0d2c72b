//! Reasons for which a request body is refused, with texts for the caller. Texts never repeat a value of the body.
use super::super::limits::{CALL_BODY_BYTES_MAX, MODEL_NAME_BYTES_MAX};
use std::fmt;

/// A reason to refuse a request body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallRequestError {
    /// The body is longer than [`CALL_BODY_BYTES_MAX`].
    BodyTooLarge { bytes: usize },
    /// The body is no JSON object in UTF-8; the position is the first wrong one, from 1, or 0 if unknown.
    NotJsonObject { line: usize, column: usize },
    /// A member that the gateway reads occurs twice, so that gateway and upstream might read different values.
    RepeatedMember { name: &'static str },
    /// A member has the name of one that the gateway reads in another case, which some upstreams take for the same.
    MemberInOtherCase { name: &'static str },
    /// The body names an upstream or a key, which only the operator does.
    ForbiddenMember { name: &'static str },
    /// There is no `model`.
    ModelMissing,
    /// `model` is no text.
    ModelNotText,
    /// `model` is empty.
    ModelEmpty,
    /// `model` is longer than [`MODEL_NAME_BYTES_MAX`].
    ModelTooLong { bytes: usize },
    /// `stream` is neither a boolean nor null.
    StreamNotBoolean,
    /// `stream_options` is neither an object nor null.
    StreamOptionsNotObject,
    /// `stream_options.include_usage` is neither a boolean nor null.
    IncludeUsageNotBoolean,
}

// === impl CallRequestError ===

impl CallRequestError {
    /// Returns the stable code, in snake case.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::NotJsonObject { .. } => "not_a_json_object",
            Self::RepeatedMember { .. } => "repeated_member",
            Self::MemberInOtherCase { .. } => "member_in_other_case",
            Self::ForbiddenMember { .. } => "forbidden_member",
            Self::ModelMissing => "model_missing",
            Self::ModelNotText | Self::ModelEmpty | Self::ModelTooLong { .. } => "model_invalid",
            Self::StreamNotBoolean | Self::StreamOptionsNotObject | Self::IncludeUsageNotBoolean => "stream_invalid",
        }
    }

    /// Returns the member of the body that the error is about.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::BodyTooLarge { .. } | Self::NotJsonObject { .. } => None,
            Self::RepeatedMember { name } | Self::MemberInOtherCase { name } | Self::ForbiddenMember { name } => {
                Some(name)
            }
            Self::ModelMissing | Self::ModelNotText | Self::ModelEmpty | Self::ModelTooLong { .. } => Some("model"),
            Self::StreamNotBoolean => Some("stream"),
            Self::StreamOptionsNotObject => Some("stream_options"),
            Self::IncludeUsageNotBoolean => Some("stream_options.include_usage"),
        }
    }
}

impl fmt::Display for CallRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BodyTooLarge { bytes } => {
                write!(
                    f,
                    "the body has {bytes} bytes, and at most {CALL_BODY_BYTES_MAX} are allowed: send a shorter one"
                )
            }
            Self::NotJsonObject { line, column } => {
                write!(f, "the body is not a JSON object in UTF-8 (line {line}, column {column}): send one")
            }
            Self::RepeatedMember { name } => write!(f, "`{name}` occurs twice in the body: send it once"),
            Self::MemberInOtherCase { name } => {
                write!(f, "the body has a member whose name differs from `{name}` only in case: write it as `{name}`")
            }
            Self::ForbiddenMember { name } => {
                write!(f, "`{name}` is not allowed in the body, because the gateway chooses the upstream: remove it")
            }
            Self::ModelMissing => f.write_str("`model` is missing: name a model that GET /v1/models lists"),
            Self::ModelNotText => f.write_str("`model` is not a string: name a model that GET /v1/models lists"),
            Self::ModelEmpty => f.write_str("`model` is empty: name a model that GET /v1/models lists"),
            Self::ModelTooLong { bytes } => {
                write!(
                    f,
                    "`model` has {bytes} bytes, and at most {MODEL_NAME_BYTES_MAX} are allowed: use a listed name"
                )
            }
            Self::StreamNotBoolean => f.write_str("`stream` is not a boolean: send true or false, or leave it out"),
            Self::StreamOptionsNotObject => {
                f.write_str("`stream_options` is not an object: send an object, or leave it out")
            }
            Self::IncludeUsageNotBoolean => {
                f.write_str("`stream_options.include_usage` is not a boolean: send true or false, or leave it out")
            }
        }
    }
}

impl std::error::Error for CallRequestError {}
