//! Steering messages of agents (`POST …/steer`), and the agents' scripted answers.
use serde_json::Value;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// One `POST …/steer`, as the agent received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steered {
    /// Run that is to be steered.
    pub run_id: String,
    pub attempt: u64,
    pub message_id: String,
    /// Text, whose first word selects the answer: `refuse` refuses; `keep` gets no answer in the first attempt; any
    /// other is accepted.
    pub text: String,
}

/// All steering messages so far.
#[derive(Debug, Default)]
pub struct SteeringLog {
    seen: Mutex<Vec<Steered>>,
    more: Notify,
}

impl SteeringLog {
    /// Returns all messages so far.
    pub fn seen(&self) -> Vec<Steered> {
        self.lock().clone()
    }

    /// Waits for a message that fits.
    pub async fn until(&self, fits: impl Fn(&Steered) -> bool) -> Steered {
        loop {
            let more = self.more.notified();
            tokio::pin!(more);
            more.as_mut().enable();
            let found = self.lock().iter().find(|steered| fits(steered)).cloned();
            match found {
                Some(found) => return found,
                None => more.await,
            }
        }
    }

    /// Records the next message; returns the outcome to answer with, or `None` for no answer.
    pub(super) fn take(&self, body: &Value) -> Option<&'static str> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let steered = Steered {
            run_id: text(&body["run_id"]),
            attempt: body["attempt"].as_u64().unwrap_or_default(),
            message_id: text(&body["message_id"]),
            text: text(&body["message"]["content"]),
        };
        let answer = match steered.text.split(' ').next() {
            Some("refuse") => Some("refused"),
            Some("keep") if steered.attempt == 1 => None,
            Some(_) | None => Some("accepted"),
        };
        self.lock().push(steered);
        self.more.notify_waiters();
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Steered>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
