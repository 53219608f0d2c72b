//! What Redis says against being used, told once in the log with what to do about it, and as a reason why the node is
//! not ready. Calls report what they are refused; `guard` finds out when it is over.
use crate::phase::{Life, Reason};
use crate::redis::refusal::{Complaint, advice, complaint};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use turnway_core::limits;

/// A renewal that takes so long is told of: half of what is possible.
const FAR: Duration = Duration::from_secs(1);

/// What holds now. Shared by everything that asks the store something.
#[derive(Debug, Default)]
pub(super) struct Health {
    life: Life,
    /// What was told in the log of each kind, and is not over.
    told: Mutex<Vec<(Complaint, String)>>,
    /// The server was found to be far away.
    far: AtomicBool,
}

impl Health {
    /// The health of a store, reported to this process.
    pub(super) fn new(life: Life) -> Self {
        Self { life, told: Mutex::default(), far: AtomicBool::default() }
    }

    /// Notes a refusal. Only one that an operator can do something about is reported.
    pub(super) fn refused(&self, code: &str, detail: &str) {
        let Some(kind) = complaint(code, detail) else { return };
        let said = format!("{code} {detail}");
        if self.add(kind, &said) {
            tracing::error!(said, "Redis refuses what it is asked: {}", advice(code));
        }
        self.life.report(reason(kind), true);
    }

    /// Notes that nothing of this kind is refused any more.
    pub(super) fn over(&self, kind: Complaint) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.len();
        told.retain(|(of, _)| *of != kind);
        if told.len() < before {
            drop(told);
            self.life.report(reason(kind), false);
        }
    }

    /// Whether something of this kind was refused and is not known to be over.
    pub(super) fn has(&self, kind: Complaint) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(of, _)| *of == kind)
    }

    /// Notes how long a renewal of the lease took: from so far away that it may be lost, it is told.
    pub(super) fn renewal_took(&self, took: Duration) {
        if took >= FAR && !self.far.swap(true, Ordering::Relaxed) {
            let (lease, most) = (limits::LEASE, limits::LEASE - limits::LEASE_MARGIN - limits::LEASE_RENEW);
            tracing::warn!(?took, ?lease, ?most, "Redis is far away: beyond `most` no lease can be held");
        } else if took < FAR / 2 && self.far.swap(false, Ordering::Relaxed) {
            tracing::info!(?took, "Redis is near again");
        }
    }

    /// Reports whether the server gives less than is promised.
    pub(super) fn unfit(&self, is_unfit: bool) {
        self.life.report(Reason::StoreUnfit, is_unfit);
    }

    /// Adds what was said; whether that is news.
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
    fn refusals_are_reasons_until_they_are_over() {
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
