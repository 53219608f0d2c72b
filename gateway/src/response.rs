//! Builders of HTTP responses, shared by every listener.
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};

/// A response body: complete, or a stream.
pub use axum::body::Body;

/// A marker in the response's extensions: the request showed a credential that the gateway never issued. Not sent to
/// the client.
#[derive(Clone, Copy, Debug)]
pub struct UnknownCredential;

/// A problem document (RFC 9457).
#[derive(Serialize)]
struct ProblemBody<'a> {
    title: &'a str,
    status: u16,
    code: Code,
    detail: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// The stored value, if it is not as the request says (RFC 9457, extension members).
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<&'a RawValue>,
}

/// Builds a response of this content type.
pub fn build(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(content.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Builds a response with a body of any kind.
pub fn of_body(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Builds a JSON response.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    build(status, "application/json", serde_json::to_vec(value).unwrap_or_default())
}

/// Builds a response without a body.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Builds a plain text response.
pub fn text(status: StatusCode, content: &'static str) -> Response<Body> {
    build(status, "text/plain; charset=utf-8", content)
}

/// Builds a problem document for a refusal without a retry time.
pub fn problem(status: StatusCode, code: Code, detail: impl Into<Cow<'static, str>>) -> Response<Body> {
    refused(status, &Refusal::new(code, detail))
}

/// Builds a problem document for a refusal, with `Retry-After` if the refusal has a retry time.
pub fn refused(status: StatusCode, refusal: &Refusal) -> Response<Body> {
    problem_response(status, refusal, None)
}

/// Builds a problem document for a refused compare and set; `current` is the JSON of what is stored.
pub fn refused_with_current(status: StatusCode, refusal: &Refusal, current: &str) -> Response<Body> {
    problem_response(status, refusal, serde_json::from_str(current).ok())
}

fn problem_response(status: StatusCode, refusal: &Refusal, current: Option<&RawValue>) -> Response<Body> {
    let Refusal { code, message, retry_after_ms } = refusal;
    let title = status.canonical_reason().unwrap_or_default();
    let retryable = code.retryable();
    let code = *code;
    let detail = &**message;
    let retry_after_ms = *retry_after_ms;
    let problem = ProblemBody { title, status: status.as_u16(), code, detail, retryable, retry_after_ms, current };
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = build(status, "application/problem+json", body);
    if let Some(ms) = retry_after_ms.filter(|_| !planted(Planted::RetryAfterHeaderMissing)) {
        // Rounded up to whole seconds, at least one.
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
    }
    response
}
