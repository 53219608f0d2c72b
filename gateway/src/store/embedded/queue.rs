//! The queue of ops that wait for the writer thread. Filled by the store's callers.
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use turnway_core::store::Op;

/// A bounded queue that is emptied in batches and allocates only as it fills.
pub(super) struct OpQueue {
    state: Mutex<OpQueueState>,
    wakeup: Condvar,
    max: usize,
}

struct OpQueueState {
    ops: VecDeque<Op>,
    open: bool,
}

/// The result of taking a batch from the queue.
pub(super) enum TakeResult {
    /// At least one op.
    Ops(Vec<Op>),
    /// No op arrived in time.
    Idle,
    /// The queue is closed and empty.
    Closed,
}

impl OpQueue {
    pub(super) fn new(max: usize) -> Self {
        Self { state: Mutex::new(OpQueueState { ops: VecDeque::new(), open: true }), wakeup: Condvar::new(), max }
    }

    fn lock(&self) -> MutexGuard<'_, OpQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().open
    }

    /// Adds an op; returns the op if the queue is full or closed.
    pub(super) fn push(&self, op: Op) -> Option<Op> {
        let mut state = self.lock();
        if !state.open || state.ops.len() >= self.max {
            return Some(op);
        }
        state.ops.push_back(op);
        drop(state);
        self.wakeup.notify_one();
        None
    }

    /// Takes the queued ops, at most `max`. Waits while the queue is empty, for `wait` or without limit.
    pub(super) fn take(&self, max: usize, wait: Option<Duration>) -> TakeResult {
        let state = self.lock();
        let empty = |state: &mut OpQueueState| state.ops.is_empty() && state.open;
        let mut state = match wait {
            None => self.wakeup.wait_while(state, empty).unwrap_or_else(PoisonError::into_inner),
            Some(wait) => {
                let waited = self.wakeup.wait_timeout_while(state, wait, empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if state.ops.is_empty() {
            return if state.open { TakeResult::Idle } else { TakeResult::Closed };
        }
        let count = state.ops.len().min(max);
        TakeResult::Ops(state.ops.drain(..count).collect())
    }

    /// Closes the queue for new ops; queued ops can still be taken.
    pub(super) fn close(&self) {
        self.lock().open = false;
        self.wakeup.notify_all();
    }
}
