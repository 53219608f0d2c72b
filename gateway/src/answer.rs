//! What HTTP answers are made of, on every listener.
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

/// A body: whole, or a stream.
pub use axum::body::Body;

/// RFC 9457.
#[derive(Serialize)]
struct Problem<'a> {
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
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

/// Plain text.
pub fn text(status: StatusCode, content: &'static str) -> Response<Body> {
    of(status, "text/plain; charset=utf-8", content)
}

/// A refusal as problem JSON; `code` is one of the protocol's error codes.
pub fn problem(status: StatusCode, code: &str, detail: &str) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let problem = Problem { title, status: status.as_u16(), code, detail };
    of(status, "application/problem+json", serde_json::to_vec(&problem).unwrap_or_default())
}
