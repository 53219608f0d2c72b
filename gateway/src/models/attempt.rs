//! One request to one upstream: sends it, waits for the head of the answer, and tells whether another upstream may be asked
//! instead. Holds no state.
use super::ModelCall;
use super::answer::{AnswerOf, ModelAnswer};
use super::headers::key_header;
use super::request::PiecedBody;
use super::upstream::Upstream;
use crate::clock::Clock;
use crate::metrics::ModelAttemptOutcome;
use crate::outbound::client::OutboundError;
use http::{Method, Request, StatusCode, Uri};
use tokio::sync::OwnedSemaphorePermit;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;

/// The result of one request.
pub(super) enum UpstreamReply {
    /// An answer for the caller.
    Answer(Box<ModelAnswer>),
    /// An answer of an upstream that has not served the call: it may be asked again, or another one.
    NotServed(Box<ModelAnswer>),
    /// No connection: the upstream has not seen the call.
    Unreachable,
    /// The provider's key was refused.
    Unauthorized,
    /// The connection broke before the head of an answer. The upstream may have served the call.
    Broken,
    /// No head in time. The upstream may have served the call.
    TimedOut,
}

/// Sends a call to an upstream.
pub(super) async fn attempt(
    upstream: &Upstream,
    request: &ModelCall,
    place: OwnedSemaphorePermit,
    deadline: Mono,
    clock: &Clock,
) -> UpstreamReply {
    let now = clock.mono();
    let Some(message) = message(upstream, request, now) else { return UpstreamReply::Broken };
    let times = upstream.spec.times;
    let wait = times.first_byte.min(deadline - now);
    let response = match tokio::time::timeout(wait, upstream.client.send(message)).await {
        Ok(Ok(response)) => response,
        Ok(Err(OutboundError::Unreachable(why))) => {
            tracing::warn!(upstream = upstream.spec.id, why, "an upstream of models cannot be reached");
            upstream.record_failure(clock.mono());
            return UpstreamReply::Unreachable;
        }
        Ok(Err(OutboundError::Failed(error))) => {
            tracing::warn!(upstream = upstream.spec.id, %error, "the connection to an upstream of models broke");
            upstream.record_failure(clock.mono());
            return if planted(Planted::BrokenCallRetried) {
                UpstreamReply::Unreachable
            } else {
                UpstreamReply::Broken
            };
        }
        Err(_) => {
            tracing::warn!(upstream = upstream.spec.id, "an upstream of models does not answer in time");
            upstream.record_failure(clock.mono());
            return if planted(Planted::TimedOutCallRetried) {
                UpstreamReply::Unreachable
            } else {
                UpstreamReply::TimedOut
            };
        }
    };
    let status = response.status();
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) && !planted(Planted::KeyErrorRelayed) {
        // Such bodies repeat parts of the key.
        tracing::error!(
            upstream = upstream.spec.id,
            status = status.as_u16(),
            "an upstream refuses the provider's key"
        );
        return UpstreamReply::Unauthorized;
    }
    let of = AnswerOf { format: request.format, hides_usage: request.call.asks_usage(), times, deadline, place };
    let mut answer = Box::new(ModelAnswer::new(response, of, clock.clone()));
    if is_failure(status) || answer.begins_with_error().await {
        upstream.record_failure(clock.mono());
        return if is_failure(status) && !was_not_served(status) {
            UpstreamReply::Answer(answer)
        } else {
            UpstreamReply::NotServed(answer)
        };
    }
    upstream.record_success();
    if was_not_served(status) { UpstreamReply::NotServed(answer) } else { UpstreamReply::Answer(answer) }
}

/// Builds the request of a call; none if a part of it is no header or URL, which parsed values always are.
fn message(upstream: &Upstream, request: &ModelCall, now: Mono) -> Option<Request<PiecedBody>> {
    let upstream_model = upstream.spec.upstream_model.as_deref().unwrap_or(request.call.model());
    let pieces = request.call.upstream_body(&request.body, upstream_model, request.call.asks_usage());
    let mut message = Request::new(PiecedBody::new(pieces));
    *message.method_mut() = Method::POST;
    *message.uri_mut() = uri(upstream, request)?;
    *message.headers_mut() = request.headers.clone();
    if let Some(key) = upstream.key.current(now) {
        let (name, value) = key_header(&key, upstream.spec.key_header, request.format)?;
        message.headers_mut().insert(name, value);
    }
    Some(message)
}

fn uri(upstream: &Upstream, request: &ModelCall) -> Option<Uri> {
    let uri = upstream.uri(request.format);
    match request.query {
        None => Some(uri.clone()),
        Some(query) => format!("{uri}?{query}").parse().ok(),
    }
}

/// Returns whether a status says that the call was not served.
fn was_not_served(status: StatusCode) -> bool {
    // 529 is Anthropic's "overloaded".
    matches!(status.as_u16(), 429 | 502 | 503 | 529)
}

/// Returns whether a status counts as a failure of the upstream. One that lacks a format does not fail.
fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

// === impl UpstreamReply ===

impl UpstreamReply {
    /// Returns the outcome as a label.
    pub(super) fn outcome(&self) -> ModelAttemptOutcome {
        match self {
            Self::Answer(_) => ModelAttemptOutcome::Answered,
            Self::NotServed(_) => ModelAttemptOutcome::NotServed,
            Self::Unreachable => ModelAttemptOutcome::Unreachable,
            Self::Unauthorized => ModelAttemptOutcome::Unauthorized,
            Self::Broken => ModelAttemptOutcome::Broken,
            Self::TimedOut => ModelAttemptOutcome::TimedOut,
        }
    }
}
