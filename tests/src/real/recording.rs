//! Recording of a run by an agent that outlives its requests: every event sent, from which later requests are
//! served.
use super::agent::HungUp;
use bytes::Bytes;
use futures_util::Stream;
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// Events of one attempt at one run, with the ids 1, 2, 3, …
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) attempt: u64,
    events: Mutex<Vec<Bytes>>,
    /// Number of events, and the state of the run.
    heard: watch::Sender<(usize, RecordingState)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordingState {
    On,
    Over,
    Stopped,
}

impl Recording {
    pub(super) fn new(attempt: u64) -> Self {
        Self { attempt, events: Mutex::default(), heard: watch::channel((0, RecordingState::On)).0 }
    }

    /// Records the next event, with or without an open request.
    pub(super) fn say(&self, event: &str) -> Result<(), HungUp> {
        if self.heard.borrow().1 == RecordingState::Stopped {
            return Err(HungUp);
        }
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let many = events.len() + 1;
        events.push(format!("id: {many}\n{event}").into());
        self.heard.send_modify(|heard| heard.0 = many);
        Ok(())
    }

    /// Marks the end of the run.
    pub(super) fn end(&self) {
        self.heard
            .send_modify(|heard| heard.1 = if heard.1 == RecordingState::On { RecordingState::Over } else { heard.1 });
    }

    /// Marks the run as cancelled.
    pub(super) fn stop(&self) {
        self.heard.send_modify(|heard| heard.1 = RecordingState::Stopped);
    }

    /// Waits until the run is cancelled.
    pub(super) async fn stopped(&self) {
        // The sender lives as long as `self`, so an error is impossible.
        drop(self.heard.subscribe().wait_for(|heard| heard.1 == RecordingState::Stopped).await);
    }

    /// Returns the events after the first `known` ones, as they come.
    pub(super) fn after(self: std::sync::Arc<Self>, known: usize) -> impl Stream<Item = Bytes> {
        let heard = self.heard.subscribe();
        futures_util::stream::unfold((self, heard, known), |(tape, mut heard, known)| async move {
            let (many, _) = *heard.wait_for(|heard| heard.0 > known || heard.1 != RecordingState::On).await.ok()?;
            let event = (many > known).then(|| {
                let events = tape.events.lock().unwrap_or_else(PoisonError::into_inner);
                events.get(known).cloned()
            });
            Some((event??, (tape, heard, known + 1)))
        })
    }
}
