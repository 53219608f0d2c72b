//! The headers that pass between callers and upstreams, by allow-lists: everything else may name an account, a key or a
//! connection.
use crate::config::model::KeyHeader;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use turnway_core::private::Private;
use turnway_wire::model::CallFormat;

/// Headers of a call that reach the upstream.
const REQUEST_HEADERS: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::ACCEPT,
    HeaderName::from_static("anthropic-version"),
    HeaderName::from_static("anthropic-beta"),
    HeaderName::from_static("openai-beta"),
];

/// Headers of an answer that reach the caller.
const RESPONSE_HEADERS: [HeaderName; 9] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::RETRY_AFTER,
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("x-should-retry"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("openai-processing-ms"),
    HeaderName::from_static("openai-version"),
];
/// Beginnings of further such headers: what is left of the provider's rate.
const RESPONSE_PREFIXES: [&str; 2] = ["x-ratelimit-", "anthropic-ratelimit-"];

/// Returns the headers of a call for the upstream, without those of the key.
pub fn for_upstream(caller: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in REQUEST_HEADERS {
        for value in caller.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    // A compressed answer cannot be read beside its relay in every encoding, nor can an event be added to it.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}

/// Returns the headers of an answer for the caller.
pub fn for_caller(upstream: &HeaderMap) -> HeaderMap {
    let is_allowed = |name: &HeaderName| {
        RESPONSE_HEADERS.contains(name) || RESPONSE_PREFIXES.iter().any(|start| name.as_str().starts_with(start))
    };
    let allowed = upstream.iter().filter(|(name, _)| is_allowed(name));
    let mut headers = HeaderMap::new();
    for (name, value) in allowed {
        headers.append(name.clone(), value.clone());
    }
    headers
}

/// Returns the header with a provider's key. A key has visible ASCII characters only, so it always is a value.
pub(super) fn key_header(
    key: &Private<String>,
    which: KeyHeader,
    format: CallFormat,
) -> Option<(HeaderName, HeaderValue)> {
    let bearer = || (header::AUTHORIZATION, format!("Bearer {}", key.reveal()));
    let plain = |name| (HeaderName::from_static(name), key.reveal().to_owned());
    let (name, text) = match (which, format) {
        (KeyHeader::Authorization, _)
        | (KeyHeader::Auto, CallFormat::ChatCompletions | CallFormat::Responses | CallFormat::Embeddings) => bearer(),
        (KeyHeader::XApiKey, _) | (KeyHeader::Auto, CallFormat::Messages) => plain("x-api-key"),
        (KeyHeader::ApiKey, _) => plain("api-key"),
    };
    let mut value = HeaderValue::try_from(text).ok()?;
    // Keeps the value out of debug output, and out of the compression tables of HTTP/2.
    value.set_sensitive(true);
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(headers: &HeaderMap) -> Vec<&str> {
        headers.keys().map(HeaderName::as_str).collect()
    }

    /// Covers: PR-9.
    #[test]
    fn only_listed_headers_pass_in_each_direction() {
        let mut all = HeaderMap::new();
        for name in [
            "authorization",
            "x-api-key",
            "api-key",
            "cookie",
            "host",
            "x-user-id",
            "openai-organization",
            "connection",
            "content-type",
            "anthropic-version",
            "anthropic-beta",
            "openai-beta",
            "accept",
            "accept-encoding",
            "set-cookie",
            "x-ratelimit-remaining-tokens",
            "anthropic-ratelimit-requests-limit",
            "openai-organization",
            "retry-after",
            "request-id",
            "transfer-encoding",
            "content-encoding",
            "server",
        ] {
            all.insert(name, HeaderValue::from_static("v"));
        }
        let to_upstream = for_upstream(&all);
        let mut up = names(&to_upstream);
        up.sort_unstable();
        assert_eq!(
            up,
            ["accept", "accept-encoding", "anthropic-beta", "anthropic-version", "content-type", "openai-beta"]
        );
        assert_eq!(to_upstream["accept-encoding"], "identity");
        let to_caller = for_caller(&all);
        let mut down = names(&to_caller);
        down.sort_unstable();
        let expected = [
            "anthropic-ratelimit-requests-limit",
            "content-encoding",
            "content-type",
            "request-id",
            "retry-after",
            "x-ratelimit-remaining-tokens",
        ];
        assert_eq!(down, expected);
    }

    #[test]
    fn key_header_depends_on_the_format_unless_it_is_set() {
        let key = Private("sk-1".to_owned());
        let of = |which, format| key_header(&key, which, format).map(|(name, value)| (name.to_string(), value));
        let (name, value) = of(KeyHeader::Auto, CallFormat::Messages).expect("a header");
        assert_eq!((name.as_str(), value.to_str().expect("ASCII")), ("x-api-key", "sk-1"));
        assert!(!format!("{value:?}").contains("sk-1"), "{value:?}");
        let (name, value) = of(KeyHeader::Auto, CallFormat::Embeddings).expect("a header");
        assert_eq!((name.as_str(), value.to_str().expect("ASCII")), ("authorization", "Bearer sk-1"));
        assert_eq!(of(KeyHeader::ApiKey, CallFormat::Messages).expect("a header").0, "api-key");
        assert_eq!(of(KeyHeader::Authorization, CallFormat::Messages).expect("a header").0, "authorization");
    }
}
