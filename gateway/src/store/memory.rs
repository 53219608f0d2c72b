//! The `memory:` store: the core's model store behind a lock. Its contents are lost with the process.
use crate::store::embedded::{Clock, Wall};
use crate::store::{Answers, Filled, Store};
use std::sync::{Mutex, PoisonError};
use turnway_core::limits;
use turnway_core::store::quota::{Measure, Quotas};
use turnway_core::store::{Op, Shelf};

/// A store on the core's model that answers on the caller's thread, before `submit` returns.
pub struct Memory {
    shelf: Mutex<Shelf>,
    wall: Wall,
    answers: Answers,
    filled: Filled,
}

impl Memory {
    /// Creates an empty store, bounded by the users' quotas and in total by [`limits::MEMORY_STORE_BYTES_MAX`].
    pub fn new(clock: Clock, quotas: Quotas, filled: Filled, answers: Answers) -> Self {
        let shelf = Shelf::metered(Measure::Weight, quotas, Some(limits::MEMORY_STORE_BYTES_MAX));
        filled(0, Some(limits::MEMORY_STORE_BYTES_MAX));
        Self { shelf: Mutex::new(shelf), wall: Wall::new(clock), answers, filled }
    }
}

impl Store for Memory {
    fn submit(&self, op: Op) {
        // The reply is delivered outside the lock, because the receiver may submit again at once.
        let reply = {
            let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
            let before = shelf.stored_bytes();
            let reply = shelf.apply(self.wall.now(), &op);
            if shelf.stored_bytes() != before {
                (self.filled)(shelf.stored_bytes(), Some(limits::MEMORY_STORE_BYTES_MAX));
            }
            reply
        };
        (self.answers)(op, Ok(reply));
    }
}
