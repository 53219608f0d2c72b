//! Metrics of the switchboard. The driver hands over all statistics now and then; a scrape shows the latest
//! ones.
use super::family::{FamilyBuilder, FamilySpec, LabelSpec, MetricKind};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use std::collections::HashMap;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use turnway_core::protocol::binding::UnbindReason;
use turnway_core::protocol::delivery::DeliveryFailure;
use turnway_core::protocol::input::Strategy;
use turnway_core::protocol::refusal::Code;
use turnway_core::protocol::route::{RouteMode, RouteReason};
use turnway_node::switchboard::{
    DeliveryChange, DurationHistogram, ResourceGauges, SubscriptionStart, SwitchboardStats, TurnResult,
};

/// The switchboard's statistics, as metric families.
#[derive(Clone, Debug)]
pub struct SwitchboardMetrics {
    stats: Arc<Mutex<SwitchboardStats>>,
    families: Arc<Vec<ExportedFamily>>,
}

#[derive(Debug)]
struct ExportedFamily {
    desc: Desc,
    family: FamilySpec,
    label_combinations: Vec<Vec<&'static str>>,
    read: StatSource,
}

/// The part of [`SwitchboardStats`] that a family shows: one number for each combination of label values.
#[derive(Clone, Copy, Debug)]
enum StatSource {
    Number(fn(&SwitchboardStats) -> u64),
    Seconds(fn(&SwitchboardStats) -> f64),
    Tally(fn(&SwitchboardStats) -> &[u64]),
    Spreads(fn(&SwitchboardStats) -> &[DurationHistogram]),
}

use StatSource::{Number, Seconds, Spreads, Tally};

const GAUGES: [(&str, &str, StatSource); 15] = [
    ("turnway_adapter_links", "Connections of adapters.", Number(|s| s.adapters)),
    (
        "turnway_adapter_paused_accounts",
        "Accounts with adapters at this node that are paused until an operator resumes them.",
        Number(|s| s.accounts_paused),
    ),
    (
        "turnway_adapter_open",
        "Messages of conversations and parts of deliveries that are on their way at this node.",
        Number(|s| s.deliveries_open),
    ),
    (
        "turnway_binding_work",
        "Requests about bindings and rows of conversations that this node is working on.",
        Number(|s| s.bindings_open),
    ),
    (
        "turnway_share_waiting_turns",
        "Turns that wait for an attempt permit of this node.",
        Number(|s| s.permits_waiting),
    ),
    (
        "turnway_task_open",
        "Tasks of agents for other agents, and questions about their places, that this node is working on.",
        Number(|s| s.tasks_open),
    ),
    ("turnway_switchboard_links", "Admitted links.", Number(|s| s.links)),
    ("turnway_switchboard_feeds", "Sessions that this node subscribes to.", Number(|s| s.feeds)),
    ("turnway_switchboard_seats", "Sessions this node owns, or is about to.", Number(|s| s.owned_sessions)),
    ("turnway_switchboard_asks", "Requests of links without an answer yet.", Number(|s| s.requests)),
    ("turnway_switchboard_timers", "Timers set.", Number(|s| s.timers)),
    ("turnway_turn_open", "Turns of owned sessions that have not ended.", Number(|s| s.open_turns)),
    (
        "turnway_turn_oldest_open_seconds",
        "Age of the oldest open turn at this owner; 0 without any.",
        Seconds(|s| s.oldest_turn.as_secs_f64()),
    ),
    ("turnway_inbox_waiting_turns", "Turns of owned sessions that have not begun.", Number(|s| s.waiting_turns)),
    ("turnway_inbox_deepest_turns", "The most such turns that one session has.", Number(|s| s.waiting_turns_max)),
];

const COUNTERS: [(&str, &str, StatSource); 25] = [
    ("turnway_adapter_parts_total", "Parts of deliveries that were given to adapters.", Number(|s| s.parts_sent)),
    (
        "turnway_adapter_stale_messages_total",
        "Messages of conversations that started no turn because they were older than `stale_after` of their channel.",
        Number(|s| s.stale_messages),
    ),
    ("turnway_turn_accepted_total", "Inputs accepted for links of this node.", Number(|s| s.accepted)),
    ("turnway_turn_duplicates_total", "Of these, repeats.", Number(|s| s.duplicates)),
    ("turnway_turn_restarts_total", "Attempts after the first.", Number(|s| s.restarts)),
    (
        "turnway_turn_resumptions_total",
        "Attempts that were resumed here after their owner was lost or had left.",
        Number(|s| s.resumed),
    ),
    (
        "turnway_turn_late_reports_total",
        "Reports of agents dropped because they came too late.",
        Number(|s| s.late_reports),
    ),
    ("turnway_log_facts_total", "Facts written to logs.", Number(|s| s.facts)),
    (
        "turnway_log_snapshots_unreadable_total",
        "Snapshots that could not be read; the state was rebuilt from the log.",
        Number(|s| s.snapshots_unreadable),
    ),
    ("turnway_ownership_claims_total", "Claims that won.", Number(|s| s.claims)),
    ("turnway_ownership_takeovers_total", "Of these, over a holder that was gone.", Number(|s| s.takeovers)),
    ("turnway_ownership_claims_held_total", "Claims that lost.", Number(|s| s.claims_held)),
    ("turnway_ownership_fenced_total", "Writes the fence refused.", Number(|s| s.fenced)),
    (
        "turnway_ownership_abandoned_total",
        "Owned sessions given up because store and memory disagreed.",
        Number(|s| s.abandoned),
    ),
    ("turnway_ownership_released_total", "Owned sessions released.", Number(|s| s.released)),
    (
        "turnway_ownership_transferred_total",
        "Owned sessions handed to a successor by a leaving node.",
        Number(|s| s.transferred),
    ),
    (
        "turnway_binding_bound_total",
        "Bindings of conversations that this node had the log of their session record.",
        Number(|s| s.bindings_bound),
    ),
    ("turnway_ownership_leases_lost_total", "Leases lost.", Number(|s| s.leases_lost)),
    (
        "turnway_session_expired_total",
        "Sessions that this node deleted because they had no new fact for `store.max_age`.",
        Number(|s| s.expired),
    ),
    ("turnway_store_retries_total", "Operations of the store that were retried.", Number(|s| s.store_retries)),
    ("turnway_delivery_facts_total", "Facts shown to links.", Number(|s| s.facts_shown)),
    ("turnway_delivery_deltas_total", "Pieces of text shown to links.", Number(|s| s.deltas_shown)),
    ("turnway_delivery_gaps_total", "Times this node noticed that it lacked facts.", Number(|s| s.gaps)),
    (
        "turnway_delivery_resyncs_total",
        "Times a log differed from what this node had delivered, and was read again.",
        Number(|s| s.resyncs),
    ),
    (
        "turnway_delivery_slow_links_total",
        "Times a link was too slow, and was left behind until it had caught up.",
        Number(|s| s.slow_links),
    ),
];

/// Expands to the names of every value of an enum, in the order of their numbers.
macro_rules! names_of {
    ($kind:ty) => {{
        const NAMES: [&str; <$kind>::ALL.len()] = {
            let mut names = [""; <$kind>::ALL.len()];
            let mut n = 0;
            while n < names.len() {
                names[n] = <$kind>::ALL[n].as_str();
                n += 1;
            }
            names
        };
        &NAMES
    }};
}

const OUTCOME: LabelSpec = ("outcome", names_of!(TurnResult));
const STRATEGY: LabelSpec = ("strategy", names_of!(Strategy));
const START: LabelSpec = ("outcome", &SubscriptionStart::NAMES);
const CHANGE: LabelSpec = ("kind", &DeliveryChange::NAMES);
const FAILURE: LabelSpec = ("reason", names_of!(DeliveryFailure));
const ROUTE_MODE: LabelSpec = ("kind", names_of!(RouteMode));
const ROUTE_REASON: LabelSpec = ("reason", names_of!(RouteReason));
const UNBIND: LabelSpec = ("reason", names_of!(UnbindReason));
const CODE: LabelSpec = ("code", names_of!(Code));

const RESOURCE: LabelSpec = ("resource", &ResourceGauges::NAMES);

const SIGNAL: LabelSpec = ("kind", &SwitchboardStats::SIGNALS);

const USAGE_GAUGES: [(&str, &str, &[LabelSpec], StatSource); 2] = [
    (
        "turnway_share_held",
        "What users hold of this node now: attempts at agents, bytes of running inputs, owned sessions, subscriptions.",
        &[RESOURCE],
        Tally(|s| &s.held.0),
    ),
    ("turnway_share_capacity", "Maximum of each resource.", &[RESOURCE], Tally(|s| &s.held_max.0)),
];

const LABELLED_COUNTERS: [(&str, &str, &[LabelSpec], StatSource); 10] = [
    (
        "turnway_adapter_routes_total",
        "Answers of the router about the places of completions, to sessions of this node, and of texts that its clients send, by mode and reason.",
        &[ROUTE_MODE, ROUTE_REASON],
        Tally(|s| &s.routes.0),
    ),
    (
        "turnway_adapter_signals_total",
        "Typing signals, previews and removals of previews that were given to adapters, by kind.",
        &[SIGNAL],
        Tally(|s| &s.signals_sent.0),
    ),
    (
        "turnway_adapter_deliveries_total",
        "Changes of deliveries to conversations that the logs of this node's sessions record, by kind.",
        &[CHANGE],
        Tally(|s| &s.deliveries.0),
    ),
    (
        "turnway_adapter_delivery_failures_total",
        "Of these the failed ones, by reason.",
        &[FAILURE],
        Tally(|s| &s.deliveries_failed.0),
    ),
    (
        "turnway_binding_ended_total",
        "Ends of bindings that this node had the log of their session record, by reason.",
        &[UNBIND],
        Tally(|s| &s.bindings_ended.0),
    ),
    (
        "turnway_share_over_total",
        "Requests refused, and turns that had to wait, because a bound or a share was met.",
        &[RESOURCE],
        Tally(|s| &s.over_share.0),
    ),
    (
        "turnway_turn_ended_total",
        "Turns of sessions of this node that ended, durably.",
        &[OUTCOME, STRATEGY],
        Tally(|s| &s.ended.0),
    ),
    ("turnway_turn_failed_total", "Of these the failed ones, by code.", &[CODE], Tally(|s| &s.failed.0)),
    (
        "turnway_request_refused_total",
        "Requests of links that were refused, by code.",
        &[CODE],
        Tally(|s| &s.refused.0),
    ),
    (
        "turnway_delivery_resumes_total",
        "Where subscriptions began: at the present, for they named no cursor; level with the log; behind it, \
         and caught up; or at the present, since what followed the cursor was trimmed, or the log regressed.",
        &[START],
        Tally(|s| &s.subscribed.0),
    ),
];

const HISTOGRAMS: [(&str, &str, &[LabelSpec], StatSource); 5] = [
    (
        "turnway_turn_accept_seconds",
        "From taking an input from its link to telling the link that it is durable.",
        &[],
        Spreads(|s| slice::from_ref(&s.accept_durations)),
    ),
    (
        "turnway_turn_first_delta_seconds",
        "From a turn's coming to its owner to the first piece of its answer, or of reasoning.",
        &[],
        Spreads(|s| slice::from_ref(&s.first_delta_durations)),
    ),
    (
        "turnway_turn_end_seconds",
        "From a turn's coming to its owner to its durable end.",
        &[OUTCOME],
        Spreads(|s| &s.turn_durations),
    ),
    (
        "turnway_log_append_seconds",
        "From asking for a write to a log to knowing that it is durable, however often it had to be asked.",
        &[],
        Spreads(|s| slice::from_ref(&s.append_durations)),
    ),
    (
        "turnway_session_takeup_seconds",
        "From claiming a session to owning it, loaded.",
        &[],
        Spreads(|s| slice::from_ref(&s.claim_durations)),
    ),
];

// === impl SwitchboardMetrics ===

impl SwitchboardMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        let plain = |kind, (name, help, read)| (FamilySpec { name, help, kind, labels: Vec::new() }, read);
        let labelled = |kind, (name, help, labels, read): (_, _, &[LabelSpec], _)| {
            (FamilySpec { name, help, kind, labels: labels.to_vec() }, read)
        };
        let gauges = GAUGES.into_iter().map(|row| plain(MetricKind::Gauge, row));
        let counters = COUNTERS.into_iter().map(|row| plain(MetricKind::Counter, row));
        let tallies = LABELLED_COUNTERS.into_iter().map(|row| labelled(MetricKind::Counter, row));
        let spreads = HISTOGRAMS.into_iter().map(|row| labelled(MetricKind::Histogram, row));
        let held = USAGE_GAUGES.into_iter().map(|row| labelled(MetricKind::Gauge, row));
        let mut shown = Vec::new();
        for (family, read) in gauges.chain(held).chain(counters).chain(tallies).chain(spreads) {
            let names = family.label_names().into_iter().map(str::to_owned).collect();
            let desc = Desc::new(family.name.to_owned(), family.help.to_owned(), names, HashMap::new())?;
            workshop.document(family.clone());
            shown.push(ExportedFamily { desc, label_combinations: family.label_combinations(), family, read });
        }
        workshop.register(Self { stats: Arc::default(), families: Arc::new(shown) })
    }

    /// Replaces the statistics.
    pub fn set_stats(&self, stats: &SwitchboardStats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = *stats;
    }

    /// Returns the latest statistics.
    pub(super) fn stats(&self) -> SwitchboardStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for SwitchboardMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().map(|shown| &shown.desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let stats = self.stats();
        self.families.iter().map(|shown| shown.collect(&stats)).collect()
    }
}

// === impl ExportedFamily ===

impl ExportedFamily {
    fn collect(&self, stats: &SwitchboardStats) -> MetricFamily {
        let children = match self.read {
            Number(read) => vec![self.number(read(stats) as f64)],
            Seconds(read) => vec![self.number(read(stats))],
            Tally(read) => read(stats).iter().map(|count| self.number(*count as f64)).collect(),
            Spreads(read) => read(stats).iter().map(histogram_metric).collect(),
        };
        let labelled = self.label_combinations.iter().zip(children).map(|(values, mut child)| {
            child.set_label(
                self.family.labels.iter().zip(values).map(|((name, _), value)| label_pair(name, value)).collect(),
            );
            child
        });
        let mut family = MetricFamily::default();
        family.set_name(self.family.name.to_owned());
        family.set_help(self.family.help.to_owned());
        family.set_field_type(match self.family.kind {
            MetricKind::Counter => MetricType::COUNTER,
            MetricKind::Gauge => MetricType::GAUGE,
            MetricKind::Histogram => MetricType::HISTOGRAM,
        });
        family.set_metric(labelled.collect());
        family
    }

    fn number(&self, number: f64) -> Metric {
        let mut metric = Metric::default();
        if self.family.kind == MetricKind::Gauge {
            let mut gauge = Gauge::default();
            gauge.set_value(number);
            metric.set_gauge(gauge);
        } else {
            let mut counter = Counter::default();
            counter.set_value(number);
            metric.set_counter(counter);
        }
        metric
    }
}

fn label_pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

fn histogram_metric(spread: &DurationHistogram) -> Metric {
    let mut below = 0;
    let buckets = DurationHistogram::BOUNDS.iter().zip(spread.buckets).map(|(bound, count)| {
        below += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound.as_secs_f64());
        bucket.set_cumulative_count(below);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(spread.count());
    histogram.set_sample_sum(spread.sum.as_secs_f64());
    let mut metric = Metric::default();
    metric.set_histogram(histogram);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Encoder, Registry, TextEncoder};
    use std::time::Duration;

    #[test]
    fn every_switchboard_statistic_has_a_metric() {
        // Fails for a new field of `SwitchboardStats` until the field has a family.
        let numbers: usize = COUNTERS.len() + GAUGES.len() - 1
            + LABELLED_COUNTERS.iter().chain(&USAGE_GAUGES).map(|row| places(row.2)).sum::<usize>();
        let spreads: usize = HISTOGRAMS.iter().map(|row| places(row.2)).sum();
        let whole = numbers * size_of::<u64>() + spreads * size_of::<DurationHistogram>() + size_of::<Duration>();
        assert_eq!(whole, size_of::<SwitchboardStats>());
    }

    fn places(labels: &[LabelSpec]) -> usize {
        labels.iter().map(|(_, values)| values.len()).product()
    }

    #[test]
    fn switchboard_statistics_appear_in_the_scrape() {
        let registry = Registry::new();
        let metrics = SwitchboardMetrics::register(&mut FamilyBuilder::new(&registry)).expect("each family once");
        let mut stats =
            SwitchboardStats { links: 2, oldest_turn: Duration::from_millis(1500), ..SwitchboardStats::default() };
        stats.ended.0[Strategy::ALL.len() + 2] = 7;
        stats.turn_durations[2].buckets = [1; DurationHistogram::BOUNDS.len() + 1];
        stats.turn_durations[2].sum = Duration::from_secs(3);
        metrics.set_stats(&SwitchboardStats { links: 9, ..stats });
        metrics.set_stats(&stats);
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        for line in [
            "turnway_switchboard_links 2",
            "turnway_turn_oldest_open_seconds 1.5",
            "turnway_turn_ended_total{outcome=\"failed\",strategy=\"interrupt\"} 7",
            "turnway_turn_ended_total{outcome=\"completed\",strategy=\"enqueue\"} 0",
            "turnway_turn_end_seconds_bucket{outcome=\"cancelled\",le=\"0.0005\"} 1",
            "turnway_turn_end_seconds_bucket{outcome=\"cancelled\",le=\"1800\"} 18",
            "turnway_turn_end_seconds_bucket{outcome=\"cancelled\",le=\"+Inf\"} 19",
            "turnway_turn_end_seconds_sum{outcome=\"cancelled\"} 3",
            "turnway_turn_accept_seconds_count 0",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} is not in {text}");
        }
    }
}
