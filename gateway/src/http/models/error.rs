//! The errors of calls of models in the format of the call, with statuses and headers that official clients understand.
use super::CutReason;
use crate::http::openai::error::OpenAiError;
use crate::http::problem::HttpProblem;
use crate::http::request_link::{LinkClosed, RequestFailure};
use crate::models::bound::CallBudgetRefusal;
use crate::models::budget::BudgetRefusalReason;
use crate::models::open_call::CallFailure;
use crate::response::{self, Body};
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use std::borrow::Cow;
use std::time::Duration;
use turnway_core::limits;
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::openai::ChatCall;
use turnway_wire::model::{CallError, CallErrorKind, CallFormat, CallRequestError};

/// OpenAI's and Anthropic's clients read this header before the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The reason why a call has no answer.
#[derive(Debug)]
pub(in crate::http) struct ModelCallError {
    status: StatusCode,
    code: Cow<'static, str>,
    message: Cow<'static, str>,
    param: Option<String>,
    retryable: bool,
    retry_after: Option<Duration>,
    /// Value of the `Allow` header.
    allow: Option<&'static str>,
    closes_connection: bool,
    /// True if the credential was never issued; counts towards the lockout of the address.
    is_guess: bool,
}

// === impl ModelCallError ===

impl ModelCallError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.into(),
            param: None,
            retryable: false,
            retry_after: None,
            allow: None,
            closes_connection: false,
            is_guess: false,
        }
    }

    /// Creates the error for a name that no model has.
    pub(super) fn model_not_found(name: &str) -> Self {
        let shown: String = name.chars().take(128).collect();
        let message = format!("there is no model {shown:?}; GET /v1/models lists them");
        let param = Some("model".to_owned());
        Self { param, ..Self::new(StatusCode::NOT_FOUND, "model_not_found", message) }
    }

    /// Marks the error as one of a request whose body was not read.
    pub(super) fn with_unread_body(self) -> Self {
        Self { closes_connection: true, ..self }
    }

    fn of_budget(refused: &CallBudgetRefusal) -> Self {
        let why = refused.to_string();
        let CallBudgetRefusal::Account(refusal) = refused else {
            return Self::new(StatusCode::BAD_REQUEST, "output_limit_required", why);
        };
        match refusal.reason {
            BudgetRefusalReason::Exhausted(_) | BudgetRefusalReason::UnknownPrice => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "budget_exhausted", why)
            }
            BudgetRefusalReason::Busy { retry_after } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "model_busy", why).retryable(Some(retry_after))
            }
            BudgetRefusalReason::Unavailable { retry_after } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", why).retryable(Some(retry_after))
            }
            BudgetRefusalReason::Unreadable => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::InternalError.as_str(), why)
            }
        }
    }

    fn retryable(self, after: Option<Duration>) -> Self {
        Self { retryable: true, retry_after: after, ..self }
    }

    /// Renders the error as a response to a call of this format.
    pub(in crate::http) fn into_response(self, format: CallFormat) -> Response<Body> {
        let error = CallError {
            code: &self.code,
            message: &self.message,
            kind: kind_of(self.status),
            param: self.param.as_deref(),
        };
        let mut response = response::build(self.status, "application/json", format.error_body(&error));
        if self.is_guess {
            response.extensions_mut().insert(response::UnknownCredential);
        }
        let headers = response.headers_mut();
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(if self.retryable { "true" } else { "false" }));
        if self.closes_connection {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(wait) = self.retry_after {
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            headers.insert("retry-after-ms", HeaderValue::from(millis));
            headers.insert(header::RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000).max(1)));
        }
        response
    }
}

fn kind_of(status: StatusCode) -> CallErrorKind {
    match status {
        StatusCode::UNAUTHORIZED => CallErrorKind::Authentication,
        StatusCode::FORBIDDEN => CallErrorKind::Permission,
        StatusCode::NOT_FOUND => CallErrorKind::NotFound,
        StatusCode::PAYLOAD_TOO_LARGE => CallErrorKind::TooLarge,
        StatusCode::TOO_MANY_REQUESTS => CallErrorKind::RateLimit,
        StatusCode::SERVICE_UNAVAILABLE => CallErrorKind::Overloaded,
        StatusCode::GATEWAY_TIMEOUT => CallErrorKind::Timeout,
        status if status.is_client_error() => CallErrorKind::InvalidRequest,
        _ => CallErrorKind::Server,
    }
}

impl From<HttpProblem> for ModelCallError {
    fn from(problem: HttpProblem) -> Self {
        let refusal = problem.refusal();
        Self {
            is_guess: problem.is_guess(),
            allow: problem.allow(),
            retryable: refusal.code.retryable(),
            retry_after: refusal.retry_after_ms.map(Duration::from_millis),
            ..Self::new(problem.status(), refusal.code.as_str(), refusal.message.clone())
        }
    }
}

impl From<LinkClosed> for ModelCallError {
    fn from(closed: LinkClosed) -> Self {
        HttpProblem::from(closed).into()
    }
}

impl From<RequestFailure> for ModelCallError {
    fn from(failure: RequestFailure) -> Self {
        HttpProblem::from(failure).into()
    }
}

/// Errors of reading a body, which chat completions share.
impl From<OpenAiError> for ModelCallError {
    fn from(error: OpenAiError) -> Self {
        let OpenAiError { trouble, closes_connection, is_guess } = error;
        let code = trouble.code();
        // Only chat completions take a body that is too long for a context that is too long.
        let is_too_large = code == ChatCall::too_long().code();
        let code = if is_too_large { Code::TooLarge.as_str() } else { code };
        let status = if is_too_large {
            StatusCode::PAYLOAD_TOO_LARGE
        } else {
            StatusCode::from_u16(trouble.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        };
        Self {
            retryable: trouble.retryable,
            retry_after: trouble.retry_after,
            closes_connection,
            is_guess,
            ..Self::new(status, code, trouble.message().to_owned())
        }
    }
}

impl From<CallRequestError> for ModelCallError {
    fn from(error: CallRequestError) -> Self {
        let param = error.param().map(str::to_owned);
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, Code::InvalidMessage.as_str(), error.to_string()) }
    }
}

impl From<CallFailure> for ModelCallError {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Busy => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "model_busy",
                "the model's upstreams have as many open calls as they may have; try again later",
            )
            .retryable(Some(limits::MODEL_BUSY_RETRY_AFTER)),
            CallFailure::Budget(refusal) => Self::of_budget(&refusal),
            CallFailure::Unrecorded => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store_unavailable",
                "the call could not be recorded, and was not made; try again later",
            )
            .retryable(Some(limits::STORE_RETRY_AFTER)),
            CallFailure::Unreachable => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "upstream_unavailable",
                "the model's upstream cannot be reached; try again later",
            )
            .retryable(Some(limits::MODEL_BUSY_RETRY_AFTER)),
            CallFailure::Unauthorized => Self::new(
                StatusCode::BAD_GATEWAY,
                "upstream_unauthorized",
                "the model's upstream refuses the gateway's key; the operator has to mend it",
            ),
            CallFailure::Broken => Self::new(
                StatusCode::BAD_GATEWAY,
                "upstream_failed",
                "the connection to the model's upstream broke before an answer; the call may have been served",
            ),
            CallFailure::TimedOut => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "upstream_timeout",
                "the model's upstream did not answer in time; the call may have been served",
            ),
        }
    }
}

impl From<CutReason> for ModelCallError {
    fn from(reason: CutReason) -> Self {
        let (code, message) = reason.code_and_message();
        Self::new(StatusCode::UNAUTHORIZED, code, message)
    }
}
