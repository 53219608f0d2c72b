//! What the brain counts. It is told in whole: a family is set to what the brain says.
use super::add;
use prometheus::core::{AtomicU64, GenericCounter, GenericCounterVec, GenericGauge};
use prometheus::{Opts, Registry};
use std::sync::{Mutex, PoisonError};
use turnway_bindings::switchboard::Stats;

type Counter = GenericCounter<AtomicU64>;
type Gauge = GenericGauge<AtomicU64>;
/// One number of [`Stats`].
type Read = fn(&Stats) -> u64;

/// The brain's counters, as families.
#[derive(Debug)]
pub struct SwitchboardMetrics {
    gauges: Vec<(Gauge, Read)>,
    counters: Vec<(Counter, Read)>,
    /// What was last told: counters only take what came since.
    last: Mutex<Stats>,
}

const GAUGES: [(&str, &str, Read); 6] = [
    ("turnway_switchboard_links", "Admitted links.", |s| s.links),
    ("turnway_switchboard_feeds", "Sessions this node listens to.", |s| s.feeds),
    ("turnway_switchboard_seats", "Sessions this node owns, or is about to.", |s| s.seats),
    ("turnway_switchboard_asks", "Requests of links on their way.", |s| s.asks),
    ("turnway_switchboard_timers", "Timers set.", |s| s.timers),
    ("turnway_turn_open", "Turns of owned sessions that have not ended.", |s| s.open_turns),
];

const COUNTERS: [(&str, &str, Read); 22] = [
    ("turnway_turn_accepted_total", "Inputs accepted for links of this node.", |s| s.accepted),
    ("turnway_turn_duplicates_total", "Of these, repeats.", |s| s.duplicates),
    ("turnway_turn_refused_total", "Requests refused.", |s| s.refused),
    ("turnway_turn_restarts_total", "Attempts after the first.", |s| s.restarts),
    ("turnway_turn_late_reports_total", "Reports of agents dropped because they came too late.", |s| {
        s.late_reports
    }),
    ("turnway_log_facts_total", "Facts written.", |s| s.facts),
    ("turnway_ownership_claims_total", "Claims that won.", |s| s.claims),
    ("turnway_ownership_takeovers_total", "Claims that won over a holder that was gone.", |s| s.takeovers),
    ("turnway_ownership_claims_held_total", "Claims that lost.", |s| s.claims_held),
    ("turnway_ownership_fenced_total", "Writes the fence refused.", |s| s.fenced),
    ("turnway_ownership_abandoned_total", "Seats given up because store and memory disagreed.", |s| {
        s.abandoned
    }),
    ("turnway_ownership_released_total", "Seats released.", |s| s.released),
    ("turnway_ownership_leases_lost_total", "Leases lost.", |s| s.leases_lost),
    ("turnway_store_retries_total", "Ops asked again.", |s| s.store_retries),
    ("turnway_delivery_facts_total", "Facts shown to links.", |s| s.facts_shown),
    ("turnway_delivery_deltas_total", "Pieces of text shown to links.", |s| s.deltas_shown),
    ("turnway_delivery_subscribed_total", "Subscriptions answered.", |s| s.subscribed),
    ("turnway_delivery_resets_total", "Of these, with a reset.", |s| s.resets),
    ("turnway_delivery_slow_links_total", "Times a link was too slow and its cursor stood still.", |s| {
        s.slow_links
    }),
    ("turnway_delivery_gaps_total", "Gaps noticed in what owners said.", |s| s.gaps),
    ("turnway_log_snapshots_unreadable_total", "Kept states nobody could read.", |s| s.snapshots_unreadable),
    ("turnway_bus_words_total", "Words to other nodes.", |s| s.words),
];

const ENDINGS: [(&str, Read); 3] = [
    ("completed", |s| s.turns_completed),
    ("failed", |s| s.turns_failed),
    ("cancelled", |s| s.turns_cancelled),
];

// === impl SwitchboardMetrics ===

impl SwitchboardMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let mut gauges = Vec::new();
        for (name, help, read) in GAUGES {
            gauges.push((add(registry, Gauge::new(name, help)?)?, read));
        }
        let mut counters = Vec::new();
        for (name, help, read) in COUNTERS {
            counters.push((add(registry, Counter::new(name, help)?)?, read));
        }
        let ended = Opts::new("turnway_turn_ended_total", "Turns ended by this node, by outcome.");
        let ended = add(registry, GenericCounterVec::<AtomicU64>::new(ended, &["outcome"])?)?;
        for (outcome, read) in ENDINGS {
            counters.push((ended.with_label_values(&[outcome]), read));
        }
        Ok(Self { gauges, counters, last: Mutex::default() })
    }

    /// Takes over what the brain says.
    pub fn tell(&self, stats: Stats) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        for (gauge, read) in &self.gauges {
            gauge.set(read(&stats));
        }
        for (counter, read) in &self.counters {
            counter.inc_by(read(&stats).saturating_sub(read(&last)));
        }
        *last = stats;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_brain_has_its_family() {
        // A new number breaks this line until it has one.
        let fields = GAUGES.len() + COUNTERS.len() + ENDINGS.len();
        assert_eq!(fields * size_of::<u64>(), size_of::<Stats>());
        let metrics = SwitchboardMetrics::register(&Registry::new()).expect("each family once");
        metrics.tell(Stats { turns_completed: 3, links: 2, ..Stats::default() });
        metrics.tell(Stats { turns_completed: 5, links: 1, ..Stats::default() });
        assert_eq!(metrics.last.lock().expect("sound").turns_completed, 5);
        assert_eq!(metrics.gauges[0].0.get(), 1);
        assert_eq!(metrics.counters[COUNTERS.len()].0.get(), 5);
    }
}
