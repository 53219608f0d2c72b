//! The gateway's own errors, in the format of the call that failed.
use super::CallFormat;
use bytes::Bytes;
use serde::Serialize;

/// An error of the gateway about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError<'a> {
    /// Stable code, in snake case. The messages format has no place for a code; it is left out there.
    pub code: &'a str,
    /// Explanation for people.
    pub message: &'a str,
    /// Class of the error, from which each format makes its `type`.
    pub kind: CallErrorKind,
    /// Member of the request that the error is about. The messages format has no place for it.
    pub param: Option<&'a str>,
}

/// Classes of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallErrorKind {
    /// The request is wrong and must be changed.
    InvalidRequest,
    /// The credential is missing or unknown.
    Authentication,
    /// The credential may not do this.
    Permission,
    /// The model or the route does not exist.
    NotFound,
    /// The request is longer than allowed.
    TooLarge,
    /// A rate or a budget is used up.
    RateLimit,
    /// The gateway or the upstream failed.
    Server,
    /// The gateway or the upstream has no capacity at the moment.
    Overloaded,
    /// The upstream did not answer in time.
    Timeout,
}

#[derive(Serialize)]
struct OpenAiBody<'a> {
    error: OpenAiFields<'a>,
}

#[derive(Serialize)]
struct OpenAiFields<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'a str,
}

#[derive(Serialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type")]
    event: &'static str,
    code: &'a str,
    message: &'a str,
    param: Option<&'a str>,
    sequence_number: u64,
}

#[derive(Serialize)]
struct AnthropicBody<'a> {
    #[serde(rename = "type")]
    event: &'static str,
    error: AnthropicFields<'a>,
}

#[derive(Serialize)]
struct AnthropicFields<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
}

// === impl CallErrorKind ===

impl CallErrorKind {
    /// Returns the `type` of OpenAI's error object.
    pub fn openai_type(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::TooLarge => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::RateLimit => "rate_limit_error",
            Self::Server | Self::Overloaded | Self::Timeout => "server_error",
        }
    }

    /// Returns the `type` of Anthropic's error object.
    pub fn anthropic_type(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::RateLimit => "rate_limit_error",
            Self::Server => "api_error",
            Self::Overloaded => "overloaded_error",
            Self::Timeout => "timeout_error",
        }
    }
}

impl CallFormat {
    /// Returns the body of a response that is nothing but this error.
    pub fn error_body(self, error: &CallError<'_>) -> Bytes {
        match self {
            Self::ChatCompletions | Self::Responses | Self::Embeddings => json(&openai_body(error)),
            Self::Messages => json(&anthropic_body(error)),
        }
        .into()
    }

    /// Returns an event with its blank line that ends a stream which has begun. OpenAI's official clients raise an error
    /// for `error` in the data of a chat completions stream, and for the type `error` in one of responses.
    pub fn error_event(self, error: &CallError<'_>) -> Bytes {
        match self {
            Self::ChatCompletions | Self::Embeddings => format!("data: {}\n\n", json(&openai_body(error))),
            Self::Responses => {
                let CallError { code, message, .. } = *error;
                let event = ResponsesEvent { event: "error", code, message, param: None, sequence_number: 0 };
                format!("event: error\ndata: {}\n\n", json(&event))
            }
            Self::Messages => format!("event: error\ndata: {}\n\n", json(&anthropic_body(error))),
        }
        .into()
    }
}

fn openai_body<'a>(error: &CallError<'a>) -> OpenAiBody<'a> {
    let CallError { code, message, kind, param } = *error;
    OpenAiBody { error: OpenAiFields { message, kind: kind.openai_type(), param, code } }
}

fn anthropic_body<'a>(error: &CallError<'a>) -> AnthropicBody<'a> {
    let error = AnthropicFields { kind: error.kind.anthropic_type(), message: error.message };
    AnthropicBody { event: "error", error }
}

/// Renders a value of texts and numbers, which cannot fail.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AnswerEnd, AnswerReader};
    use serde_json::{Value, json};

    const ERROR: CallError<'static> =
        CallError { code: "upstream_cut", message: "line\n\"two\"", kind: CallErrorKind::Overloaded, param: None };

    /// Covers: PR-5, PR-14.
    #[test]
    fn errors_have_the_form_of_the_format() {
        let openai = json!({ "error": {
            "message": ERROR.message, "type": "server_error", "param": null, "code": "upstream_cut" } });
        let anthropic = json!({ "type": "error", "error": { "type": "overloaded_error", "message": ERROR.message } });
        let responses = json!({ "type": "error", "code": "upstream_cut", "message": ERROR.message, "param": null,
            "sequence_number": 0 });
        for format in CallFormat::ALL {
            let body: Value = serde_json::from_slice(&format.error_body(&ERROR)).expect("JSON");
            let event = String::from_utf8(format.error_event(&ERROR).to_vec()).expect("UTF-8");
            let (name, data) = event.split_once("data: ").expect("data");
            let data: Value = serde_json::from_str(data.strip_suffix("\n\n").expect("a blank line")).expect("JSON");
            let (expected_body, expected_data, expected_name) = match format {
                CallFormat::ChatCompletions | CallFormat::Embeddings => (&openai, &openai, ""),
                CallFormat::Responses => (&openai, &responses, "event: error\n"),
                CallFormat::Messages => (&anthropic, &anthropic, "event: error\n"),
            };
            assert_eq!((&body, &data, name), (expected_body, expected_data, expected_name));
        }
    }

    /// Covers: PR-5.
    #[test]
    fn own_error_event_is_read_as_an_error() {
        for format in CallFormat::ALL {
            let mut reader = AnswerReader::stream(format, false);
            reader.push(&format.error_event(&ERROR), &mut Vec::new());
            assert_eq!(reader.end(), AnswerEnd::Error, "{format:?}");
            let mut reader = AnswerReader::body(format);
            reader.push(&format.error_body(&ERROR), &mut Vec::new());
            assert_eq!(reader.end(), AnswerEnd::Error, "{format:?}");
        }
    }
}
