//! The closed list of conditions that make this node unready, and the set that holds now. Each condition is reported by
//! the part of the node that detects it; `/readyz`, the metric `turnway_node_unready`, the log and the health listener
//! show it. Must not contain an address, a name or text of a peer.
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::watch;

/// A condition under which a node should not be sent new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnreadyReason {
    /// The node does not serve yet.
    Starting,
    /// The node was asked to shut down.
    Draining,
    /// The store does not answer.
    StoreAway,
    /// The store answers that it has no space.
    StoreFull,
    /// The store answers, and accepts no writes: a replica, a failed disk, too few replicas, still loading.
    StoreReadOnly,
    /// The store refuses a command or the login of this node.
    StoreForbidden,
    /// The store no longer gives the durability that this node promises.
    StoreUnfit,
    /// A part of the store's data cannot be read, or its file is not the one that was opened.
    StoreDamaged,
    /// The disk of the embedded store has less free space than the reserve.
    DiskReserve,
    /// The node holds no lease, so no turn can start here.
    LeaseMissing,
    /// The node does not receive the messages of other nodes.
    BusUnheard,
    /// The system's clock cannot be trusted.
    Clock,
}

impl UnreadyReason {
    /// Every reason, in the order in which they are listed to operators.
    pub const ALL: [Self; 12] = [
        Self::Starting,
        Self::Draining,
        Self::StoreAway,
        Self::StoreFull,
        Self::StoreReadOnly,
        Self::StoreForbidden,
        Self::StoreUnfit,
        Self::StoreDamaged,
        Self::DiskReserve,
        Self::LeaseMissing,
        Self::BusUnheard,
        Self::Clock,
    ];

    /// The codes of [`Self::ALL`], in the same order: values of a metric's label.
    pub const CODES: [&'static str; Self::ALL.len()] = [
        "starting",
        "draining",
        "store_away",
        "store_full",
        "store_read_only",
        "store_forbidden",
        "store_unfit",
        "store_damaged",
        "disk_reserve",
        "lease_missing",
        "bus_unheard",
        "clock",
    ];

    /// Returns the stable code of this reason, as operators and load balancers see it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Draining => "draining",
            Self::StoreAway => "store_away",
            Self::StoreFull => "store_full",
            Self::StoreReadOnly => "store_read_only",
            Self::StoreForbidden => "store_forbidden",
            Self::StoreUnfit => "store_unfit",
            Self::StoreDamaged => "store_damaged",
            Self::DiskReserve => "disk_reserve",
            Self::LeaseMissing => "lease_missing",
            Self::BusUnheard => "bus_unheard",
            Self::Clock => "clock",
        }
    }

    /// Returns one sentence for the log: the condition, and the first thing to check.
    fn description(self) -> &'static str {
        match self {
            Self::Starting => "the node is starting",
            Self::Draining => "the node is draining",
            Self::StoreAway => "the store does not answer; check that it runs and that this node can reach it",
            Self::StoreFull => "the store has no memory for inputs; raise its memory limit or free some",
            Self::StoreReadOnly => "the store accepts no writes; check its disk, its role and its replicas",
            Self::StoreForbidden => "the store refuses a command of this node; check the permissions of its user",
            Self::StoreUnfit => "the store gives less durability than store.durability requires; check its settings",
            Self::StoreDamaged => "a part of the store cannot be read; run `turnway store check`",
            Self::DiskReserve => "the disk has less free space than store.reserve; free some",
            Self::LeaseMissing => "this node has no lease, so no turn can start; check the connection to the store",
            Self::BusUnheard => "this node does not receive messages of other nodes; check the connection to Redis",
            Self::Clock => "the system's clock differs from the store's; check the time service",
        }
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Returns whether the reason says more precisely why the store does not do what it is asked.
    fn is_store_refusal(self) -> bool {
        matches!(self, Self::StoreFull | Self::StoreReadOnly | Self::StoreForbidden | Self::StoreUnfit)
    }
}

/// The set of reasons that hold now, shared by the parts that report them.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    set: watch::Sender<u32>,
    /// A copy of the set: reasons are reported in every round of the driver, and reading the watch takes a lock.
    snapshot: AtomicU32,
}

// === impl Readiness ===

impl Readiness {
    /// Adds or removes a reason, and logs the change. The missing lease of a starting node is not logged.
    pub(super) fn set(&self, reason: UnreadyReason, holds: bool, is_starting: impl FnOnce() -> bool) {
        if (self.snapshot.load(Ordering::Acquire) & reason.bit() != 0) == holds {
            return;
        }
        // Asked before any waiter can act on the change.
        let is_starting = reason == UnreadyReason::LeaseMissing && is_starting();
        let mut after = 0;
        let changed = self.set.send_if_modified(|set| {
            let before = std::mem::replace(set, if holds { *set | reason.bit() } else { *set & !reason.bit() });
            after = *set;
            self.snapshot.store(after, Ordering::Release);
            before != after
        });
        if changed && !is_starting {
            log_change(reason, holds, after);
        }
    }

    /// Returns the reasons that hold, in the order of [`UnreadyReason::ALL`].
    pub(super) fn reasons(&self) -> Vec<UnreadyReason> {
        let set = *self.set.borrow();
        UnreadyReason::ALL.into_iter().filter(|reason| set & reason.bit() != 0).collect()
    }

    /// Waits until this reason does not hold.
    pub(super) async fn wait_cleared(&self, reason: UnreadyReason) {
        // The sender is owned by `self`, so the wait cannot fail.
        let _ = self.set.subscribe().wait_for(|set| *set & reason.bit() == 0).await;
    }

    /// Returns whether the store has answered with the reason why it does not do what it is asked.
    pub(super) fn has_store_refusal(&self) -> bool {
        self.reasons().into_iter().any(UnreadyReason::is_store_refusal)
    }
}

fn log_change(reason: UnreadyReason, holds: bool, after: u32) {
    let code = reason.code();
    let remaining = codes(after);
    match holds {
        true => tracing::warn!(reason = code, "not ready: {}", reason.description()),
        false if remaining.is_empty() => tracing::info!(reason = code, "ready again"),
        false => tracing::info!(reason = code, ?remaining, "still not ready, for fewer reasons"),
    }
}

fn codes(set: u32) -> Vec<&'static str> {
    UnreadyReason::ALL.into_iter().filter(|reason| set & reason.bit() != 0).map(UnreadyReason::code).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_codes_match_the_order_of_reasons() {
        assert_eq!(UnreadyReason::ALL.map(UnreadyReason::code), UnreadyReason::CODES);
        for (index, reason) in UnreadyReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[tokio::test]
    async fn readiness_reasons_are_independent() {
        let readiness = Readiness::default();
        for reason in [UnreadyReason::LeaseMissing, UnreadyReason::StoreAway, UnreadyReason::LeaseMissing] {
            readiness.set(reason, true, || false);
        }
        assert_eq!(readiness.reasons(), [UnreadyReason::StoreAway, UnreadyReason::LeaseMissing]);
        readiness.set(UnreadyReason::StoreAway, false, || false);
        assert_eq!(readiness.reasons(), [UnreadyReason::LeaseMissing]);
        readiness.set(UnreadyReason::LeaseMissing, false, || false);
        readiness.wait_cleared(UnreadyReason::LeaseMissing).await;
    }
}
