//! Where the process stands in its life, for whoever has to know.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;

/// A process's life, in order: it never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It has its sockets but does not serve yet.
    #[default]
    Starting,
    /// It serves.
    Serving,
    /// It takes on nothing and lets running turns end.
    Draining,
    /// Its switchboard has nothing left to do: links are closed.
    Leaving,
}

/// The process's phase and health, shared: the app moves it, the driver reports, admin shows it.
#[derive(Clone, Debug, Default)]
pub struct Life {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    phase: watch::Sender<Phase>,
    /// Whether the store's latest answer was one.
    store_trouble: AtomicBool,
    /// What a drain still waits for.
    remaining: AtomicU64,
}

/// Why a process is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unready {
    /// It has not begun.
    Starting,
    /// It leaves.
    Draining {
        /// Sessions it still holds.
        remaining: u64,
    },
    /// The store does not answer.
    Store,
}

// === impl Life ===

impl Life {
    /// Moves on; a phase that lies behind changes nothing. Tells whether this was news.
    pub fn advance(&self, to: Phase) -> bool {
        self.shared.phase.send_if_modified(|phase| {
            let news = to > *phase;
            if news {
                *phase = to;
            }
            news
        })
    }

    /// The present phase.
    pub fn phase(&self) -> Phase {
        *self.shared.phase.borrow()
    }

    /// Waits until the process is in this phase, or a later one. Safe to drop and to ask again.
    pub async fn reached(&self, phase: Phase) {
        let mut watched = self.shared.phase.subscribe();
        // The sender is ours, so the wait cannot fail.
        let _ = watched.wait_for(|now| *now >= phase).await;
    }

    /// Notes whether the store answers.
    pub fn store_answers(&self, well: bool) {
        self.shared.store_trouble.store(!well, Ordering::Relaxed);
    }

    /// Notes what a drain still waits for.
    pub fn drain_remaining(&self, sessions: u64) {
        self.shared.remaining.store(sessions, Ordering::Relaxed);
    }

    /// Why the process should not be sent new work, if it should not.
    pub fn unready(&self) -> Option<Unready> {
        match self.phase() {
            Phase::Starting => Some(Unready::Starting),
            Phase::Draining | Phase::Leaving => {
                Some(Unready::Draining { remaining: self.shared.remaining.load(Ordering::Relaxed) })
            }
            Phase::Serving => self.shared.store_trouble.load(Ordering::Relaxed).then_some(Unready::Store),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_life_never_goes_back() {
        let life = Life::default();
        assert_eq!(life.unready(), Some(Unready::Starting));
        assert!(life.advance(Phase::Serving) && !life.advance(Phase::Starting));
        assert_eq!(life.unready(), None);
        life.store_answers(false);
        assert_eq!(life.unready(), Some(Unready::Store));
        life.drain_remaining(3);
        assert!(life.advance(Phase::Draining) && !life.advance(Phase::Draining));
        assert_eq!(life.unready(), Some(Unready::Draining { remaining: 3 }));
        life.reached(Phase::Serving).await;
    }
}
