//! The leases of nodes, which decide which nodes are alive. Used by the store's callers' threads and by the writer.
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use turnway_core::id::{Holder, NodeId};
use turnway_core::store::{Op, Reply};
use turnway_core::time::{Mono, Now};

/// Leases in memory only: every start of the process is a new node, so no old lease is valid after a restart, and a
/// sweep finds the sessions that the last process owned.
pub(super) struct Leases {
    expiries: Mutex<BTreeMap<Holder, Mono>>,
    era: u64,
}

impl Leases {
    pub(super) fn new(era: u64) -> Self {
        Self { expiries: Mutex::default(), era }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Holder, Mono>> {
        self.expiries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers an op on leases; returns `None` for any other op.
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other op is the engine's")]
    pub(super) fn handle(&self, now: Now, op: &Op) -> Option<Reply> {
        match op {
            Op::Renew { holder, ttl, fresh, .. } => Some(self.renew(now, *holder, *ttl, *fresh)),
            Op::Retire { holder } => {
                self.lock().remove(holder);
                Some(Reply::Done)
            }
            Op::Lease { node, .. } => {
                let until = self.lock();
                let lives = until.iter().filter(|(h, until)| h.node == *node && **until > now.mono);
                Some(Reply::Leased { left: lives.map(|(_, until)| *until - now.mono).max() })
            }
            _ => None,
        }
    }

    fn renew(&self, now: Now, holder: Holder, ttl: Duration, fresh: bool) -> Reply {
        let mut until = self.lock();
        until.retain(|_, until| *until > now.mono);
        if !fresh && !until.contains_key(&holder) {
            return Reply::LeaseLost;
        }
        until.insert(holder, now.mono + ttl);
        Reply::Renewed { era: self.era, clock: now.store }
    }

    /// Returns whether a node has a valid lease.
    pub(super) fn has_live_lease(&self, now: Mono, node: NodeId) -> bool {
        self.lock().iter().any(|(holder, until)| holder.node == node && *until > now)
    }

    /// Returns whether a holder has a valid lease.
    pub(super) fn is_leased(&self, now: Mono, holder: Holder) -> bool {
        self.lock().get(&holder).is_some_and(|until| *until > now)
    }
}
