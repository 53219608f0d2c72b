//! The task that owns the switchboard: how much it has to do, and how long that takes.
use super::workshop::Workshop;
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter, IntGauge};
use std::time::Duration;

/// What is counted of the driver.
#[derive(Debug)]
pub struct DriverMetrics {
    inputs: [IntCounter; Source::NAMES.len()],
    queue: IntGauge,
    rounds: Histogram,
    panics: IntCounter,
}

label_values! {
    /// Where an input came from.
    pub Source {
        /// A link.
        Links = "links",
        /// An agent.
        Agents = "agents",
        /// The store.
        Store = "store",
        /// Another node.
        Bus = "bus",
    }
}

// === impl DriverMetrics ===

impl DriverMetrics {
    pub(super) fn register(workshop: &mut Workshop<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            inputs: workshop.counters(
                "turnway_driver_inputs_total",
                "What the switchboard was told, by who told it.",
                "source",
                &Source::NAMES,
            )?,
            queue: workshop.gauge("turnway_driver_queue_inputs", "Inputs that wait for the switchboard.")?,
            rounds: workshop.histogram(
                "turnway_driver_round_seconds",
                "One batch of inputs and all they cause.",
                &buckets::SHORT,
            )?,
            panics: workshop
                .counter("turnway_driver_panics_total", "Broken invariants that were survived: bugs.")?,
        })
    }

    /// So many inputs of one source were taken.
    pub fn took(&self, source: Source, count: usize) {
        self.inputs[source as usize].inc_by(count as u64);
    }

    /// A round took so long and left so many inputs waiting.
    pub fn round(&self, took: Duration, waiting: usize) {
        self.rounds.observe(took.as_secs_f64());
        self.queue.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// How many inputs waited after the last round.
    pub(super) fn waiting(&self) -> u64 {
        u64::try_from(self.queue.get()).unwrap_or_default()
    }

    /// An invariant was broken.
    pub fn panicked(&self) {
        self.panics.inc();
    }
}
