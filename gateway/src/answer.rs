//! What HTTP answers are made of, on every listener.
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use std::borrow::Cow;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};

/// A body: whole, or a stream.
pub use axum::body::Body;

/// Goes with an answer to a request that has shown a credential which nobody has made; it is not sent.
#[derive(Clone, Copy, Debug)]
pub struct Guess;

/// RFC 9457.
#[derive(Serialize)]
struct Problem<'a> {
    title: &'a str,
    status: u16,
    code: Code,
    detail: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// An answer of this kind of content.
pub fn of(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(content.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// JSON.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    of(status, "application/json", serde_json::to_vec(value).unwrap_or_default())
}

/// Nothing but the status.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Plain text.
pub fn text(status: StatusCode, content: &'static str) -> Response<Body> {
    of(status, "text/plain; charset=utf-8", content)
}

/// A refusal as problem JSON.
pub fn problem(status: StatusCode, code: Code, detail: impl Into<Cow<'static, str>>) -> Response<Body> {
    refused(status, &Refusal::new(code, detail))
}

/// The same, with the time to come back, if there is one.
pub fn refused(status: StatusCode, refusal: &Refusal) -> Response<Body> {
    let Refusal { code, message, retry_after_ms } = refusal;
    let (title, retryable) = (status.canonical_reason().unwrap_or_default(), code.retryable());
    let (code, detail, retry_after_ms) = (*code, &**message, *retry_after_ms);
    let problem = Problem { title, status: status.as_u16(), code, detail, retryable, retry_after_ms };
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = of(status, "application/problem+json", body);
    if let Some(ms) = retry_after_ms.filter(|_| !planted(Planted::RetryAfterHeaderMissing)) {
        // Whole seconds, and never none at all.
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
    }
    response
}
