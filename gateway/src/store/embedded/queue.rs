//! What waits for the writer.
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use turnway_core::store::Op;

/// A bounded queue that is emptied in batches and grows only as it is used.
pub(super) struct Queue {
    state: Mutex<State>,
    bell: Condvar,
    max: usize,
}

struct State {
    ops: VecDeque<Op>,
    open: bool,
}

/// What the writer finds.
pub(super) enum Taken {
    /// These; at least one.
    Ops(Vec<Op>),
    /// Nothing came in time.
    Idle,
    /// Nothing is left, and nothing will come.
    Closed,
}

impl Queue {
    pub(super) fn new(max: usize) -> Self {
        Self { state: Mutex::new(State { ops: VecDeque::new(), open: true }), bell: Condvar::new(), max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().open
    }

    /// Puts one in; gives it back where there is no room or no writer.
    pub(super) fn push(&self, op: Op) -> Option<Op> {
        let mut state = self.lock();
        if !state.open || state.ops.len() >= self.max {
            return Some(op);
        }
        state.ops.push_back(op);
        drop(state);
        self.bell.notify_one();
        None
    }

    /// Takes what is there, at most `max`; waits where nothing is, for ever or for `wait`.
    pub(super) fn take(&self, max: usize, wait: Option<Duration>) -> Taken {
        let state = self.lock();
        let empty = |state: &mut State| state.ops.is_empty() && state.open;
        let mut state = match wait {
            None => self.bell.wait_while(state, empty).unwrap_or_else(PoisonError::into_inner),
            Some(wait) => {
                let waited = self.bell.wait_timeout_while(state, wait, empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if state.ops.is_empty() {
            return if state.open { Taken::Idle } else { Taken::Closed };
        }
        let count = state.ops.len().min(max);
        Taken::Ops(state.ops.drain(..count).collect())
    }

    /// Nothing more is taken in; what is in may still be taken out.
    pub(super) fn close(&self) {
        self.lock().open = false;
        self.bell.notify_all();
    }
}
