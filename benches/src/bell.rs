//! How a connection learns that it has something to send.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Instant;
use tokio::sync::Notify;

/// Turns of one connection that are overdue; what comes on top is counted as unanswered.
const OVERDUE_MAX: usize = 65_536;

/// Rings when a connection is to send something, and holds since when.
#[derive(Debug, Default)]
pub struct Bell {
    due: RefCell<VecDeque<Instant>>,
    notify: Notify,
}

// === impl Bell ===

impl Bell {
    /// Something is due, since then.
    pub fn ring(&self, at: Instant) {
        let mut due = self.due.borrow_mut();
        if due.len() < OVERDUE_MAX {
            due.push_back(at);
        }
        self.notify.notify_one();
    }

    /// What is due, the oldest first.
    pub fn take(&self) -> Option<Instant> {
        self.due.borrow_mut().pop_front()
    }

    /// Whether nothing is due.
    pub fn is_silent(&self) -> bool {
        self.due.borrow().is_empty()
    }

    /// Waits until something is due, or the load is over. Safe to drop and to ask again.
    pub async fn rung(&self) {
        self.notify.notified().await;
    }

    /// Wakes whoever waits, with nothing due.
    pub fn stir(&self) {
        self.notify.notify_one();
    }
}
