//! Delivery of the small requests beside an answer (steer, cancel, event): tried again while their agent cannot take them, a
//! few times and not for long. Each has a name (`Idempotency-Key`), so that its agent knows a repeat.
use crate::agent::client::Client;
use crate::agent::request::Whole;
use http::{Response, StatusCode};
use hyper::body::Incoming;
use std::time::Duration;
use turnway_core::limits;

/// Between two tries, where the agent does not say more.
const PAUSE: Duration =
    Duration::from_millis(limits::STEER_ACK.as_millis() as u64 / (limits::STEER_TRIES_MAX as u64 + 1));

/// Sends a request until its agent has answered with anything but "not now", `each` being the patience for one try. Returns the last
/// answer, "not now" too; none: the last try had no answer.
pub(super) async fn deliver(client: &Client, request: &Whole, each: Duration) -> Option<Response<Incoming>> {
    let mut last = None;
    for number in 1..=limits::STEER_TRIES_MAX {
        let answer = tokio::time::timeout(each, client.send(request.clone())).await;
        let pause = match answer {
            Ok(Ok(response)) if !is_passing(response.status()) => return Some(response),
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
        // Whoever wants to be left alone for longer is: what was to be said is said otherwise.
        if number == limits::STEER_TRIES_MAX || pause > limits::STEER_ACK {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    last
}

/// Whether a status says "not now" of the agent, or of what stands before it.
fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}
