//! The task that owns the switchboard: how much it has to do, and how long that takes.
use super::add;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use std::time::Duration;

/// What is counted of the driver.
#[derive(Debug)]
pub struct DriverMetrics {
    links: IntCounter,
    agents: IntCounter,
    store: IntCounter,
    queue: IntGauge,
    rounds: Histogram,
    panics: IntCounter,
}

/// Where an input came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A link.
    Links,
    /// An agent.
    Agents,
    /// The store.
    Store,
}

// === impl DriverMetrics ===

impl DriverMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let inputs = Opts::new("turnway_driver_inputs_total", "What the switchboard was told, by source.");
        let inputs = add(registry, IntCounterVec::new(inputs, &["source"])?)?;
        let queue = IntGauge::new("turnway_driver_queue_inputs", "Inputs that wait for the switchboard.")?;
        let rounds =
            HistogramOpts::new("turnway_driver_round_seconds", "One batch of inputs and all they cause.")
                .buckets(prometheus::exponential_buckets(0.000_01, 3.0, 12)?);
        let panics = IntCounter::new("turnway_driver_panics_total", "Broken invariants that were survived.")?;
        Ok(Self {
            links: inputs.with_label_values(&["links"]),
            agents: inputs.with_label_values(&["agents"]),
            store: inputs.with_label_values(&["store"]),
            queue: add(registry, queue)?,
            rounds: add(registry, Histogram::with_opts(rounds)?)?,
            panics: add(registry, panics)?,
        })
    }

    /// So many inputs of one source were taken.
    pub fn took(&self, source: Source, count: usize) {
        let counter = match source {
            Source::Links => &self.links,
            Source::Agents => &self.agents,
            Source::Store => &self.store,
        };
        counter.inc_by(count as u64);
    }

    /// A round took so long and left so many inputs waiting.
    pub fn round(&self, took: Duration, waiting: usize) {
        self.rounds.observe(took.as_secs_f64());
        self.queue.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// An invariant was broken.
    pub fn panicked(&self) {
        self.panics.inc();
    }
}
