//! Inputs that are handed to an agent while it answers: `POST {endpoint}/steer` (protocol.md §2).
//!
//! What the agent answers there is its receipt; it may say more of it later, with a `steer_ack` in its stream. Each is
//! said again where the connection was lost, for the agent knows a repeat by its name; without any answer nothing is
//! reported, and the runtime knows how long it waits.
use crate::agent::client::Client;
use crate::agent::http::{HttpAgent, is_passing};
use crate::agent::request::{self, Whole};
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::Response;
use hyper::body::Incoming;
use serde::Deserialize;
use turnway_core::limits;
use turnway_core::protocol::steer::{Steer, SteerOutcome};

/// A receipt is a word.
const RECEIPT_BYTES_MAX: usize = 4 * 1024;

/// The body of an answer; one that says nothing has taken it.
#[derive(Deserialize)]
struct Receipt {
    outcome: SteerOutcome,
}

/// Hands it over; none: nobody has answered in time.
pub(super) async fn hand_over(
    agent: &HttpAgent,
    client: &Client,
    steer: &Steer,
    auth: HeaderValue,
) -> Option<SteerOutcome> {
    let Ok(request) = request::steer(steer, &agent.endpoint, auth) else {
        return Some(SteerOutcome::Refused);
    };
    tokio::time::timeout(limits::STEER_ACK, tries(client, &request)).await.ok().flatten()
}

async fn tries(client: &Client, request: &Whole) -> Option<SteerOutcome> {
    let mut outcome = None;
    for number in 1..=limits::STEER_TRIES_MAX {
        match client.request(request.clone()).await {
            Ok(response) if !is_passing(response.status()) => return read(response).await,
            Ok(_) => outcome = Some(SteerOutcome::Refused),
            Err(_) => outcome = None,
        }
        if number < limits::STEER_TRIES_MAX {
            tokio::time::sleep(limits::STEER_ACK / (limits::STEER_TRIES_MAX + 1)).await;
        }
    }
    outcome
}

/// Whoever answers that it cannot, or in words that nobody knows, has not taken it.
async fn read(response: Response<Incoming>) -> Option<SteerOutcome> {
    let status = response.status();
    if !status.is_success() {
        return Some(SteerOutcome::Refused);
    }
    // An answer that is cut off may have said anything.
    let body = Limited::new(response.into_body(), RECEIPT_BYTES_MAX).collect().await.ok()?.to_bytes();
    Some(outcome(status, &body))
}

fn outcome(status: StatusCode, body: &[u8]) -> SteerOutcome {
    let silent = if status == StatusCode::ACCEPTED { SteerOutcome::Pending } else { SteerOutcome::Accepted };
    if body.trim_ascii().is_empty() {
        return silent;
    }
    serde_json::from_slice(body).map_or(silent, |receipt: Receipt| receipt.outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: ST-8.
    #[test]
    fn a_receipt_is_a_word_or_a_status() {
        for (status, body, expected) in [
            (200, "{\"outcome\":\"accepted\"}", SteerOutcome::Accepted),
            (200, "{\"outcome\":\"pending\",\"more\":1}", SteerOutcome::Pending),
            (202, "{\"outcome\":\"refused\"}", SteerOutcome::Refused),
            (200, "", SteerOutcome::Accepted),
            (204, " ", SteerOutcome::Accepted),
            (202, "", SteerOutcome::Pending),
            (200, "ok", SteerOutcome::Accepted),
            (202, "{}", SteerOutcome::Pending),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(outcome(status, body.as_bytes()), expected, "{status} {body}");
        }
    }
}
