//! Requests of the author that the adapter does not interpret, such as `bind`: sent once, and answered or lost.
use crate::adapter::output::{AdapterEffects, AdapterOutput};
use crate::error::ClientError;
use crate::frame::IncomingMessage;
use crate::limits;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The requests without an answer, with the time at which each counts as lost.
#[derive(Debug, Default)]
pub(crate) struct PlainRequests(BTreeMap<u64, Duration>);

// === impl PlainRequests ===

impl PlainRequests {
    /// Sends a request under a number, by which the answer is found.
    pub(crate) fn send(
        &mut self,
        request: u64,
        mut message: Value,
        bytes_max: usize,
        fx: &mut AdapterEffects,
    ) -> Result<(), ClientError> {
        if !message.get("type").is_some_and(Value::is_string) {
            return Err(ClientError::BadName { what: "message: expected an object with a type" });
        }
        if fx.connection.is_none() {
            return Err(ClientError::ConnectionLost);
        }
        if self.0.len() >= limits::PLAIN_REQUESTS_AT_A_TIME {
            return Err(ClientError::TooMany { what: "requests", max: limits::PLAIN_REQUESTS_AT_A_TIME });
        }
        message["request_id"] = fx.request_id(request).into();
        let text = message.to_string();
        if text.len() > bytes_max {
            return Err(ClientError::TooLarge { bytes: text.len(), max: bytes_max });
        }
        self.0.insert(request, fx.now.elapsed + limits::ANSWER_TIMEOUT);
        fx.send(text);
        Ok(())
    }

    /// Handles an answer. Returns whether a request waits for it.
    pub(crate) fn handle_answer(&mut self, request: u64, frame: &IncomingMessage, fx: &mut AdapterEffects) -> bool {
        if self.0.remove(&request).is_none() {
            return false;
        }
        let answer = match frame.kind() {
            "error" => Err(ClientError::Refused {
                code: frame.string("code").unwrap_or_default(),
                message: frame.string("message").unwrap_or_default(),
                retryable: frame.flag("retryable"),
            }),
            _ => Ok(Value::Object(frame.body().clone())),
        };
        fx.push(AdapterOutput::Answered { request, answer });
        true
    }

    /// Handles the loss of the connection: nobody knows whether the requests were performed.
    pub(crate) fn handle_lost(&mut self, fx: &mut AdapterEffects) {
        for request in std::mem::take(&mut self.0).into_keys() {
            fx.push(AdapterOutput::Answered { request, answer: Err(ClientError::ConnectionLost) });
        }
    }

    /// Gives up requests without an answer.
    pub(crate) fn handle_timeout(&mut self, fx: &mut AdapterEffects) {
        let now = fx.now.elapsed;
        let late: Vec<u64> = self.0.iter().filter(|(_, until)| **until <= now).map(|(request, _)| *request).collect();
        for request in late {
            self.0.remove(&request);
            fx.push(AdapterOutput::Answered { request, answer: Err(ClientError::ConnectionLost) });
        }
    }

    /// Returns the time of the next action.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.0.values().min().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
