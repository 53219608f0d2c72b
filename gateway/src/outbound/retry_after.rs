//! Parses `Retry-After` of an HTTP response (RFC 9110 section 10.2.3): seconds, or a date. Used by `client` and
//! `keys::provider`.
use http::{HeaderMap, HeaderName, header};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Millis;

/// Returns how long a response asks the client to wait, at most [`limits::AGENT_RETRY_AFTER_MAX`]. A date is compared
/// with the response's own `Date`, so that a wrong local clock does not matter; without a `Date`, with `now`.
pub(crate) fn retry_after(headers: &HeaderMap, now: Millis) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // More digits than the integer type holds.
        Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => Duration::MAX,
        Err(_) => {
            let until = httpdate::parse_http_date(text).ok()?;
            let from = date(headers, header::DATE).unwrap_or(UNIX_EPOCH + Duration::from_millis(now.0));
            until.duration_since(from).unwrap_or_default()
        }
    };
    let most = if planted(Planted::AgentRetryAfterUncapped) { Duration::MAX } else { limits::AGENT_RETRY_AFTER_MAX };
    Some(wait.min(most))
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn retry_after_is_parsed_as_seconds_or_date() {
        // Wed, 21 Oct 2015 07:28:00 GMT
        let now = Millis(1_445_412_480_000);
        for (text, expected) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Wed, 21 Oct 2015 07:28:30 GMT", Some(30)),
            ("Wednesday, 21-Oct-15 07:28:30 GMT", Some(30)),
            ("Wed Oct 21 07:28:30 2015", Some(30)),
            ("Wed, 21 Oct 2015 07:27:00 GMT", Some(0)),
            ("999999999", Some(24 * 60 * 60)),
            ("99999999999999999999999999", Some(24 * 60 * 60)),
            ("soon", None),
            ("-1", None),
            ("1.5", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(text));
            assert_eq!(retry_after(&headers, now), expected.map(Duration::from_secs), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn retry_after_date_is_relative_to_the_servers_clock() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("Wed, 21 Oct 2015 07:28:30 GMT"));
        headers.insert(header::DATE, HeaderValue::from_static("Wed, 21 Oct 2015 07:28:20 GMT"));
        assert_eq!(retry_after(&headers, Millis(0)), Some(Duration::from_secs(10)));
    }
}
