//! Refuses requests that a web page of another origin could have sent (cross-site request forgery). The operators'
//! listener requires no credential, so a request that a browser sends without a preflight must change nothing.
use crate::response::{self, Body};
use http::{HeaderMap, Method, Response, StatusCode, header};
use turnway_core::protocol::refusal::Code;

/// Header in which a browser describes the page that sends a request.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
/// Prefix of the headers that only browsers send, and that no page can omit.
const SEC_FETCH: &str = "sec-fetch-";

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CsrfRejection {
    /// Sent by a page of another origin.
    Origin,
    /// The content type needs no preflight, or is missing from a browser's request.
    ContentType,
}

// === impl CsrfRejection ===

impl CsrfRejection {
    /// Returns the refusal as a response.
    pub(super) fn answer(self) -> Response<Body> {
        match self {
            Self::Origin => {
                let why = "request of a web page of another origin; only pages of this address may change anything";
                response::problem(StatusCode::FORBIDDEN, Code::Forbidden, why)
            }
            Self::ContentType => response::problem(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Code::InvalidMessage,
                "content-type: expected application/json",
            ),
        }
    }
}

/// Checks a request that changes something. Programs such as curl send neither `Origin` nor `Sec-Fetch-*`, and may omit
/// the content type; a browser cannot omit all of these.
pub(super) fn check(method: &Method, headers: &HeaderMap) -> Result<(), CsrfRejection> {
    if method.is_safe() {
        return Ok(());
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let origin = origins.next();
    if let Some(origin) = origin {
        let host = headers.get(header::HOST).map_or(&b""[..], |host| host.as_bytes());
        let is_own = origin.as_bytes().strip_prefix(b"http://").is_some_and(|of| of.eq_ignore_ascii_case(host));
        if !is_own || origins.next().is_some() {
            return Err(CsrfRejection::Origin);
        }
    }
    if headers.get_all(SEC_FETCH_SITE).iter().any(|site| site != "same-origin") {
        return Err(CsrfRejection::Origin);
    }
    let is_browser = origin.is_some() || headers.keys().any(|name| name.as_str().starts_with(SEC_FETCH));
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    match (kinds.next(), kinds.next()) {
        (None, _) if is_browser => Err(CsrfRejection::ContentType),
        (None, _) => Ok(()),
        (Some(kind), None) if is_json(kind.as_bytes()) => Ok(()),
        (Some(_), _) => Err(CsrfRejection::ContentType),
    }
}

fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn checked(headers: &[(&str, &str)]) -> Result<(), CsrfRejection> {
        let mut map = HeaderMap::new();
        map.insert(header::HOST, HeaderValue::from_static("127.0.0.1:8081"));
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            map.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        check(&Method::POST, &map)
    }

    /// Covers: S-45.
    #[test]
    fn requests_without_browser_headers_are_accepted() {
        let json = ("content-type", "application/json");
        let own = ("origin", "http://127.0.0.1:8081");
        assert_eq!(checked(&[]), Ok(()), "curl -X POST");
        assert_eq!(checked(&[json]), Ok(()));
        assert_eq!(checked(&[("content-type", "Application/JSON; charset=utf-8")]), Ok(()));
        assert_eq!(checked(&[json, own, ("sec-fetch-site", "same-origin")]), Ok(()));
    }

    /// Covers: S-45.
    #[test]
    fn cross_origin_requests_are_refused() {
        let json = ("content-type", "application/json");
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://localhost:8081",
            "http://127.0.0.1",
            "http://127.0.0.1:3000",
            "https://127.0.0.1:8081",
            "http://127.0.0.1:8081.evil.example",
        ] {
            assert_eq!(checked(&[json, ("origin", origin)]), Err(CsrfRejection::Origin), "{origin}");
        }
        let twice = [json, ("origin", "http://127.0.0.1:8081"), ("origin", "http://127.0.0.1:8081")];
        assert_eq!(checked(&twice), Err(CsrfRejection::Origin));
        for site in ["cross-site", "same-site", "none", "", "new-word"] {
            assert_eq!(checked(&[json, ("sec-fetch-site", site)]), Err(CsrfRejection::Origin), "{site}");
        }
        for kind in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/json"]
        {
            assert_eq!(checked(&[("content-type", kind)]), Err(CsrfRejection::ContentType), "{kind}");
        }
        assert_eq!(checked(&[json, json]), Err(CsrfRejection::ContentType));
        assert_eq!(checked(&[("sec-fetch-mode", "no-cors")]), Err(CsrfRejection::ContentType));
    }
}
