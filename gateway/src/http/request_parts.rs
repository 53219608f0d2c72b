//! Reads the parts of a request within limits: a JSON body, headers that may occur once, names in the path.
use crate::http::problem::HttpProblem;
use crate::response::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::time::Duration;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::json::malformed::MalformedReason;

/// Longest time from a request's headers to the end of its body: bodies are small, and a slow body occupies a
/// connection.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest pause of a large body: a client that sends nothing for so long is gone.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Bytes of a refused body that are read so that the client gets its answer: the largest file and half as much.
const DISCARDED_BYTES_MAX: usize = 24 * 1024 * 1024;
/// Longest time for them.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Header with the id of the last event that the client received.
pub const LAST_EVENT_ID: &str = "last-event-id";

/// Reads a JSON body of at most [`limits::MESSAGE_BYTES_MAX`] as text.
pub async fn read_json(headers: &HeaderMap, body: Body) -> Result<String, HttpProblem> {
    require_json(headers)?;
    let bytes_max = limits::MESSAGE_BYTES_MAX;
    let bytes_max = if planted(Planted::HttpBodyDoubled) { bytes_max * 2 } else { bytes_max };
    let collected = Limited::new(body, bytes_max).collect();
    match tokio::time::timeout(BODY_TIMEOUT, collected).await {
        Ok(Ok(collected)) => {
            String::from_utf8(collected.to_bytes().into()).map_err(|_| HttpProblem::invalid("the body is not UTF-8"))
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_long()),
        Ok(Err(_)) => Err(HttpProblem::invalid("the body ended early")),
        Err(_) => Err(too_slow()),
    }
}

/// Reads a large JSON body of at most `bytes_max` bytes as text, as long as an upload may take.
pub async fn read_large_json(headers: &HeaderMap, body: &mut Body, bytes_max: usize) -> Result<String, HttpProblem> {
    require_json(headers)?;
    let received = async {
        // The text is in memory once, whatever the parts are.
        let mut text = Vec::with_capacity(bytes_max);
        while let Some(part) = next_part(body).await? {
            if part.len() > bytes_max - text.len() {
                return Err(too_long());
            }
            text.extend_from_slice(&part);
        }
        String::from_utf8(text).map_err(|_| HttpProblem::invalid("the body is not UTF-8"))
    };
    tokio::time::timeout(limits::UPLOAD_KEPT, received).await.unwrap_or_else(|_| Err(too_slow()))
}

/// Returns the next bytes of a request's body; none at its end.
pub async fn next_part(body: &mut Body) -> Result<Option<Bytes>, HttpProblem> {
    loop {
        match tokio::time::timeout(PAUSE_MAX, body.frame()).await {
            Err(_) => return Err(too_slow()),
            Ok(None) => return Ok(None),
            Ok(Some(Err(_))) => return Err(HttpProblem::invalid("the body ended early")),
            // Trailers are no content.
            Ok(Some(Ok(frame))) => {
                if let Ok(part) = frame.into_data() {
                    return Ok(Some(part));
                }
            }
        }
    }
}

/// Reads the rest of a refused body: many clients read an answer only once they have sent everything, and lose it if the
/// connection is closed before.
pub async fn discard(mut body: Body) {
    let rest = async {
        let mut bytes = 0;
        while bytes < DISCARDED_BYTES_MAX {
            match next_part(&mut body).await {
                Ok(Some(part)) => bytes += part.len(),
                Ok(None) | Err(_) => return,
            }
        }
    };
    // A client that sends still more, or too slowly, loses the answer.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, rest).await;
}

/// Returns the problem of a body that took too long.
pub fn too_slow() -> HttpProblem {
    HttpProblem::invalid("the body took too long").with_status(StatusCode::REQUEST_TIMEOUT)
}

fn too_long() -> HttpProblem {
    HttpProblem::new(Code::TooLarge, MalformedReason::TooLong.to_string())
}

/// Returns a header's text, if present. Fails if the header is repeated or not UTF-8.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, HttpProblem> {
    let mut all = headers.get_all(name).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes()).ok().filter(|_| all.next().is_none());
    text.map(Some).ok_or_else(|| HttpProblem::invalid(format!("{name}: expected once, as text")))
}

/// Returns the only variable part of a path.
pub fn path_parameter(path: Result<Path<String>, PathRejection>) -> Result<String, HttpProblem> {
    path.map(|Path(text)| text).map_err(|_| HttpProblem::invalid("the path is not UTF-8"))
}

/// Parses a part of the path as a name; text that is no valid name cannot name anything that exists.
pub fn parse_name<T, E: std::fmt::Display>(text: &str, parse: fn(&str) -> Result<T, E>) -> Result<T, HttpProblem> {
    parse(text).map_err(|why| HttpProblem::invalid(why.to_string()))
}

fn require_json(headers: &HeaderMap) -> Result<(), HttpProblem> {
    if is_json(headers) {
        return Ok(());
    }
    let problem = HttpProblem::invalid("content-type: expected application/json");
    Err(problem.with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|value| value.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn request_body_requires_the_json_content_type() {
        let with = |kind: &str| {
            let value = HeaderValue::from_str(kind).expect("a value");
            is_json(&HeaderMap::from_iter([(header::CONTENT_TYPE, value)]))
        };
        assert!(with("application/json") && with("Application/JSON; charset=utf-8"));
        assert!(!with("text/plain") && !with("application/jsonp") && !is_json(&HeaderMap::new()));
    }
}
