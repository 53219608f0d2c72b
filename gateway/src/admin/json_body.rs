//! Reads the JSON bodies of operators' requests, and refuses requests. Called by the pages that change something.
use bytes::{Buf, Bytes};
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::error::Error;
use turnway_core::protocol::refusal::{Code, Refusal};

/// Maximum body size: a few names and numbers.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// The status and refusal of a failed request.
pub(super) struct AdminRefusal(pub(super) StatusCode, pub(super) Refusal);

/// Reads a JSON body.
pub(super) async fn read_json<T: DeserializeOwned, B>(headers: &HeaderMap, body: B) -> Result<T, AdminRefusal>
where
    B: BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    // A browser page cannot send this content type without a preflight.
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        return Err(invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type: expected application/json"));
    }
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
    let body: Bytes = body.map_err(|_| bad_request("the body ended early, or is too large"))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| bad_request(error.to_string()))
}

/// Returns the refusal of a request that is invalid, with this status.
pub(super) fn invalid(status: StatusCode, why: impl Into<Cow<'static, str>>) -> AdminRefusal {
    AdminRefusal(status, Refusal::new(Code::InvalidMessage, why))
}

/// Returns the refusal of a request whose content is invalid.
pub(super) fn bad_request(why: impl Into<Cow<'static, str>>) -> AdminRefusal {
    invalid(StatusCode::BAD_REQUEST, why)
}
