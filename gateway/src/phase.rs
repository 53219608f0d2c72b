//! Where the process stands in its life, and why it should not be sent new work, for whoever has to know.
mod readiness;

pub use readiness::Reason;

use readiness::Readiness;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Its store is closed: only the process's end is left.
    Left,
}

/// The process's phase and health, shared: the app moves it, the driver reports, admin shows it.
#[derive(Clone, Debug, Default)]
pub struct Life {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    phase: watch::Sender<Phase>,
    readiness: Readiness,
    /// The store's file is not where the next start will look for it.
    store_gone: watch::Sender<bool>,
    /// Sessions that are closed off, because their records are damaged.
    store_damaged: AtomicU64,
    /// What a drain still waits for.
    remaining: AtomicU64,
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

    /// Reports that a condition holds, or no longer holds. Only a change is logged, so it may be said often.
    pub fn report(&self, reason: Reason, holds: bool) {
        self.shared.readiness.set(reason, holds, || self.phase() == Phase::Starting);
    }

    /// Reports that the store does not answer, unless it has answered with its own reason.
    pub fn report_store_away(&self) {
        if !self.shared.readiness.store_has_said_why() {
            self.report(Reason::StoreAway, true);
        }
    }

    /// Notes that the store's file is gone: for good.
    pub fn store_gone(&self) {
        self.report(Reason::StoreDamaged, true);
        self.shared.store_gone.send_replace(true);
    }

    /// Waits until the process is to leave and cannot record anything on its way. Safe to drop and to ask again.
    pub async fn left_without_store(&self) {
        let mut gone = self.shared.store_gone.subscribe();
        // The sender is ours, so the wait cannot fail.
        let _ = gone.wait_for(|gone| *gone).await;
        self.reached(Phase::Draining).await;
    }

    /// Notes how many sessions are closed off, because their records are damaged.
    pub fn store_damaged(&self, sessions: usize) {
        self.shared.store_damaged.store(sessions as u64, Ordering::Relaxed);
    }

    /// Sessions that are closed off, because their records are damaged. They do not make a process unready.
    pub fn damaged_sessions(&self) -> u64 {
        self.shared.store_damaged.load(Ordering::Relaxed)
    }

    /// Notes what a drain still waits for.
    pub fn drain_remaining(&self, sessions: u64) {
        self.shared.remaining.store(sessions, Ordering::Relaxed);
    }

    /// Returns every reason why the process should not be sent new work; none: it is ready.
    pub fn reasons(&self) -> Vec<Reason> {
        let phase = match self.phase() {
            Phase::Starting => Some(Reason::Starting),
            Phase::Draining | Phase::Leaving | Phase::Left => Some(Reason::Draining),
            Phase::Serving => None,
        };
        phase.into_iter().chain(self.shared.readiness.reasons()).collect()
    }

    /// Waits until this condition does not hold. Safe to drop and to ask again.
    pub async fn without(&self, reason: Reason) {
        self.shared.readiness.without(reason).await;
    }

    /// Whether the process may be sent new work.
    pub fn is_ready(&self) -> bool {
        self.reasons().is_empty()
    }

    /// Returns how many sessions a draining process still holds; none while it does not drain.
    pub fn remaining(&self) -> Option<u64> {
        (self.phase() >= Phase::Draining).then(|| self.shared.remaining.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_life_never_goes_back() {
        let life = Life::default();
        assert_eq!(life.reasons(), [Reason::Starting]);
        assert!(life.advance(Phase::Serving) && !life.advance(Phase::Starting));
        assert!(life.is_ready());
        life.report(Reason::StoreAway, true);
        assert_eq!(life.reasons(), [Reason::StoreAway]);
        life.drain_remaining(3);
        assert_eq!(life.remaining(), None);
        assert!(life.advance(Phase::Draining) && !life.advance(Phase::Draining));
        assert_eq!((life.reasons(), life.remaining()), (vec![Reason::Draining, Reason::StoreAway], Some(3)));
        life.reached(Phase::Serving).await;
    }

    #[test]
    fn store_that_says_why_is_not_called_away() {
        let life = Life::default();
        life.advance(Phase::Serving);
        life.report(Reason::StoreFull, true);
        life.report_store_away();
        assert_eq!(life.reasons(), [Reason::StoreFull]);
        life.report(Reason::StoreFull, false);
        life.report_store_away();
        assert_eq!(life.reasons(), [Reason::StoreAway]);
    }
}
