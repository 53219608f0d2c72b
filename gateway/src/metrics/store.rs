//! What is asked of the store, and how long it takes.
use super::add;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use turnway_core::store::StoreError;
use turnway_core::time::Mono;

/// What is counted of ops.
#[derive(Debug)]
pub struct StoreMetrics {
    ops: IntCounterVec,
    seconds: HistogramVec,
    waiting: IntGauge,
    commits: IntCounter,
    commit_seconds: Histogram,
    batch_ops: Histogram,
    /// When the unanswered ops of each kind were asked. Answers carry no ticket, so the oldest is taken
    /// for the answered one: sums and means are exact, and the spread is nearly so, since a store
    /// answers ops of one kind nearly in order.
    asked: Mutex<BTreeMap<&'static str, VecDeque<Mono>>>,
}

// === impl StoreMetrics ===

impl StoreMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let ops = Opts::new("turnway_store_ops_total", "Ops the store answered.");
        let seconds = HistogramOpts::new("turnway_store_op_seconds", "From asking to the answer.")
            .buckets(prometheus::exponential_buckets(0.000_05, 2.5, 13)?);
        let waiting = IntGauge::new("turnway_store_waiting_ops", "Ops without an answer yet.")?;
        let commits = IntCounter::new("turnway_store_commits_total", "Commits of the embedded store.")?;
        let commit_seconds = HistogramOpts::new(
            "turnway_store_commit_seconds",
            "One commit of the embedded store, its fsync included.",
        )
        .buckets(prometheus::exponential_buckets(0.000_05, 2.5, 13)?);
        let batch_ops = HistogramOpts::new("turnway_store_batch_ops", "Ops that shared one commit.")
            .buckets(prometheus::exponential_buckets(1.0, 2.0, 10)?);
        Ok(Self {
            commits: add(registry, commits)?,
            commit_seconds: add(registry, Histogram::with_opts(commit_seconds)?)?,
            batch_ops: add(registry, Histogram::with_opts(batch_ops)?)?,
            ops: add(registry, IntCounterVec::new(ops, &["op", "outcome"])?)?,
            seconds: add(registry, HistogramVec::new(seconds, &["op"])?)?,
            waiting: add(registry, waiting)?,
            asked: Mutex::default(),
        })
    }

    /// The embedded store committed a batch of so many ops.
    pub fn committed(&self, ops: usize, took: Duration) {
        self.commits.inc();
        self.commit_seconds.observe(took.as_secs_f64());
        self.batch_ops.observe(ops as f64);
    }

    /// An op of this name is asked.
    pub fn asked(&self, op: &'static str, now: Mono) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).entry(op).or_default().push_back(now);
        self.waiting.inc();
    }

    /// One of this name is answered.
    pub fn answered(&self, op: &'static str, error: Option<StoreError>, now: Mono) {
        let outcome = match error {
            None => "answered",
            Some(StoreError::Unknown) => "unknown",
            Some(StoreError::Unavailable) => "unavailable",
        };
        self.ops.with_label_values(&[op, outcome]).inc();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = asked.get_mut(op).and_then(VecDeque::pop_front) {
            self.seconds.with_label_values(&[op]).observe((now - since).as_secs_f64());
            self.waiting.dec();
        }
    }
}
