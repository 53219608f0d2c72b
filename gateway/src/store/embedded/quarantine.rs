//! Quarantine of sessions with a damaged record: every op on such a session is answered here and never reaches the
//! tables. Used by the engine and its batches.
use crate::store::embedded::fault::StoreFault;
use crate::store::embedded::tables;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turnway_core::id::SessionKey;
use turnway_core::limits;
use turnway_core::store::{Op, Reply, StoreRefusal};

/// The quarantined sessions.
pub(super) struct Quarantine {
    sessions: BTreeSet<SessionKey>,
    /// Called with their number whenever it grows.
    on_change: Arc<dyn Fn(usize) + Send + Sync>,
}

// === impl Quarantine ===

impl Quarantine {
    pub(super) fn new(on_change: Arc<dyn Fn(usize) + Send + Sync>) -> Self {
        Self { sessions: BTreeSet::new(), on_change }
    }

    /// Restores the sessions that were quarantined before this start.
    pub(super) fn restore(&mut self, closed: &BTreeMap<Vec<u8>, String>) {
        self.sessions.extend(closed.keys().filter_map(|prefix| Some(tables::split_session_key(prefix)?.0)));
        if !self.sessions.is_empty() {
            tracing::error!(
                sessions = self.sessions.len(),
                "sessions are quarantined because their records are damaged; run `turnway store check`"
            );
            (self.on_change)(self.sessions.len());
        }
    }

    pub(super) fn is_quarantined(&self, key: &SessionKey) -> bool {
        !self.sessions.is_empty() && self.sessions.contains(key)
    }

    /// Quarantines a session. Fails once so many sessions are quarantined that the whole store is suspect.
    pub(super) fn quarantine(&mut self, key: &SessionKey, fault: &StoreFault) -> Result<(), StoreFault> {
        if self.sessions.len() >= limits::STORE_DAMAGED_SESSIONS_MAX {
            return Err(StoreFault::Structure("too many sessions are damaged"));
        }
        if self.sessions.insert(key.clone()) {
            let tenant = key.tenant.as_str();
            let session = key.session.as_str();
            tracing::error!(
                tenant,
                session,
                %fault,
                "a session is quarantined because a record is damaged; requests get store_damaged"
            );
            (self.on_change)(self.sessions.len());
        }
        Ok(())
    }
}

/// Returns the reply to an op on a quarantined session: owners are fenced, unsubscribing succeeds.
pub(super) fn quarantined_reply(op: &Op) -> Reply {
    match op {
        Op::Append(_) | Op::WriteSnapshot(_) | Op::Release { .. } | Op::Transfer { .. } | Op::Trim { .. } => {
            Reply::Fenced
        }
        Op::Unlisten { .. } | Op::Expire { .. } => Reply::Done,
        Op::Accept { .. }
        | Op::Control { .. }
        | Op::Delete { .. }
        | Op::DeleteIdle { .. }
        | Op::ScanIdle { .. }
        | Op::Claim { .. }
        | Op::Listen { .. }
        | Op::ReadView { .. }
        | Op::Read { .. }
        | Op::Inbox { .. }
        | Op::Find { .. }
        | Op::FindControl { .. }
        | Op::Renew { .. }
        | Op::Retire { .. }
        | Op::Lease { .. }
        | Op::ListSessions { .. }
        | Op::Sweep { .. }
        | Op::Get { .. }
        | Op::Put { .. }
        | Op::Conversation { .. }
        | Op::Blob { .. } => Reply::Refused(StoreRefusal::Damaged),
    }
}
