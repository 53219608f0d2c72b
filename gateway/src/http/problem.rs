//! Renders refusals as problem JSON (RFC 9457): the protocol's codes, each with its HTTP status.
use crate::auth::AuthError;
use crate::http::request_link::{LinkClosed, RequestFailure};
use crate::response::{self, Body};
use axum::response::IntoResponse;
use http::{HeaderValue, Response, StatusCode, header};
use std::borrow::Cow;
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_wire::channel::json::malformed::{Malformed, MalformedReason};

/// The reason why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProblem {
    status: StatusCode,
    refusal: Refusal,
    /// Value of the `Allow` header.
    allow: Option<&'static str>,
    /// True if the credential was never issued; counts towards the lockout of the address.
    is_guess: bool,
}

/// Returns the HTTP status of a code. `docs/http.md` has the same table.
pub fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidMessage => StatusCode::BAD_REQUEST,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden | Code::Blocked | Code::ApprovalRejected => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Busy
        | Code::IdempotencyConflict
        | Code::NotApplied
        | Code::NoDestination
        | Code::PlacementUnsupported
        | Code::AdapterUnavailable
        | Code::SessionClosed
        | Code::AgentNotInSession
        | Code::BotIdInUse
        | Code::RunnerIdInUse => StatusCode::CONFLICT,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::RateLimited | Code::TooManyPending | Code::OverShare | Code::QuotaExceeded => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Code::InternalError | Code::PoisonTurn | Code::StoreDamaged => StatusCode::INTERNAL_SERVER_ERROR,
        Code::AddAgentFailed | Code::RemoveAgentFailed | Code::SessionCloseFailed => StatusCode::INTERNAL_SERVER_ERROR,
        Code::AgentError | Code::LlmError => StatusCode::BAD_GATEWAY,
        Code::StoreUnavailable
        | Code::Draining
        | Code::FleetUpgrading
        | Code::AgentUnavailable
        | Code::ClientOffline
        | Code::OwnerLost
        | Code::SessionOpenFailed => StatusCode::SERVICE_UNAVAILABLE,
        Code::AgentTimeout | Code::RouteTimeout | Code::CancelTimeout | Code::ToolTimeout | Code::ApprovalTimeout => {
            StatusCode::GATEWAY_TIMEOUT
        }
    }
}

// === impl HttpProblem ===

impl HttpProblem {
    /// Creates a problem with the status of its code.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Refusal::new(code, detail).into()
    }

    /// Replaces the status: HTTP distinguishes some cases that the protocol does not.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Creates a problem for a malformed request.
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidMessage, detail)
    }

    /// Creates a problem for a request without a valid credential.
    pub fn unauthorized(detail: &'static str) -> Self {
        Self::new(Code::Unauthorized, detail)
    }

    /// Creates a problem for a known path with an unsupported method.
    pub fn method_not_allowed() -> Self {
        Self::invalid("method not allowed").with_status(StatusCode::METHOD_NOT_ALLOWED)
    }

    /// Creates a problem for an unsupported method, with an `Allow` header for routes where the router cannot set it.
    pub fn allow_only(methods: &'static str) -> Self {
        Self { allow: Some(methods), ..Self::method_not_allowed() }
    }

    /// Creates a problem for a bug of ours.
    pub fn internal() -> Self {
        Self::new(Code::InternalError, "internal error: the answer could not be built")
    }

    /// Creates a problem for a node that accepts no more work.
    pub fn draining() -> Self {
        Refusal::new(Code::Draining, "this node is draining; retry on another node")
            .retry_after(limits::STORE_RETRY_AFTER)
            .into()
    }

    /// Returns the code with its explanation.
    pub fn refusal(&self) -> &Refusal {
        &self.refusal
    }

    /// Returns the value of the `Allow` header, if the response has one.
    pub fn allow(&self) -> Option<&'static str> {
        self.allow
    }

    /// Returns true if the credential was never issued.
    pub fn is_guess(&self) -> bool {
        self.is_guess
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<Refusal> for HttpProblem {
    fn from(refusal: Refusal) -> Self {
        Self { status: status_of(refusal.code), refusal, allow: None, is_guess: false }
    }
}

impl From<AuthError> for HttpProblem {
    fn from(denied: AuthError) -> Self {
        let is_guess = denied.is_guess();
        let problem = match denied {
            AuthError::UserId => Self::invalid(
                "x-user-id: expected one name of up to 256 bytes of printable text that does not begin with `channel:`",
            ),
            AuthError::NoCredential => {
                Self::unauthorized("expected `Authorization: Bearer` with an API key or a token")
            }
            AuthError::UnknownCredential
            | AuthError::ExpiredCredential
            | AuthError::MalformedCredential
            | AuthError::Token(_) => Self::unauthorized("the credential is not valid"),
            AuthError::OtherUser => Self::unauthorized("the credential may not act as this user"),
            AuthError::Unchecked => {
                let refusal = Refusal::new(Code::StoreUnavailable, "the run token cannot be checked now");
                refusal.retry_after(limits::STORE_RETRY_AFTER).into()
            }
        };
        Self { is_guess, ..problem }
    }
}

impl From<Malformed> for HttpProblem {
    fn from(malformed: Malformed) -> Self {
        let code = if malformed.reason == MalformedReason::TooLong { Code::TooLarge } else { Code::InvalidMessage };
        Self::new(code, malformed.to_string())
    }
}

impl From<LinkClosed> for HttpProblem {
    fn from(parted: LinkClosed) -> Self {
        match parted {
            LinkClosed::Slow => Self::new(Code::RateLimited, "the client did not read its messages in time"),
            LinkClosed::Revoked => Self::unauthorized("the credential is no longer valid"),
            LinkClosed::Draining => Self::draining(),
            LinkClosed::OverLimit(refusal) => refusal.into(),
        }
    }
}

impl From<RequestFailure> for HttpProblem {
    fn from(unanswered: RequestFailure) -> Self {
        match unanswered {
            RequestFailure::Refused(refusal) => refusal.into(),
            RequestFailure::LinkClosed(parted) => parted.into(),
            RequestFailure::TimedOut => {
                let why = "no answer in time; the request may have been performed: repeat it unchanged";
                let refusal = Refusal::new(Code::StoreUnavailable, why);
                let problem = Self::from(refusal.retry_after(limits::STORE_RETRY_AFTER));
                problem.with_status(StatusCode::GATEWAY_TIMEOUT)
            }
        }
    }
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response<Body> {
        let mut response = response::refused(self.status, &self.refusal);
        if let Some(methods) = self.allow {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        if self.is_guess {
            response.extensions_mut().insert(response::UnknownCredential);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every code against the table of statuses in `docs/http.md`.
    #[test]
    fn problem_codes_have_their_documented_status() {
        let document = include_str!("../../../docs/http.md");
        let rows: Vec<(u16, &str)> = document
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
            .filter_map(|(status, codes)| Some((status.parse().ok()?, codes)))
            .collect();
        for code in Code::ALL {
            let name = format!("`{}`", code.as_str());
            let status = status_of(*code).as_u16();
            let row = rows.iter().find(|(known, _)| *known == status);
            assert!(row.is_some_and(|(_, codes)| codes.contains(&name)), "{status} {name}");
        }
    }

    #[test]
    fn retry_after_is_in_whole_seconds() {
        let wait = |ms| HttpProblem::from(Refusal { retry_after_ms: ms, ..Refusal::new(Code::Busy, "busy") });
        let header = |ms| wait(ms).into_response().headers().get(header::RETRY_AFTER).cloned();
        assert_eq!(header(None), None);
        assert_eq!(header(Some(0)).expect("there"), "1");
        assert_eq!(header(Some(2001)).expect("there"), "3");
    }
}
