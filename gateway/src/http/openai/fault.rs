//! Renders errors in OpenAI's format: the error object, its status, and whether the client may retry.
use crate::answer::{self, Body};
use crate::http::guest::{Parted, Unanswered};
use crate::http::problem::Problem;
use axum::response::IntoResponse;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use turnway_bindings::channel::openai::{Call, Trouble};
use turnway_core::protocol::refusal::Code;

/// OpenAI clients read this header before the status. By the status alone they retry `409` and `5xx`, even where the
/// retry would be another turn.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// More exact than `Retry-After`, and understood by OpenAI clients.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The reason why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) trouble: Trouble,
    /// True if the body was not read, so that the connection cannot be reused.
    closes: bool,
    /// True if the credential was never issued; counts towards the lockout of the address.
    is_guess: bool,
}

// === impl Fault ===

impl Fault {
    /// Creates the error for a known path with an unsupported method.
    pub(super) fn not_this_way() -> Self {
        Problem::method_not_allowed().into()
    }

    /// Creates the error for a request that may have been performed; retryable only if a repeat is recognised.
    pub(super) fn unanswered(unanswered: Unanswered, repeatable: bool) -> Self {
        match unanswered {
            Unanswered::Refused(refusal) => Trouble::from(&refusal).into(),
            unanswered @ (Unanswered::Parted(_) | Unanswered::Late) => {
                let Self { trouble, closes, is_guess } = Problem::from(unanswered).into();
                Self { trouble: if repeatable { trouble } else { trouble.at_rest() }, closes, is_guess }
            }
        }
    }

    /// Marks the error as one of a request whose body was not read.
    pub(super) fn unread(self) -> Self {
        Self { closes: true, ..self }
    }
}

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Self {
        Self { trouble, closes: false, is_guess: false }
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        if problem.refusal().code == Code::TooLarge {
            return Call::too_long().into();
        }
        let fault = Self::from(Trouble::from(problem.refusal()).with_status(problem.status().as_u16()));
        Self { is_guess: problem.is_guess(), ..fault }
    }
}

impl From<Parted> for Fault {
    fn from(parted: Parted) -> Self {
        Problem::from(parted).into()
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response<Body> {
        let Self { trouble, closes, is_guess } = self;
        let status = StatusCode::from_u16(trouble.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = answer::of(status, "application/json", trouble.json());
        if is_guess {
            response.extensions_mut().insert(answer::Guess);
        }
        let headers = response.headers_mut();
        let retry = if trouble.retry { "true" } else { "false" };
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(retry));
        if closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(wait) = trouble.retry_after {
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
            assert_eq!(Trouble::new(*code, "why").status, wanted.as_u16(), "{code:?}");
            let Fault { trouble, .. } = Problem::new(*code, "why").into();
            assert_eq!(trouble.status, wanted.as_u16(), "{code:?}");
        }
    }

    /// Covers: ST-41, ST-35.
    #[test]
    fn openai_errors_carry_retry_headers() {
        let retry = |fault: Fault| fault.into_response().headers()[SHOULD_RETRY].clone();
        assert_eq!(retry(Fault::unanswered(Unanswered::Late, true)), "true");
        assert_eq!(retry(Fault::unanswered(Unanswered::Late, false)), "false");
        assert_eq!(retry(Trouble::new(Code::IdempotencyConflict, "x").into()), "false");
        let draining = Fault::from(Parted::Leaving).into_response();
        assert_eq!(draining.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            (&draining.headers()[RETRY_AFTER_MS], &draining.headers()["retry-after"]),
            (&"1000".parse().expect("a value"), &"1".parse().expect("a value"))
        );
        assert_eq!(Fault::not_this_way().into_response().status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
