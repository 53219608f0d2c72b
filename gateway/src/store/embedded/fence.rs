//! Quarantine of sessions with a damaged record: every op on such a session is answered here and never reaches the
//! tables. Used by the engine and its batches.
use crate::store::embedded::fault::Fault;
use crate::store::embedded::tables;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turnway_core::id::SessionKey;
use turnway_core::limits;
use turnway_core::store::{Op, Refused, Reply};

/// The quarantined sessions.
pub(super) struct Fence {
    closed: BTreeSet<SessionKey>,
    /// Called with their number whenever it grows.
    told: Arc<dyn Fn(usize) + Send + Sync>,
}

// === impl Fence ===

impl Fence {
    pub(super) fn new(told: Arc<dyn Fn(usize) + Send + Sync>) -> Self {
        Self { closed: BTreeSet::new(), told }
    }

    /// Restores the sessions that were quarantined before this start.
    pub(super) fn take_over(&mut self, closed: &BTreeMap<Vec<u8>, String>) {
        self.closed.extend(closed.keys().filter_map(|prefix| Some(tables::split(prefix)?.0)));
        if !self.closed.is_empty() {
            tracing::error!(
                sessions = self.closed.len(),
                "sessions are quarantined because their records are damaged; run `turnway store check`"
            );
            (self.told)(self.closed.len());
        }
    }

    pub(super) fn is_closed(&self, key: &SessionKey) -> bool {
        !self.closed.is_empty() && self.closed.contains(key)
    }

    /// Quarantines a session. Fails once so many sessions are quarantined that the whole store is suspect.
    pub(super) fn close(&mut self, key: &SessionKey, fault: &Fault) -> Result<(), Fault> {
        if self.closed.len() >= limits::STORE_DAMAGED_SESSIONS_MAX {
            return Err(Fault::Structure("too many sessions are damaged"));
        }
        if self.closed.insert(key.clone()) {
            let (tenant, session) = (key.tenant.as_str(), key.session.as_str());
            tracing::error!(tenant, session, %fault, "a session is quarantined because a record is damaged; requests get store_damaged");
            (self.told)(self.closed.len());
        }
        Ok(())
    }
}

/// Returns the reply to an op on a quarantined session: owners are fenced, unsubscribing succeeds.
pub(super) fn closed_off(op: &Op) -> Reply {
    match op {
        Op::Append(_) | Op::Keep(_) | Op::Release { .. } | Op::Transfer { .. } | Op::Trim { .. } => {
            Reply::Fenced
        }
        Op::Unlisten { .. } | Op::Expire { .. } => Reply::Done,
        Op::Accept { .. }
        | Op::Control { .. }
        | Op::Delete { .. }
        | Op::Forget { .. }
        | Op::Idle { .. }
        | Op::Claim { .. }
        | Op::Listen { .. }
        | Op::Open { .. }
        | Op::Read { .. }
        | Op::Inbox { .. }
        | Op::Find { .. }
        | Op::Renew { .. }
        | Op::Retire { .. }
        | Op::Lease { .. }
        | Op::Sessions { .. }
        | Op::Sweep { .. }
        | Op::Get { .. }
        | Op::Put { .. } => Reply::Refused(Refused::Damaged),
    }
}
