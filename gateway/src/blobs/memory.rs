//! Bodies in the memory of the process, for a store in memory: that store counts their bytes in its own limit.
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use turnway_core::id::{BodyId, SessionKey};

use super::BodyError;

type Bodies = BTreeMap<(SessionKey, BodyId), Arc<Vec<Bytes>>>;

/// Bodies in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryBodies(Arc<Mutex<Bodies>>);

/// A body that is being stored.
#[derive(Debug)]
pub struct MemoryWriter {
    bodies: MemoryBodies,
    key: (SessionKey, BodyId),
    parts: Vec<Bytes>,
}

/// A body that is being read.
#[derive(Debug)]
pub struct MemoryReader(VecDeque<Bytes>);

// === impl MemoryBodies ===

impl MemoryBodies {
    fn locked(&self) -> MutexGuard<'_, Bodies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, session: &SessionKey, body: BodyId) -> MemoryWriter {
        MemoryWriter { bodies: self.clone(), key: (session.clone(), body), parts: Vec::new() }
    }

    pub(super) fn open(&self, session: &SessionKey, body: BodyId) -> Result<MemoryReader, BodyError> {
        let parts = self.locked().get(&(session.clone(), body)).cloned().ok_or(BodyError::Missing)?;
        Ok(MemoryReader(parts.iter().cloned().collect()))
    }

    pub(super) fn delete(&self, session: &SessionKey, body: BodyId) {
        self.locked().remove(&(session.clone(), body));
    }

    pub(super) fn sessions(&self) -> Vec<SessionKey> {
        let mut sessions: Vec<_> = self.locked().keys().map(|(session, _)| session.clone()).collect();
        sessions.dedup();
        sessions
    }

    pub(super) fn bodies(&self, session: &SessionKey) -> Vec<BodyId> {
        let first = Bound::Included((session.clone(), BodyId(0)));
        let last = Bound::Included((session.clone(), BodyId(u128::MAX)));
        self.locked().range((first, last)).map(|((_, body), _)| *body).collect()
    }
}

// === impl MemoryWriter and MemoryReader ===

impl MemoryWriter {
    pub(super) fn write(&mut self, bytes: Bytes) {
        // An empty part would end the body for its reader. A part may be a small piece of a large buffer, which it would keep.
        if !bytes.is_empty() {
            self.parts.push(Bytes::copy_from_slice(&bytes));
        }
    }

    pub(super) fn finish(self) {
        let Self { bodies, key, parts } = self;
        bodies.locked().insert(key, Arc::new(parts));
    }
}

impl MemoryReader {
    pub(super) fn next_part(&mut self) -> Option<Bytes> {
        self.0.pop_front()
    }
}
