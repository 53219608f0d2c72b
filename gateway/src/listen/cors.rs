//! Cross-origin resource sharing for pages whose origin is listed (`listen.origins`): the preflight is answered, and answers may
//! be read. Nothing is allowed to anybody else (Fetch Standard, "HTTP CORS protocol").
use crate::answer::{self, Body};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use turnway_core::planted::{Planted, planted};

/// Seconds for which a browser may remember a preflight: an hour, so that a page asks once.
const MAX_AGE: HeaderValue = HeaderValue::from_static("3600");
/// Methods that the HTTP interfaces have.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, DELETE");
/// Response headers that a page may read besides those that it always may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "retry-after, retry-after-ms, x-should-retry, x-session-id, x-request-id, www-authenticate",
);

/// Returns the answer to a preflight; none, if the request is something else.
pub(super) fn preflight<B>(request: &Request<B>) -> Option<Response<Body>> {
    let headers = request.headers();
    let origin = headers.get(header::ORIGIN)?;
    let is_preflight =
        request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if !is_preflight {
        return None;
    }
    let mut response = answer::text(StatusCode::NO_CONTENT, "");
    let to = response.headers_mut();
    to.remove(header::CONTENT_TYPE);
    to.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // Any header may be sent: none but those that a program sends, too, is read.
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        to.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    to.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    allow(to, origin);
    Some(response)
}

/// Lets the page that asked read an answer. Its origin was looked at before.
pub(super) fn share(response: &mut Response<Body>, origin: &HeaderValue) {
    let headers = response.headers_mut();
    if !planted(Planted::CorsExposesNothing) {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    allow(headers, origin);
}

/// Credentials are not allowed: nothing that a browser adds by itself is ever one here.
fn allow(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    if planted(Planted::CorsVaryMissing) {
        return;
    }
    headers.append(header::VARY, HeaderValue::from_name(HeaderName::from_static("origin")));
}
