//! Renders errors in OpenAI's format: the error object, its status, and whether the client may retry.
use crate::http::problem::HttpProblem;
use crate::http::request_link::{LinkClosed, RequestFailure};
use crate::response::{self, Body};
use axum::response::IntoResponse;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::openai::{ChatCall, ChatError};

/// OpenAI clients read this header before the status. By the status alone they retry `409` and `5xx`, even where the
/// retry would be another turn.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// More exact than `Retry-After`, and understood by OpenAI clients.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The reason why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct OpenAiError {
    pub(in crate::http) trouble: ChatError,
    /// True if the body was not read, so that the connection cannot be reused.
    pub(in crate::http) closes_connection: bool,
    /// True if the credential was never issued; counts towards the lockout of the address.
    pub(in crate::http) is_guess: bool,
}

// === impl OpenAiError ===

impl OpenAiError {
    /// Creates the error for a known path with an unsupported method.
    pub(super) fn method_not_allowed() -> Self {
        HttpProblem::method_not_allowed().into()
    }

    /// Creates the error for a request that may have been performed; retryable only if a repeat is recognised.
    pub(super) fn unanswered(unanswered: RequestFailure, repeatable: bool) -> Self {
        match unanswered {
            RequestFailure::Refused(refusal) => ChatError::from(&refusal).into(),
            unanswered @ (RequestFailure::LinkClosed(_) | RequestFailure::TimedOut) => {
                let Self { trouble: error, closes_connection: closes, is_guess } = HttpProblem::from(unanswered).into();
                Self {
                    trouble: if repeatable { error } else { error.not_retryable() },
                    closes_connection: closes,
                    is_guess,
                }
            }
        }
    }

    /// Names the field of the request that the error is about.
    pub(super) fn with_param(self, param: String) -> Self {
        Self { trouble: self.trouble.with_param(param), ..self }
    }

    /// Marks the error as one of a request whose body was not read.
    pub(super) fn with_unread_body(self) -> Self {
        Self { closes_connection: true, ..self }
    }
}

impl From<ChatError> for OpenAiError {
    fn from(error: ChatError) -> Self {
        Self { trouble: error, closes_connection: false, is_guess: false }
    }
}

impl From<HttpProblem> for OpenAiError {
    fn from(problem: HttpProblem) -> Self {
        if problem.refusal().code == Code::TooLarge {
            return ChatCall::too_long().into();
        }
        let fault = Self::from(ChatError::from(problem.refusal()).with_status(problem.status().as_u16()));
        Self { is_guess: problem.is_guess(), ..fault }
    }
}

impl From<LinkClosed> for OpenAiError {
    fn from(parted: LinkClosed) -> Self {
        HttpProblem::from(parted).into()
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response<Body> {
        let Self { trouble: error, closes_connection: closes, is_guess } = self;
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = response::build(status, "application/json", error.to_json());
        if is_guess {
            response.extensions_mut().insert(response::UnknownCredential);
        }
        let headers = response.headers_mut();
        let retry = if error.retryable { "true" } else { "false" };
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(retry));
        if closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(wait) = error.retry_after {
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
            headers.insert(header::RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000)));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::status_of;

    /// Covers: ST-41: one code has one status in both APIs.
    #[test]
    fn openai_error_statuses_match_the_http_api() {
        for code in Code::ALL {
            let wanted = match code == &Code::TooLarge {
                // OpenAI clients expect this status for a context that is too long.
                true => StatusCode::BAD_REQUEST,
                false => status_of(*code),
            };
            assert_eq!(ChatError::new(*code, "why").status, wanted.as_u16(), "{code:?}");
            let OpenAiError { trouble: error, .. } = HttpProblem::new(*code, "why").into();
            assert_eq!(error.status, wanted.as_u16(), "{code:?}");
        }
    }

    /// Covers: ST-41, ST-35.
    #[test]
    fn openai_errors_carry_retry_headers() {
        let retry = |fault: OpenAiError| fault.into_response().headers()[SHOULD_RETRY].clone();
        assert_eq!(retry(OpenAiError::unanswered(RequestFailure::TimedOut, true)), "true");
        assert_eq!(retry(OpenAiError::unanswered(RequestFailure::TimedOut, false)), "false");
        assert_eq!(retry(ChatError::new(Code::IdempotencyConflict, "x").into()), "false");
        let draining = OpenAiError::from(LinkClosed::Draining).into_response();
        assert_eq!(draining.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            (&draining.headers()[RETRY_AFTER_MS], &draining.headers()["retry-after"]),
            (&"1000".parse().expect("a value"), &"1".parse().expect("a value"))
        );
        assert_eq!(OpenAiError::method_not_allowed().into_response().status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
