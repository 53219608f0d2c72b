//! Implements cross-origin resource sharing (Fetch Standard, "HTTP CORS protocol") for pages whose origin is listed
//! (`listen.origins`): answers preflights and allows answers to be read. Other origins are allowed nothing.
use crate::response::{self, Body};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use turnway_core::planted::{Planted, planted};

/// Seconds for which a browser may cache a preflight: one hour.
const MAX_AGE: HeaderValue = HeaderValue::from_static("3600");
/// Methods of the HTTP interfaces.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, DELETE");
/// Response headers that a page may read besides the safelisted ones.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "retry-after, retry-after-ms, x-should-retry, x-session-id, x-request-id, www-authenticate",
);

/// Returns the answer to a preflight, or `None` if the request is something else.
pub(super) fn preflight<B>(request: &Request<B>) -> Option<Response<Body>> {
    let headers = request.headers();
    let origin = headers.get(header::ORIGIN)?;
    let is_preflight =
        request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if !is_preflight {
        return None;
    }
    let mut response = response::text(StatusCode::NO_CONTENT, "");
    let to = response.headers_mut();
    to.remove(header::CONTENT_TYPE);
    to.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // Any header is allowed: only headers that programs send as well are read.
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        to.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    to.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    allow(to, origin);
    Some(response)
}

/// Allows the requesting page to read an answer. The caller has checked the origin.
pub(super) fn share(response: &mut Response<Body>, origin: &HeaderValue) {
    let headers = response.headers_mut();
    if !planted(Planted::CorsExposesNothing) {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    allow(headers, origin);
}

/// Allows an origin. Credentials are not allowed: nothing that a browser adds by itself authenticates here.
fn allow(headers: &mut HeaderMap, origin: &HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    if planted(Planted::CorsVaryMissing) {
        return;
    }
    headers.append(header::VARY, HeaderValue::from_name(HeaderName::from_static("origin")));
}
