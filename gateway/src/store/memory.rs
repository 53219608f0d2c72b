//! `memory:` — the model itself as a store; forgets everything with the process.
use crate::store::embedded::{Clock, Wall};
use crate::store::{Answers, Store};
use std::sync::{Mutex, PoisonError};
use turnway_core::store::{Op, Shelf};

/// A [`Shelf`] behind a lock: answers on the caller's thread, before `submit` returns.
pub struct Memory {
    shelf: Mutex<Shelf>,
    wall: Wall,
    answers: Answers,
}

impl Memory {
    /// An empty one.
    pub fn new(clock: Clock, answers: Answers) -> Self {
        Self { shelf: Mutex::new(Shelf::new(false)), wall: Wall::new(clock), answers }
    }
}

impl Store for Memory {
    fn submit(&self, op: Op) {
        // The answer is given outside of the lock: whoever takes it may ask again at once.
        let reply = {
            let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
            shelf.apply(self.wall.now(), &op)
        };
        (self.answers)(op, Ok(reply));
    }
}
