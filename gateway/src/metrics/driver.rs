//! Metrics of the driver, the task that owns the switchboard: inputs, queue length and duration of rounds.
use super::family::FamilyBuilder;
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter, IntGauge};
use std::time::Duration;

/// The metrics of the driver.
#[derive(Debug)]
pub struct DriverMetrics {
    inputs: [IntCounter; InputSource::NAMES.len()],
    queue: IntGauge,
    rounds: Histogram,
    panics: IntCounter,
}

label_values! {
    /// The source of an input.
    pub InputSource {
        Links = "links",
        Agents = "agents",
        Store = "store",
        Bus = "bus",
    }
}

// === impl DriverMetrics ===

impl DriverMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            inputs: workshop.counters(
                "turnway_driver_inputs_total",
                "Inputs of the switchboard, by source.",
                "source",
                &InputSource::NAMES,
            )?,
            queue: workshop.gauge("turnway_driver_queue_inputs", "Inputs that wait for the switchboard.")?,
            rounds: workshop.histogram(
                "turnway_driver_round_seconds",
                "Duration of one round: a batch of inputs with all its effects.",
                &buckets::SHORT,
            )?,
            panics: workshop.counter(
                "turnway_driver_panics_total",
                "Invariant violations that the node survived; each one is a bug.",
            )?,
        })
    }

    /// Counts inputs taken from one source.
    pub fn count_inputs(&self, source: InputSource, count: usize) {
        self.inputs[source as usize].inc_by(count as u64);
    }

    /// Records a round: its duration, and the inputs that it left waiting.
    pub fn record_round(&self, took: Duration, waiting: usize) {
        self.rounds.observe(took.as_secs_f64());
        self.queue.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Returns the inputs that waited after the last round.
    pub(super) fn queued_inputs(&self) -> u64 {
        u64::try_from(self.queue.get()).unwrap_or_default()
    }

    /// Counts a violated invariant.
    pub fn count_panic(&self) {
        self.panics.inc();
    }
}
