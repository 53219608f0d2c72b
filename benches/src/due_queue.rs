//! Queue of the times at which one connection's requests are due. The run fills it; the connection waits on it.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Instant;
use tokio::sync::Notify;

/// Maximum overdue requests of one connection; further ones are counted as unanswered.
const OVERDUE_MAX: usize = 65_536;

/// Due times of a connection's requests, with a notification when one is added.
#[derive(Debug, Default)]
pub struct DueQueue {
    due: RefCell<VecDeque<Instant>>,
    notify: Notify,
}

// === impl DueQueue ===

impl DueQueue {
    /// Adds a request that is due at `at`, and wakes the connection.
    pub fn push(&self, at: Instant) {
        let mut due = self.due.borrow_mut();
        if due.len() < OVERDUE_MAX {
            due.push_back(at);
        }
        self.notify.notify_one();
    }

    /// Takes the earliest due time.
    pub fn pop(&self) -> Option<Instant> {
        self.due.borrow_mut().pop_front()
    }

    /// Returns whether no request is due.
    pub fn is_empty(&self) -> bool {
        self.due.borrow().is_empty()
    }

    /// Waits until a request is due or the load is over. Cancel safe.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }

    /// Wakes the connection without adding a request.
    pub fn wake(&self) {
        self.notify.notify_one();
    }
}
