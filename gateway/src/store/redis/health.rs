//! Problems that Redis reports: each kind is logged once with advice, and reported as a reason why the node is not
//! ready. Calls report refusals; the monitor finds out when a problem is resolved.
use crate::phase::{Lifecycle, UnreadyReason};
use crate::redis::server_error::{ServerCondition, advice, classify};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use turnway_core::limits;

/// Renewal time from which a warning is logged: half of what still allows a node to hold a lease.
const SLOW_RENEWAL: Duration = Duration::from_secs(1);

/// The current problems, shared by everything that sends commands to the store.
#[derive(Debug, Default)]
pub(super) struct StoreHealth {
    lifecycle: Lifecycle,
    /// Problems that were logged and are not resolved.
    active: Mutex<Vec<(ServerCondition, String)>>,
    /// True if the server was found to be slow to reach.
    is_slow: AtomicBool,
}

impl StoreHealth {
    /// Creates the state; problems are reported to `life`.
    pub(super) fn new(lifecycle: Lifecycle) -> Self {
        Self { lifecycle, active: Mutex::default(), is_slow: AtomicBool::default() }
    }

    /// Records a refusal. Only a refusal that an operator can remedy is reported.
    pub(super) fn record_refusal(&self, code: &str, detail: &str) {
        let Some(kind) = classify(code, detail) else { return };
        let refusal = format!("{code} {detail}");
        if self.add(kind, &refusal) {
            tracing::error!(refusal, "Redis refuses commands: {}", advice(code));
        }
        self.lifecycle.report(reason(kind), true);
    }

    /// Records that refusals of this kind are resolved.
    pub(super) fn resolve(&self, kind: ServerCondition) {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let before = active.len();
        active.retain(|(of, _)| *of != kind);
        if active.len() < before {
            drop(active);
            self.lifecycle.report(reason(kind), false);
        }
    }

    /// Returns whether a refusal of this kind is unresolved.
    pub(super) fn has(&self, kind: ServerCondition) -> bool {
        self.active.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(of, _)| *of == kind)
    }

    /// Records the duration of a lease renewal and warns if it is so long that the lease may be lost.
    pub(super) fn record_renewal(&self, took: Duration) {
        if took >= SLOW_RENEWAL && !self.is_slow.swap(true, Ordering::Relaxed) {
            let lease = limits::LEASE;
            let most = limits::LEASE - limits::LEASE_MARGIN - limits::LEASE_RENEW;
            let what = "Redis answers slowly: with round trips above `most` no lease can be held";
            tracing::warn!(?took, ?lease, ?most, "{what}");
        } else if took < SLOW_RENEWAL / 2 && self.is_slow.swap(false, Ordering::Relaxed) {
            tracing::info!(?took, "Redis answers quickly again");
        }
    }

    /// Reports whether the server guarantees less than is required.
    pub(super) fn set_unfit(&self, is_unfit: bool) {
        self.lifecycle.report(UnreadyReason::StoreUnfit, is_unfit);
    }

    /// Adds a problem; returns whether it is new.
    fn add(&self, kind: ServerCondition, error_text: &str) -> bool {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        if active.iter().any(|(of, _)| *of == kind) {
            return false;
        }
        active.push((kind, error_text.to_owned()));
        true
    }
}

fn reason(kind: ServerCondition) -> UnreadyReason {
    match kind {
        ServerCondition::Full => UnreadyReason::StoreFull,
        ServerCondition::ReadOnly => UnreadyReason::StoreReadOnly,
        ServerCondition::Forbidden => UnreadyReason::StoreForbidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::NodePhase;

    #[test]
    fn store_refusals_are_readiness_reasons_until_resolved() {
        let life = Lifecycle::default();
        life.advance(NodePhase::Serving);
        let health = StoreHealth::new(life.clone());
        health.record_refusal("ERR", "Function not found");
        assert!(life.is_ready());
        health.record_refusal("OOM", "command not allowed when used memory > 'maxmemory'.");
        health.record_refusal("NOPERM", "User app has no permissions to run the 'fcall' command");
        assert_eq!(life.reasons(), [UnreadyReason::StoreFull, UnreadyReason::StoreForbidden]);
        health.resolve(ServerCondition::Full);
        assert!(!health.has(ServerCondition::Full) && health.has(ServerCondition::Forbidden));
        assert_eq!(life.reasons(), [UnreadyReason::StoreForbidden]);
    }
}
