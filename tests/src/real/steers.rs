//! What agents are handed while they answer (`POST …/steer`), and what they make of it.
use serde_json::Value;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// One `POST …/steer`, as the agent saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steered {
    /// The run that is to take it.
    pub run_id: String,
    /// `attempt`.
    pub attempt: u64,
    /// `message_id`.
    pub message_id: String,
    /// Its text, whose first word says what becomes of it: `refuse`; `keep` (the first attempt never answers);
    /// anything else is taken.
    pub text: String,
}

/// All of them so far.
#[derive(Debug, Default)]
pub struct Steers {
    seen: Mutex<Vec<Steered>>,
    more: Notify,
}

impl Steers {
    /// Every one so far.
    pub fn seen(&self) -> Vec<Steered> {
        self.lock().clone()
    }

    /// Waits until there is one that fits.
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

    /// Takes the next; the word of its answer, or none where there is to be no answer.
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
