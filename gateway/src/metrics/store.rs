//! Metrics of the store: operations, durations, sizes and quotas.
use super::family::{FamilyBuilder, LazyChildren};
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter, IntGauge};
use std::collections::VecDeque;
use std::time::Duration;
use turnway_core::planted::{Planted, planted};
use turnway_core::store::binding::BindingOutcome;
use turnway_core::store::blob::BlobOutcome;
use turnway_core::store::quota::Quotas;
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply, StoreError};
use turnway_core::time::Mono;

/// The metrics of the store.
#[derive(Debug)]
pub struct StoreMetrics {
    op_counts: LazyChildren<IntCounter>,
    seconds: LazyChildren<Histogram>,
    waiting: IntGauge,
    commits: IntCounter,
    commit_seconds: Histogram,
    batch_ops: Histogram,
    bytes: IntGauge,
    bytes_max: IntGauge,
    quotas: [IntGauge; QuotaScope::NAMES.len()],
    attested: IntGauge,
}

/// Start times of unanswered operations, by kind; kept by the caller that sends them. Answers have no ticket,
/// so an answer is matched with the oldest operation of its kind: sums and means are exact, and the
/// distribution is nearly so, because a store answers operations of one kind nearly in order.
#[derive(Debug, Default)]
pub struct PendingOps {
    since: [VecDeque<Mono>; OPS.len()],
}

const OPS: [&str; 31] = [
    "renew",
    "retire",
    "lease",
    "accept",
    "control",
    "claim",
    "append",
    "release",
    "transfer",
    "listen",
    "unlisten",
    "open",
    "read",
    "inbox",
    "keep",
    "trim",
    "sweep",
    "get",
    "put",
    "expire",
    "find",
    "sessions",
    "delete",
    "idle",
    "forget",
    "conversation",
    "bindings",
    "due_bindings",
    "find_control",
    "conversations",
    "blob",
];

fn op_index(op: &Op) -> usize {
    match op {
        Op::Renew { .. } => 0,
        Op::Retire { .. } => 1,
        Op::Lease { .. } => 2,
        Op::Accept { .. } => 3,
        Op::Control { .. } => 4,
        Op::Claim { .. } => 5,
        Op::Append(_) => 6,
        Op::Release { .. } => 7,
        Op::Transfer { .. } => 8,
        Op::Listen { .. } => 9,
        Op::Unlisten { .. } => 10,
        Op::ReadView { .. } => 11,
        Op::Read { .. } => 12,
        Op::Inbox { .. } => 13,
        Op::WriteSnapshot(_) => 14,
        Op::Trim { .. } => 15,
        Op::Sweep { .. } => 16,
        Op::Get { .. } => 17,
        Op::Put { .. } => 18,
        Op::Expire { .. } => 19,
        Op::Find { .. } => 20,
        Op::ListSessions { .. } => 21,
        Op::Delete { .. } => 22,
        Op::ScanIdle { .. } => 23,
        Op::DeleteIdle { .. } => 24,
        Op::Conversation { op: ConversationOp::Change { .. }, .. } => 25,
        Op::Conversation { op: ConversationOp::List { .. }, .. } => 26,
        Op::Conversation { op: ConversationOp::FindDue { .. }, .. } => 27,
        Op::FindControl { .. } => 28,
        Op::Conversation { op: ConversationOp::Read { .. }, .. } => 29,
        Op::Blob { .. } => 30,
    }
}

label_values! {
    /// The outcome of an operation.
    OpOutcome {
        /// Performed now or by an earlier try.
        Answered = "answered",
        /// Refused because of a fence, a rule or a limit.
        Refused = "refused",
        /// May or may not have been performed.
        Unknown = "unknown",
        Unavailable = "unavailable",
    }
}

impl OpOutcome {
    fn of(result: &Result<Reply, StoreError>) -> Self {
        match result {
            Err(StoreError::Unknown) => Self::Unknown,
            Err(StoreError::Unavailable) => Self::Unavailable,
            Ok(
                Reply::LeaseLost
                | Reply::Refused(_)
                | Reply::OwnershipConflict { .. }
                | Reply::Fenced
                | Reply::OutOfOrder
                | Reply::InputMissing { .. }
                | Reply::NotReleased
                | Reply::Conversation(ConversationReply::Row {
                    outcome: BindingOutcome::NotApplied | BindingOutcome::TooManyReports,
                    ..
                }),
            ) => Self::Refused,
            Ok(Reply::Blobs(reply)) => match reply.outcome {
                BlobOutcome::Applied => Self::Answered,
                BlobOutcome::Missing | BlobOutcome::SessionFull => Self::Refused,
            },
            Ok(
                Reply::Renewed { .. }
                | Reply::Done
                | Reply::Leased { .. }
                | Reply::Accepted(_)
                | Reply::Claimed(_)
                | Reply::Appended { .. }
                | Reply::Released
                | Reply::Transferred { .. }
                | Reply::Listening { .. }
                | Reply::View(_)
                | Reply::Facts(_)
                | Reply::Inbox(_)
                | Reply::Found(_)
                | Reply::ControlFound { .. }
                | Reply::Sessions { .. }
                | Reply::Idle { .. }
                | Reply::Unowned { .. }
                | Reply::Value { .. }
                | Reply::Conversation(
                    ConversationReply::Row { outcome: BindingOutcome::Applied, .. }
                    | ConversationReply::Bindings(_)
                    | ConversationReply::Rows(_)
                    | ConversationReply::Due(_),
                ),
            ) => Self::Answered,
        }
    }
}

// === impl StoreMetrics ===

impl StoreMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            op_counts: workshop.counter_grid(
                "turnway_store_ops_total",
                "Operations of the store by outcome.",
                &[("op", &OPS), ("outcome", &OpOutcome::NAMES)],
            )?,
            seconds: workshop.histogram_grid(
                "turnway_store_op_seconds",
                "Duration of an operation of the store.",
                &[("op", &OPS)],
                &buckets::SHORT,
            )?,
            waiting: workshop.gauge("turnway_store_waiting_ops", "Operations without an answer yet.")?,
            commits: workshop.counter("turnway_store_commits_total", "Commits of the embedded store.")?,
            commit_seconds: workshop.histogram(
                "turnway_store_commit_seconds",
                "One commit of the embedded store, its fsync included.",
                &buckets::SHORT,
            )?,
            batch_ops: workshop.histogram(
                "turnway_store_batch_ops",
                "Operations of the embedded store in one commit.",
                &buckets::BATCH,
            )?,
            bytes: workshop.gauge(
                "turnway_store_used_bytes",
                "Bytes that are stored: of an embedded store and of one in memory those that count for users; of Redis \
                 all of its memory that is used, looked at every 30 s.",
            )?,
            bytes_max: workshop.gauge(
                "turnway_store_capacity_bytes",
                "Bytes that the store may hold, of which parts in `quota.*` are; 0 where that is not known.",
            )?,
            quotas: workshop.gauges(
                "turnway_store_quota_bytes",
                "Bytes that one tenant and one user may store; 0 if unlimited.",
                "whose",
                &QuotaScope::NAMES,
            )?,
            attested: workshop.gauge(
                "turnway_store_attested",
                "1 if the durability rests on `store.attest` because the store's settings cannot be read, else 0.",
            )?,
        })
    }

    /// Sets whether the store's durability rests on the operator's attestation alone.
    pub fn set_attested(&self, is_attested: bool) {
        self.attested.set(i64::from(is_attested));
    }

    /// Sets the stored bytes, the store's capacity and the quotas that follow from it.
    pub fn set_usage(&self, quotas: Quotas, bytes: u64, most: Option<u64>) {
        let number = |bytes: Option<u64>| i64::try_from(bytes.unwrap_or(0)).unwrap_or(i64::MAX);
        self.bytes.set(number(Some(bytes)));
        self.bytes_max.set(number(most));
        for (whose, quota) in [(QuotaScope::Tenant, quotas.tenant), (QuotaScope::User, quotas.user)] {
            self.quotas[whose as usize].set(number(quota.bytes(most)));
        }
    }

    /// Records a commit of the embedded store with a batch of operations.
    pub fn record_commit(&self, ops: usize, took: Duration) {
        self.commits.inc();
        self.commit_seconds.observe(took.as_secs_f64());
        self.batch_ops.observe(ops as f64);
    }

    /// Records that an operation was sent.
    pub fn record_request(&self, unanswered: &mut PendingOps, op: &Op, now: Mono) {
        unanswered.since[op_index(op)].push_back(now);
        self.waiting.inc();
    }

    /// Records the answer to an operation.
    pub fn record_reply(&self, unanswered: &mut PendingOps, op: &Op, result: &Result<Reply, StoreError>, now: Mono) {
        let index = op_index(op);
        if let Some(counter) = self.op_counts.child(index, OpOutcome::of(result) as usize) {
            counter.inc();
        }
        if let (Some(since), Some(seconds)) = (unanswered.since[index].pop_front(), self.seconds.child(index, 0)) {
            seconds.observe((now - since).as_secs_f64());
            if !planted(Planted::StoreWaitingKept) {
                self.waiting.dec();
            }
        }
    }
}

label_values! {
    /// The scope of a quota.
    QuotaScope {
        Tenant = "tenant",
        User = "user",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;
    use turnway_core::id::{ListenStamp, NodeId, SessionKey};

    #[test]
    fn store_operations_are_counted_by_name() {
        let ops = [
            Op::Lease { node: NodeId(1), sent: Mono::default() },
            Op::Sweep { limit: 1 },
            Op::Get { name: String::new() },
            ConversationOp::List { session: key(), principal: None }.into(),
            ConversationOp::FindDue { limit: 1 }.into(),
            Op::Expire { key: key(), before_ms: 0 },
            Op::Listen { key: key(), node: NodeId(1), stamp: ListenStamp(0) },
        ];
        for op in &ops {
            assert_eq!(OPS[op_index(op)], op.name());
        }
        let registry = Registry::new();
        let metrics = StoreMetrics::register(&mut FamilyBuilder::new(&registry)).expect("each family once");
        let mut unanswered = PendingOps::default();
        let at = |ms| Mono(Duration::from_millis(ms));
        metrics.record_request(&mut unanswered, &ops[0], at(0));
        metrics.record_request(&mut unanswered, &ops[0], at(10));
        metrics.record_reply(&mut unanswered, &ops[0], &Ok(Reply::LeaseLost), at(30));
        metrics.record_reply(&mut unanswered, &ops[0], &Err(StoreError::Unknown), at(30));
        let refused = metrics.op_counts.child(2, 1).map(IntCounter::get);
        let seconds = metrics.seconds.child(2, 0).map(|seconds| (seconds.get_sample_count(), seconds.get_sample_sum()));
        assert_eq!((refused, seconds, metrics.waiting.get()), (Some(1), Some((2, 0.05)), 0));
    }

    fn key() -> SessionKey {
        use turnway_core::id::{SessionId, TenantId};
        SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") }
    }
}
