//! Delivers the small requests beside an attempt's response (steer, cancel, event). Retries a few times, for a short
//! time, while the agent cannot take the request; each carries an `Idempotency-Key`, so that the agent recognises a
//! repeat.
use crate::agent::request::FullRequest;
use crate::outbound::client::OutboundClient;
use http::{Response, StatusCode};
use hyper::body::Incoming;
use std::time::Duration;
use turnway_core::limits;

/// Pause between two tries, unless the agent asks for a longer one.
const PAUSE: Duration =
    Duration::from_millis(limits::STEER_ACK_TIMEOUT.as_millis() as u64 / (limits::STEER_TRIES_MAX as u64 + 1));

/// Sends a request until the agent gives a final answer; `each` is the timeout of one try. Returns the last response,
/// which may still be a temporary refusal, or `None` if the last try had no response.
pub(super) async fn deliver(
    client: &OutboundClient,
    request: &FullRequest,
    each: Duration,
) -> Option<Response<Incoming>> {
    let mut last = None;
    for number in 1..=limits::STEER_TRIES_MAX {
        let answer = tokio::time::timeout(each, client.send(request.clone())).await;
        let pause = match answer {
            Ok(Ok(response)) if !is_temporary(response.status()) => return Some(response),
            Ok(Ok(response)) => {
                let pause = client.retry_after(response.headers()).unwrap_or(PAUSE).max(PAUSE);
                last = Some(response);
                pause
            }
            Ok(Err(_)) | Err(_) => {
                last = None;
                PAUSE
            }
        };
        // An agent that asks for a longer pause gets no further try: the information reaches the agent on another way.
        if number == limits::STEER_TRIES_MAX || pause > limits::STEER_ACK_TIMEOUT {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    last
}

/// Returns whether a status is a temporary refusal by the agent or by a proxy in front of the agent.
fn is_temporary(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}
