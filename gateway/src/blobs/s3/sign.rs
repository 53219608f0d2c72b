//! Signs requests by AWS Signature Version 4, in headers. The payload of an upload is not part of its signature, because its
//! hash is not known before its end. Called by `client`.
use super::credentials::AccessKey;
use aws_lc_rs::{digest, hmac};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use std::fmt::Write;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Millis;

/// SHA-256 of nothing: the payload of requests without a body.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// The parts of a request that its signature covers, besides the headers that signing adds.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignableRequest<'a> {
    pub(super) method: &'a Method,
    /// Absolute path of unreserved characters and slashes, which need no encoding.
    pub(super) path: &'a str,
    /// Encoded, and sorted by name.
    pub(super) query: &'a str,
    pub(super) host: &'a str,
    pub(super) has_body: bool,
}

/// A reason why a request cannot be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotSignable;

/// Returns the headers that sign a request.
pub(super) fn sign(
    request: SignableRequest<'_>,
    key: &AccessKey,
    region: &str,
    at: Millis,
) -> Result<HeaderMap, NotSignable> {
    let time = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()).ok_or(NotSignable)?;
    let time = time.strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = &time[..8];
    let payload = if request.has_body { UNSIGNED_PAYLOAD } else { EMPTY_SHA256 };
    // In the order of their names, as the canonical form has them.
    let mut signed = vec![(header::HOST, request.host), (CONTENT_SHA256, payload), (DATE, &*time)];
    if let Some(token) = key.token() {
        signed.push((SECURITY_TOKEN, token));
    }
    if planted(Planted::S3HostUnsigned) {
        signed.remove(0);
    }
    let names = signed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
    let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, request.query);
    for (name, value) in &signed {
        let _ = writeln!(canonical, "{name}:{value}");
    }
    let _ = write!(canonical, "\n{names}\n{payload}");
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!(
        "{ALGORITHM}\n{time}\n{scope}\n{}",
        hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref())
    );
    let signature = hex(hmac_of(signing_key(key, day, region).as_ref(), &text).as_ref());
    let authorization =
        format!("{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", key.id());
    let mut headers = HeaderMap::new();
    for (name, value) in signed {
        headers.insert(name, HeaderValue::from_str(value).map_err(|_| NotSignable)?);
    }
    headers.insert(header::HOST, HeaderValue::from_str(request.host).map_err(|_| NotSignable)?);
    let mut authorization = HeaderValue::try_from(authorization).map_err(|_| NotSignable)?;
    // Left out of debug output, as the token.
    authorization.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, authorization);
    if let Some(token) = headers.get_mut(SECURITY_TOKEN) {
        token.set_sensitive(true);
    }
    Ok(headers)
}

/// Derives the key of one day, region and service from the secret.
fn signing_key(key: &AccessKey, day: &str, region: &str) -> hmac::Tag {
    let first = hmac_of(format!("AWS4{}", key.secret()).as_bytes(), day);
    [region, "s3", "aws4_request"].iter().fold(first, |above, text| hmac_of(above.as_ref(), text))
}

fn hmac_of(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a signature against the one that AWS documents for a list of objects ("Signature Calculations for the
    /// Authorization Header", example "GET Bucket (List Objects)").
    ///
    /// Covers: PR-24.
    #[test]
    fn list_request_has_the_documented_signature() {
        let text =
            "AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE\nAWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let key = AccessKey::parse(text).expect("a key");
        let request = SignableRequest {
            method: &Method::GET,
            path: "/",
            query: "max-keys=2&prefix=J",
            host: "examplebucket.s3.amazonaws.com",
            has_body: false,
        };
        // 24 May 2013, 00:00:00 UTC.
        let headers = sign(request, &key, "us-east-1", Millis(1_369_353_600_000)).expect("signed");
        assert_eq!(headers[DATE], "20130524T000000Z");
        assert_eq!(
            headers[header::AUTHORIZATION],
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-content-sha256;x-amz-date, \
             Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
        assert!(!format!("{headers:?}").contains("AKIA"), "{headers:?}");
    }
}
