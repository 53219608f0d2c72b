//! The `memory:` store: the core's model store behind a lock. Its contents are lost with the process.
use crate::store::embedded::{ClockFn, StoreClock};
use crate::store::{AnswerSink, Store, UsageCallback};
use std::sync::{Mutex, PoisonError};
use turnway_core::limits;
use turnway_core::store::quota::{ByteMeasure, Quotas};
use turnway_core::store::{ModelStore, Op};

/// A store on the core's model that answers on the caller's thread, before `submit` returns.
pub struct MemoryStore {
    model: Mutex<ModelStore>,
    clock: StoreClock,
    answers: AnswerSink,
    on_usage: UsageCallback,
}

impl MemoryStore {
    /// Creates an empty store, bounded by the users' quotas and in total by [`limits::MEMORY_STORE_BYTES_MAX`].
    pub fn new(clock: ClockFn, quotas: Quotas, on_usage: UsageCallback, answers: AnswerSink) -> Self {
        let model = ModelStore::metered(ByteMeasure::Weight, quotas, Some(limits::MEMORY_STORE_BYTES_MAX));
        on_usage(0, Some(limits::MEMORY_STORE_BYTES_MAX));
        Self { model: Mutex::new(model), clock: StoreClock::new(clock), answers, on_usage }
    }
}

impl Store for MemoryStore {
    fn submit(&self, op: Op) {
        // The reply is delivered outside the lock, because the receiver may submit again at once.
        let reply = {
            let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
            let before = model.stored_bytes();
            let reply = model.apply(self.clock.now(), &op);
            if model.stored_bytes() != before {
                (self.on_usage)(model.stored_bytes(), Some(limits::MEMORY_STORE_BYTES_MAX));
            }
            reply
        };
        (self.answers)(op, Ok(reply));
    }
}
