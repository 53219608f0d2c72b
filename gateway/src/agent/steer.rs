//! Passes inputs to an HTTP agent while it answers: `POST {endpoint}/steer` (protocol.md §2). A `steer_ack` event may
//! follow the response. A request is resent if the connection is lost (the agent knows a repeat by its idempotency
//! key); without a response the session runtime times out.
use crate::agent::deliver::deliver;
use crate::agent::http::HttpAgent;
use crate::agent::request;
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::Response;
use hyper::body::Incoming;
use serde::Deserialize;
use turnway_core::limits;
use turnway_core::protocol::steer::{Steer, SteerOutcome};

/// Maximum bytes of the response body.
const RESPONSE_BYTES_MAX: usize = 4 * 1024;

/// The body of a response.
#[derive(Deserialize)]
struct SteerResponse {
    outcome: String,
}

/// Sends the input. Returns `None` if the agent has not answered in time.
pub(super) async fn deliver_steer(agent: &HttpAgent, steer: &Steer, auth: HeaderValue) -> Option<SteerOutcome> {
    let Ok(request) = request::steer(steer, &agent.endpoint, auth) else {
        return Some(SteerOutcome::Refused);
    };
    let handed = async {
        let response = deliver(&agent.client, &request, limits::STEER_ACK_TIMEOUT).await?;
        read_outcome(response).await
    };
    tokio::time::timeout(limits::STEER_ACK_TIMEOUT, handed).await.ok().flatten()
}

/// Reads the outcome from a response. An unknown outcome counts as refused: the input then becomes a turn of its own,
/// and is not lost.
async fn read_outcome(response: Response<Incoming>) -> Option<SteerOutcome> {
    let Some(silent) = outcome_of_status(response.status()) else { return Some(SteerOutcome::Refused) };
    match Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await {
        Ok(body) => Some(outcome(silent, &body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Some(SteerOutcome::Refused),
        // A truncated response may have said anything.
        Err(_) => None,
    }
}

/// Returns the outcome that a status stands for without a body, or `None` if the status is no success.
fn outcome_of_status(status: StatusCode) -> Option<SteerOutcome> {
    match status {
        StatusCode::OK | StatusCode::NO_CONTENT => Some(SteerOutcome::Accepted),
        StatusCode::ACCEPTED => Some(SteerOutcome::Pending),
        _ => None,
    }
}

fn outcome(silent: SteerOutcome, body: &[u8]) -> SteerOutcome {
    let body = body.trim_ascii();
    if body.is_empty() {
        return silent;
    }
    // serde would accept an array of the fields in order.
    let receipt = body.starts_with(b"{").then(|| serde_json::from_slice(body).ok()).flatten();
    let outcome = receipt.and_then(|receipt: SteerResponse| SteerOutcome::parse(&receipt.outcome));
    outcome.unwrap_or(SteerOutcome::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: ST-8.
    #[test]
    fn steering_receipt_is_read_from_body_or_status() {
        for (status, body, expected) in [
            (200, "{\"outcome\":\"accepted\"}", SteerOutcome::Accepted),
            (200, "{\"outcome\":\"pending\",\"more\":1}", SteerOutcome::Pending),
            (202, " {\"outcome\":\"refused\"}\n", SteerOutcome::Refused),
            (202, "{\"outcome\":\"accepted\"}", SteerOutcome::Accepted),
            (200, "", SteerOutcome::Accepted),
            (204, " ", SteerOutcome::Accepted),
            (202, "", SteerOutcome::Pending),
        ] {
            assert_eq!(receipt(status, body), expected, "{status} {body}");
        }
    }

    fn receipt(status: u16, body: &str) -> SteerOutcome {
        let silent = outcome_of_status(StatusCode::from_u16(status).expect("a status"));
        silent.map_or(SteerOutcome::Refused, |silent| outcome(silent, body.as_bytes()))
    }

    /// Covers: ST-8, ST-9.
    #[test]
    fn unreadable_steering_receipt_counts_as_refused() {
        for body in [
            "ok",
            "{}",
            "null",
            "true",
            "\"accepted\"",
            "[\"accepted\"]",
            "{\"outcome\":\"rejected\"}",
            "{\"outcome\":\"REFUSED\"}",
            "{\"outcome\":\"Accepted\"}",
            "{\"outcome\":null}",
            "{\"outcome\":true}",
            "{\"outcome\":{\"accepted\":null}}",
            "{\"outcome\":[\"accepted\"]}",
            "{\"outcome\":\"refused\",\"outcome\":\"accepted\"}",
            "{\"status\":\"accepted\"}",
            "{\"outcome\":\"accepted\"",
            "<html>please log in</html>",
        ] {
            for status in [200, 202, 204] {
                assert_eq!(receipt(status, body), SteerOutcome::Refused, "{status} {body}");
            }
        }
        for status in [100, 201, 203, 205, 206, 207, 299, 301, 302, 304, 307, 400, 404, 409, 500, 501] {
            for body in ["", "{\"outcome\":\"accepted\"}"] {
                assert_eq!(receipt(status, body), SteerOutcome::Refused, "{status} {body}");
            }
        }
    }
}
