//! Problems that Redis reports: each kind is logged once with advice, and reported as a reason why the node is not
//! ready. Calls report refusals; the monitor finds out when a problem is resolved.
use crate::phase::{Life, Reason};
use crate::redis::refusal::{Complaint, advice, complaint};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use turnway_core::limits;

/// Renewal time from which a warning is logged: half of what still allows a node to hold a lease.
const FAR: Duration = Duration::from_secs(1);

/// The current problems, shared by everything that sends commands to the store.
#[derive(Debug, Default)]
pub(super) struct Health {
    life: Life,
    /// Problems that were logged and are not resolved.
    told: Mutex<Vec<(Complaint, String)>>,
    /// Whether the server was found to be slow to reach.
    far: AtomicBool,
}

impl Health {
    /// Creates the state; problems are reported to `life`.
    pub(super) fn new(life: Life) -> Self {
        Self { life, told: Mutex::default(), far: AtomicBool::default() }
    }

    /// Records a refusal. Only a refusal that an operator can remedy is reported.
    pub(super) fn refused(&self, code: &str, detail: &str) {
        let Some(kind) = complaint(code, detail) else { return };
        let said = format!("{code} {detail}");
        if self.add(kind, &said) {
            tracing::error!(said, "Redis refuses commands: {}", advice(code));
        }
        self.life.report(reason(kind), true);
    }

    /// Records that refusals of this kind are resolved.
    pub(super) fn over(&self, kind: Complaint) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.len();
        told.retain(|(of, _)| *of != kind);
        if told.len() < before {
            drop(told);
            self.life.report(reason(kind), false);
        }
    }

    /// Returns whether a refusal of this kind is unresolved.
    pub(super) fn has(&self, kind: Complaint) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(of, _)| *of == kind)
    }

    /// Records the duration of a lease renewal and warns if it is so long that the lease may be lost.
    pub(super) fn renewal_took(&self, took: Duration) {
        if took >= FAR && !self.far.swap(true, Ordering::Relaxed) {
            let (lease, most) = (limits::LEASE, limits::LEASE - limits::LEASE_MARGIN - limits::LEASE_RENEW);
            tracing::warn!(?took, ?lease, ?most, "Redis answers slowly: with round trips above `most` no lease can be held");
        } else if took < FAR / 2 && self.far.swap(false, Ordering::Relaxed) {
            tracing::info!(?took, "Redis answers quickly again");
        }
    }

    /// Reports whether the server guarantees less than is required.
    pub(super) fn unfit(&self, is_unfit: bool) {
        self.life.report(Reason::StoreUnfit, is_unfit);
    }

    /// Adds a problem; returns whether it is new.
    fn add(&self, kind: Complaint, said: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.iter().any(|(of, _)| *of == kind) {
            return false;
        }
        told.push((kind, said.to_owned()));
        true
    }
}

fn reason(kind: Complaint) -> Reason {
    match kind {
        Complaint::Full => Reason::StoreFull,
        Complaint::ReadOnly => Reason::StoreReadOnly,
        Complaint::Forbidden => Reason::StoreForbidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::Phase;

    #[test]
    fn store_refusals_are_readiness_reasons_until_resolved() {
        let life = Life::default();
        life.advance(Phase::Serving);
        let health = Health::new(life.clone());
        health.refused("ERR", "Function not found");
        assert!(life.is_ready());
        health.refused("OOM", "command not allowed when used memory > 'maxmemory'.");
        health.refused("NOPERM", "User app has no permissions to run the 'fcall' command");
        assert_eq!(life.reasons(), [Reason::StoreFull, Reason::StoreForbidden]);
        health.over(Complaint::Full);
        assert!(!health.has(Complaint::Full) && health.has(Complaint::Forbidden));
        assert_eq!(life.reasons(), [Reason::StoreForbidden]);
    }
}
