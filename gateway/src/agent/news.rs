//! What an HTTP agent is told of its actions while it answers: `POST {endpoint}/event` (protocol.md §2), one after the
//! other, in their order.
//!
//! Nothing is made of its answers: what it has not taken it is told with its next input, from the log. Each has its
//! fact's id as its name, so a repeat is known.
use crate::agent::attempt::Line;
use crate::agent::http::{Client, HttpAgent};
use crate::agent::request;
use http::HeaderValue;
use std::sync::Arc;
use turnway_core::limits;

/// Tells of one after the other, until it is dropped with its attempt.
pub(super) async fn tell(agent: Arc<HttpAgent>, client: Client, line: Arc<Line>, auth: HeaderValue) {
    loop {
        let news = line.news().await;
        let Ok(request) = request::news(&news, &agent.endpoint, auth.clone()) else { continue };
        for _ in 0..limits::STEER_TRIES_MAX {
            let answer = tokio::time::timeout(limits::STEER_ACK, client.request(request.clone())).await;
            if matches!(answer, Ok(Ok(_))) {
                break;
            }
        }
    }
}
