//! The parts of a request body that the gateway reads and edits. Must not build a tree of a body, nor change other bytes.
use super::CallFormat;
use super::json_text::{count, each_member};
use super::limits::{CALL_BODY_BYTES_MAX, MODEL_NAME_BYTES_MAX};
use bytes::Bytes;
use std::ops::Range;

mod error;

pub use error::CallRequestError;

/// Members that choose an upstream or its key, which is the operator's choice.
const FORBIDDEN: [&str; 3] = ["api_key", "api_base", "base_url"];
/// Members that are read, of all formats; the constants below are their positions.
const READ: [&str; 7] =
    ["model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "max_output_tokens"];
const MODEL: usize = 0;
const STREAM: usize = 1;
const STREAM_OPTIONS: usize = 2;
const CHOICES: usize = 3;
const MAX_TOKENS: usize = 4;
const MAX_COMPLETION_TOKENS: usize = 5;
const MAX_OUTPUT_TOKENS: usize = 6;

/// The parts of a request body that the gateway reads; the rest stays as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRequest {
    model: String,
    /// Position of the value of `model`, with its quotes.
    model_range: Range<usize>,
    is_stream: bool,
    /// Limit of the output of one choice, as the caller set it.
    output_limit: Option<u64>,
    /// Number of choices that the caller asks for; absent if it is no count.
    choices: Option<u64>,
    /// The edit that asks for usage; absent if the caller asks already, or if usage comes without being asked for.
    usage_edit: Option<BodyEdit>,
}

/// A change of a body: the bytes of the range give way to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BodyEdit {
    range: Range<usize>,
    text: &'static str,
}

/// The values of [`READ`] as they stand in the body, and the first reason to refuse the body.
struct CallMembers<'a> {
    body: &'a str,
    values: [Option<&'a str>; READ.len()],
    error: Option<CallRequestError>,
}

// === impl CallRequest ===

impl CallRequest {
    /// Parses a body of at most [`CALL_BODY_BYTES_MAX`]. Members that are not read may be anything.
    pub fn parse(format: CallFormat, body: &[u8]) -> Result<Self, CallRequestError> {
        if body.len() > CALL_BODY_BYTES_MAX {
            return Err(CallRequestError::BodyTooLarge { bytes: body.len() });
        }
        let body = std::str::from_utf8(body).map_err(|error| not_utf8(&body[..error.valid_up_to()]))?;
        let mut members = CallMembers { body, values: [None; READ.len()], error: None };
        each_member(body, |name, value| members.take(name, value))
            .map_err(|error| CallRequestError::NotJsonObject { line: error.line(), column: error.column() })?;
        if let Some(error) = members.error {
            return Err(error);
        }
        let model_text = members.values[MODEL].ok_or(CallRequestError::ModelMissing)?;
        let is_stream = members.is_stream(format)?;
        Ok(Self {
            model: parse_model(model_text)?,
            model_range: members.range(model_text),
            is_stream,
            output_limit: members.output_limit(format),
            choices: members.choices(format),
            usage_edit: match format {
                CallFormat::ChatCompletions if is_stream => members.usage_edit()?,
                CallFormat::ChatCompletions | CallFormat::Responses | CallFormat::Messages | CallFormat::Embeddings => {
                    None
                }
            },
        })
    }

    /// Returns the name of the model, never empty.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns true if the caller asks for a stream.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Returns the maximum number of output tokens over all choices: by the caller's limit, or else by that of the model.
    /// Absent if there is neither. A limit that is not a count is none: some upstreams take -1 for no limit.
    pub fn output_bound(&self, of_model: Option<u64>) -> Option<u64> {
        Some(self.output_limit.or(of_model)?.saturating_mul(self.choices?))
    }

    /// Returns true if usage only comes if the gateway asks for it: in a stream of chat completions whose caller did not.
    pub fn asks_usage(&self) -> bool {
        self.usage_edit.is_some()
    }

    /// Returns the body for the upstream in pieces: the bytes of `body`, which must be the parsed one, with the value of
    /// `model` replaced if `upstream_model` is another name, and with a request for usage if `ask_usage` and
    /// [`Self::asks_usage`].
    pub fn upstream_body(&self, body: &Bytes, upstream_model: &str, ask_usage: bool) -> Vec<Bytes> {
        let mut edits: Vec<(&Range<usize>, Bytes)> = Vec::new();
        if upstream_model != self.model {
            edits.push((&self.model_range, serde_json::Value::from(upstream_model).to_string().into()));
        }
        if let Some(edit) = self.usage_edit.as_ref().filter(|_| ask_usage) {
            edits.push((&edit.range, Bytes::from_static(edit.text.as_bytes())));
        }
        edits.sort_by_key(|(range, _)| range.start);
        let mut pieces = Vec::new();
        let mut from = 0;
        for (range, text) in edits {
            pieces.push(body.slice(from..range.start));
            pieces.push(text);
            from = range.end;
        }
        pieces.push(body.slice(from..));
        pieces
    }
}

// === impl CallMembers ===

impl<'a> CallMembers<'a> {
    /// Takes a member of the body.
    fn take(&mut self, name: &str, value: &'a str) {
        let error = if let Some(forbidden) = FORBIDDEN.into_iter().find(|known| is_same_but_for_case(name, known)) {
            CallRequestError::ForbiddenMember { name: forbidden }
        } else if let Some(slot) = READ.iter().position(|known| is_same_but_for_case(name, known)) {
            if name != READ[slot] {
                CallRequestError::MemberInOtherCase { name: READ[slot] }
            } else if self.values[slot].replace(value).is_some() {
                CallRequestError::RepeatedMember { name: READ[slot] }
            } else {
                return;
            }
        } else {
            return;
        };
        self.error.get_or_insert(error);
    }

    /// Returns the position of a value, which is a part of the body's text.
    fn range(&self, value: &str) -> Range<usize> {
        let start = value.as_ptr().addr() - self.body.as_ptr().addr();
        start..start + value.len()
    }

    fn is_stream(&self, format: CallFormat) -> Result<bool, CallRequestError> {
        match format {
            CallFormat::ChatCompletions | CallFormat::Responses | CallFormat::Messages => match self.values[STREAM] {
                Some("true") => Ok(true),
                Some("false" | "null") | None => Ok(false),
                Some(_) => Err(CallRequestError::StreamNotBoolean),
            },
            // Embeddings are never streamed.
            CallFormat::Embeddings => Ok(false),
        }
    }

    fn output_limit(&self, format: CallFormat) -> Option<u64> {
        let given = |slot: usize| self.values[slot].filter(|value| *value != "null");
        match format {
            CallFormat::ChatCompletions => {
                // Upstreams differ in the name that they follow if there are both.
                let limits = [MAX_TOKENS, MAX_COMPLETION_TOKENS].into_iter().filter_map(given);
                limits.map(count).reduce(|one, other| Some(one?.max(other?)))?
            }
            CallFormat::Responses => count(given(MAX_OUTPUT_TOKENS)?),
            CallFormat::Messages => count(given(MAX_TOKENS)?),
            CallFormat::Embeddings => None,
        }
    }

    fn choices(&self, format: CallFormat) -> Option<u64> {
        match format {
            CallFormat::ChatCompletions => {
                let given = self.values[CHOICES].filter(|value| *value != "null");
                given.map_or(Some(1), count).map(|choices| choices.max(1))
            }
            CallFormat::Responses | CallFormat::Messages | CallFormat::Embeddings => Some(1),
        }
    }

    /// Returns the edit that asks for usage in a stream of chat completions.
    fn usage_edit(&self) -> Result<Option<BodyEdit>, CallRequestError> {
        let Some(options) = self.values[STREAM_OPTIONS] else {
            // The body has a member `model`, so a comma follows. Only white space is before the brace.
            let at = self.body.find('{').map_or(0, |brace| brace + 1);
            return Ok(Some(BodyEdit { range: at..at, text: r#""stream_options":{"include_usage":true},"# }));
        };
        let range = self.range(options);
        if options == "null" {
            return Ok(Some(BodyEdit { range, text: r#"{"include_usage":true}"# }));
        }
        let mut include = None;
        let mut members = 0;
        let mut repeated = false;
        each_member(options, |name, value| {
            members += 1;
            if name == "include_usage" {
                repeated |= include.replace(value).is_some();
            }
        })
        .map_err(|_| CallRequestError::StreamOptionsNotObject)?;
        if repeated {
            return Err(CallRequestError::RepeatedMember { name: "stream_options.include_usage" });
        }
        let at = range.start + 1;
        match include {
            Some("true") => Ok(None),
            Some(value @ ("false" | "null")) => Ok(Some(BodyEdit { range: self.range(value), text: "true" })),
            Some(_) => Err(CallRequestError::IncludeUsageNotBoolean),
            None if members == 0 => Ok(Some(BodyEdit { range: at..at, text: r#""include_usage":true"# })),
            None => Ok(Some(BodyEdit { range: at..at, text: r#""include_usage":true,"# })),
        }
    }
}

/// Returns true if two names differ at most in case. Some upstreams compare names like that, with Unicode's case folding
/// (<https://pkg.go.dev/encoding/json#Unmarshal>), so they would read a member that the gateway has not read.
fn is_same_but_for_case(name: &str, known: &str) -> bool {
    name == known || name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).eq(known.chars())
}

fn parse_model(text: &str) -> Result<String, CallRequestError> {
    let name: String = serde_json::from_str(text).map_err(|_| CallRequestError::ModelNotText)?;
    match name.len() {
        0 => Err(CallRequestError::ModelEmpty),
        1..=MODEL_NAME_BYTES_MAX => Ok(name),
        bytes => Err(CallRequestError::ModelTooLong { bytes }),
    }
}

/// Returns the error for a body whose text ends after `valid`.
fn not_utf8(valid: &[u8]) -> CallRequestError {
    let line_start = valid.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
    CallRequestError::NotJsonObject { line, column: valid.len() - line_start + 1 }
}

#[cfg(test)]
mod tests;
