//! Metrics of the process: its build, phase, readiness, drain, panics, quarantined sessions and clock.
use super::family::FamilyBuilder;
use super::label_values;
use crate::phase::{self, Lifecycle, UnreadyReason};
use crate::supervise;
use prometheus::{Gauge, IntCounter, IntGauge};
use std::sync::atomic::{AtomicI64, Ordering};

/// The metrics of the process. The gauges are refreshed when they are scraped, except the
/// skew of the clock, which its monitor sets.
#[derive(Debug)]
pub struct NodeMetrics {
    ready: IntGauge,
    unready: [IntGauge; UnreadyReason::CODES.len()],
    phases: [IntGauge; PhaseLabel::NAMES.len()],
    remaining: IntGauge,
    damaged: IntGauge,
    panics: IntCounter,
    skew: Gauge,
    skew_ms: AtomicI64,
}

label_values! {
    /// The phase of the process, as a label; see [`phase::NodePhase`].
    PhaseLabel {
        /// The sockets are open, but the node does not serve yet.
        Starting = "starting",
        Serving = "serving",
        /// No new work is accepted, and running turns end.
        Draining = "draining",
        /// Links are being closed.
        Leaving = "leaving",
    }
}

/// The version of the build, as a label.
const VERSION: [&str; 1] = [env!("CARGO_PKG_VERSION")];

// === impl NodeMetrics ===

impl NodeMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        let [build] = workshop.gauges("turnway_build_info", "Version of the build; always 1.", "version", &VERSION)?;
        build.set(1);
        Ok(Self {
            ready: workshop.gauge("turnway_node_ready", "1 while new work may be sent to this node, else 0.")?,
            unready: workshop.gauges(
                "turnway_node_unready",
                "1 for each reason why no new work should be sent to this node, else 0.",
                "reason",
                &UnreadyReason::CODES,
            )?,
            phases: workshop.gauges(
                "turnway_node_phase",
                "1 for the current phase of the process, 0 for the others.",
                "phase",
                &PhaseLabel::NAMES,
            )?,
            remaining: workshop.gauge(
                "turnway_node_drain_sessions",
                "Sessions that a draining node still holds; 0 while it serves.",
            )?,
            panics: workshop.counter(
                "turnway_task_panicked_total",
                "Panics of tasks that run as long as the process does; the log names the task.",
            )?,
            damaged: workshop.gauge(
                "turnway_store_damaged_sessions",
                "Sessions of an embedded store that are quarantined, because their records are damaged.",
            )?,
            skew: workshop.float_gauge(
                "turnway_clock_skew_seconds",
                "How far the system's clock is ahead of the node's time, which is the store's; negative where it is \
                 behind.",
            )?,
            skew_ms: AtomicI64::new(0),
        })
    }

    /// Sets the skew of the system's clock: milliseconds ahead of the node's time.
    pub fn set_skew(&self, by_ms: i64) {
        self.skew_ms.store(by_ms, Ordering::Relaxed);
        #[expect(
            clippy::cast_precision_loss,
            reason = "a difference of clocks is small, or its last digits do not matter"
        )]
        self.skew.set(by_ms as f64 / 1000.0);
    }

    /// Returns the skew that was set last, in milliseconds.
    pub fn skew_ms(&self) -> i64 {
        self.skew_ms.load(Ordering::Relaxed)
    }

    /// Refreshes the gauges from the state of the process.
    pub fn refresh(&self, life: &Lifecycle) {
        let reasons = life.reasons();
        self.ready.set(i64::from(reasons.is_empty()));
        for (reason, gauge) in UnreadyReason::ALL.iter().zip(&self.unready) {
            gauge.set(i64::from(reasons.contains(reason)));
        }
        let stage = match life.phase() {
            phase::NodePhase::Starting => PhaseLabel::Starting,
            phase::NodePhase::Serving => PhaseLabel::Serving,
            phase::NodePhase::Draining => PhaseLabel::Draining,
            phase::NodePhase::Stopping | phase::NodePhase::Stopped => PhaseLabel::Leaving,
        };
        for (n, phase) in self.phases.iter().enumerate() {
            phase.set(i64::from(n == stage as usize));
        }
        let remaining = life.remaining().unwrap_or_default();
        let panics: u64 = supervise::panics().values().sum();
        self.panics.inc_by(panics.saturating_sub(self.panics.get()));
        self.damaged.set(i64::try_from(life.damaged_sessions()).unwrap_or(i64::MAX));
        self.remaining.set(i64::try_from(remaining).unwrap_or(i64::MAX));
    }
}
