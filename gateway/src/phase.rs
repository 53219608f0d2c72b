//! The lifecycle phase of the process, and the reasons why the node is not ready. Set by `app`, the driver and the
//! store; read by the listeners, `admin` and `http`.
mod readiness;

pub use readiness::UnreadyReason;

use readiness::Readiness;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// A phase of the process, in order; the phase never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodePhase {
    /// The node has its sockets and does not serve yet.
    #[default]
    Starting,
    /// The node serves.
    Serving,
    /// The node accepts no new work and lets running turns end.
    Draining,
    /// The switchboard has nothing left to do; links are being closed.
    Stopping,
    /// The store is closed; only the end of the process is left.
    Stopped,
}

/// The process's phase and readiness. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    shared: Arc<LifecycleInner>,
}

#[derive(Debug, Default)]
struct LifecycleInner {
    phase: watch::Sender<NodePhase>,
    readiness: Readiness,
    /// True if the store's file is not where the next start will look for it.
    store_gone: watch::Sender<bool>,
    /// Sessions that are unavailable, because their records are damaged.
    store_damaged: AtomicU64,
    /// Sessions that a drain still waits for.
    remaining: AtomicU64,
}

// === impl Lifecycle ===

impl Lifecycle {
    /// Advances to a phase; an earlier phase changes nothing. Returns whether the phase changed.
    pub fn advance(&self, to: NodePhase) -> bool {
        self.shared.phase.send_if_modified(|phase| {
            let is_later = to > *phase;
            if is_later {
                *phase = to;
            }
            is_later
        })
    }

    /// Returns the present phase.
    pub fn phase(&self) -> NodePhase {
        *self.shared.phase.borrow()
    }

    /// Waits until the process is in this phase or a later one. Cancel-safe.
    pub async fn wait_for_phase(&self, phase: NodePhase) {
        let mut watched = self.shared.phase.subscribe();
        // The sender is owned by `self`, so the wait cannot fail.
        let _ = watched.wait_for(|now| *now >= phase).await;
    }

    /// Reports that a condition holds, or no longer holds. Only a change is logged, so this may be called often.
    pub fn report(&self, reason: UnreadyReason, holds: bool) {
        self.shared.readiness.set(reason, holds, || self.phase() == NodePhase::Starting);
    }

    /// Reports that the store does not answer, unless the store has answered with a more precise reason.
    pub fn report_store_away(&self) {
        if !self.shared.readiness.has_store_refusal() {
            self.report(UnreadyReason::StoreAway, true);
        }
    }

    /// Records that the store's file is gone, which is permanent.
    pub fn report_store_gone(&self) {
        self.report(UnreadyReason::StoreDamaged, true);
        self.shared.store_gone.send_replace(true);
    }

    /// Waits until the process drains while its store's file is gone, so that nothing can be recorded. Cancel-safe.
    pub async fn wait_drain_without_store(&self) {
        let mut gone = self.shared.store_gone.subscribe();
        // The sender is owned by `self`, so the wait cannot fail.
        let _ = gone.wait_for(|gone| *gone).await;
        self.wait_for_phase(NodePhase::Draining).await;
    }

    /// Records how many sessions are unavailable because their records are damaged.
    pub fn set_damaged_sessions(&self, sessions: usize) {
        self.shared.store_damaged.store(sessions as u64, Ordering::Relaxed);
    }

    /// Returns how many sessions are unavailable because their records are damaged. They do not make the node unready.
    pub fn damaged_sessions(&self) -> u64 {
        self.shared.store_damaged.load(Ordering::Relaxed)
    }

    /// Records how many sessions a drain still waits for.
    pub fn set_drain_remaining(&self, sessions: u64) {
        self.shared.remaining.store(sessions, Ordering::Relaxed);
    }

    /// Returns every reason why the node is not ready; empty if it is ready.
    pub fn reasons(&self) -> Vec<UnreadyReason> {
        let phase = match self.phase() {
            NodePhase::Starting => Some(UnreadyReason::Starting),
            NodePhase::Draining | NodePhase::Stopping | NodePhase::Stopped => Some(UnreadyReason::Draining),
            NodePhase::Serving => None,
        };
        phase.into_iter().chain(self.shared.readiness.reasons()).collect()
    }

    /// Waits until this condition does not hold. Cancel-safe.
    pub async fn wait_cleared(&self, reason: UnreadyReason) {
        self.shared.readiness.wait_cleared(reason).await;
    }

    /// Returns whether the node may be sent new work.
    pub fn is_ready(&self) -> bool {
        self.reasons().is_empty()
    }

    /// Returns how many sessions a draining node still holds; `None` if it does not drain.
    pub fn remaining(&self) -> Option<u64> {
        (self.phase() >= NodePhase::Draining).then(|| self.shared.remaining.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn phase_never_goes_back() {
        let life = Lifecycle::default();
        assert_eq!(life.reasons(), [UnreadyReason::Starting]);
        assert!(life.advance(NodePhase::Serving) && !life.advance(NodePhase::Starting));
        assert!(life.is_ready());
        life.report(UnreadyReason::StoreAway, true);
        assert_eq!(life.reasons(), [UnreadyReason::StoreAway]);
        life.set_drain_remaining(3);
        assert_eq!(life.remaining(), None);
        assert!(life.advance(NodePhase::Draining) && !life.advance(NodePhase::Draining));
        assert_eq!(
            (life.reasons(), life.remaining()),
            (vec![UnreadyReason::Draining, UnreadyReason::StoreAway], Some(3))
        );
        life.wait_for_phase(NodePhase::Serving).await;
    }

    #[test]
    fn store_with_a_specific_reason_is_not_reported_away() {
        let life = Lifecycle::default();
        life.advance(NodePhase::Serving);
        life.report(UnreadyReason::StoreFull, true);
        life.report_store_away();
        assert_eq!(life.reasons(), [UnreadyReason::StoreFull]);
        life.report(UnreadyReason::StoreFull, false);
        life.report_store_away();
        assert_eq!(life.reasons(), [UnreadyReason::StoreAway]);
    }
}
