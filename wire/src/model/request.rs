//! The parts of a request body that the gateway reads and edits. Must not build a tree of a body, nor change other bytes.
use super::CallFormat;
use super::limits::{CALL_BODY_BYTES_MAX, MODEL_NAME_BYTES_MAX};
use bytes::Bytes;

mod error;

pub use error::CallRequestError;

/// The parts of a request body that the gateway reads; the rest stays as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRequest {
    model: String,
    stream: bool,
    output_limit: Option<u64>,
    asks_usage: bool,
}

// === impl CallRequest ===

impl CallRequest {
    /// Parses a body of at most [`CALL_BODY_BYTES_MAX`]. Members that are not read may be anything.
    pub fn parse(format: CallFormat, body: &[u8]) -> Result<Self, CallRequestError> {
        let _ = (format, MODEL_NAME_BYTES_MAX);
        if body.len() > CALL_BODY_BYTES_MAX {
            return Err(CallRequestError::BodyTooLarge { bytes: body.len() });
        }
        Err(CallRequestError::ModelMissing)
    }

    /// Returns the name of the model, never empty.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns true if the caller asks for a stream.
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Returns the maximum number of output tokens that the caller set, over all choices.
    pub fn output_limit(&self) -> Option<u64> {
        self.output_limit
    }

    /// Returns true if usage only comes if the gateway asks for it: in a stream of chat completions whose caller did not.
    pub fn asks_usage(&self) -> bool {
        self.asks_usage
    }

    /// Returns the body for the upstream in pieces: the bytes of `body`, which is the parsed one, with the value of
    /// `model` replaced if `upstream_model` is another name, and with a request for usage if `ask_usage` and
    /// [`Self::asks_usage`].
    pub fn upstream_body(&self, body: &Bytes, upstream_model: &str, ask_usage: bool) -> Vec<Bytes> {
        let _ = (upstream_model, ask_usage);
        vec![body.clone()]
    }
}
