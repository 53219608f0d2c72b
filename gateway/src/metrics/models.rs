//! Metrics of calls of models: their ends, requests to upstreams, tokens, and durations.
use super::family::FamilyBuilder;
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};
use std::time::Duration;
use turnway_wire::model::TokenUsage;

/// The metrics of calls of models.
#[derive(Debug)]
pub struct ModelMetrics {
    calls: [IntCounter; ModelCallOutcome::NAMES.len()],
    attempts: [IntCounter; ModelAttemptOutcome::NAMES.len()],
    resends: IntCounter,
    unrecorded: IntCounter,
    over_budget: IntCounter,
    open: IntGauge,
    tokens: [IntCounter; TokenKind::NAMES.len()],
    first_byte: Histogram,
    first_token: Histogram,
    call: Histogram,
    up: IntGaugeVec,
}

/// The gauge of one upstream: 1 while it is asked.
#[derive(Clone, Debug)]
pub struct UpstreamGauge(IntGauge);

label_values! {
    /// The end of a call.
    pub ModelCallOutcome {
        Complete = "complete",
        /// The answer was cut off, or ended without its end.
        Truncated = "truncated",
        /// The upstream reported an error within a successful answer.
        Error = "error",
        /// The upstream refused the call by its status.
        Refused = "refused",
        /// The caller has gone, its run has ended, or its credential was revoked.
        Cancelled = "cancelled",
        /// No upstream answered.
        Failed = "failed",
        TimedOut = "timeout",
    }
}

label_values! {
    /// The end of one request to an upstream.
    pub ModelAttemptOutcome {
        Answered = "answered",
        /// An answer which says that the call was not served.
        NotServed = "retryable",
        Unreachable = "unreachable",
        /// The connection broke before the head of an answer.
        Broken = "broken",
        TimedOut = "timeout",
        /// The provider's key was refused.
        Unauthorized = "unauthorized",
    }
}

label_values! {
    /// A kind of tokens.
    TokenKind {
        Input = "input",
        /// The part of `input` that came from a cache.
        CachedInput = "cached_input",
        Output = "output",
        /// The part of `output` that is reasoning.
        Reasoning = "reasoning",
    }
}

// === impl ModelMetrics ===

impl ModelMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            calls: workshop.counters(
                "turnway_model_calls_total",
                "Calls of models by their end.",
                "outcome",
                &ModelCallOutcome::NAMES,
            )?,
            attempts: workshop.counters(
                "turnway_model_attempts_total",
                "Requests to upstreams of models by their end, those of fallbacks and retries too.",
                "outcome",
                &ModelAttemptOutcome::NAMES,
            )?,
            resends: workshop.counter(
                "turnway_model_resends_total",
                "Requests to upstreams of models that were sent once more, on a new connection, because the upstream had closed \
                 the kept one (`retry_reused`).",
            )?,
            unrecorded: workshop.counter(
                "turnway_model_calls_unrecorded_total",
                "Beginnings and ends of calls of runs that the logs of their sessions lack, because the store was away for too long.",
            )?,
            over_budget: workshop.counter(
                "turnway_model_budget_refusals_total",
                "Calls of models that were refused because of a budget, and not made.",
            )?,
            open: workshop.gauge("turnway_model_open_calls", "Calls of models that have begun and not ended.")?,
            tokens: workshop.counters(
                "turnway_model_tokens_total",
                "Tokens that upstreams reported; calls without a report add nothing.",
                "kind",
                &TokenKind::NAMES,
            )?,
            first_byte: workshop.histogram(
                "turnway_model_first_byte_seconds",
                "From a call to the first byte of its answer's body.",
                &buckets::LONG,
            )?,
            first_token: workshop.histogram(
                "turnway_model_first_token_seconds",
                "From a call to the first content, reasoning or tool call of its answer.",
                &buckets::LONG,
            )?,
            call: workshop.histogram(
                "turnway_model_call_seconds",
                "From a call to its end, however it ended.",
                &buckets::LONG,
            )?,
            up: workshop.gauge_vec(
                "turnway_model_upstream_up",
                "1 while an upstream is asked, 0 after failures in a row.",
                "upstream",
                &["<id>"],
            )?,
        })
    }

    /// Returns the gauge of an upstream, which starts at 1. The configuration bounds the number of upstreams.
    pub fn upstream_gauge(&self, id: &str) -> UpstreamGauge {
        let gauge = UpstreamGauge(self.up.with_label_values(&[id]));
        gauge.set(true);
        gauge
    }

    /// Counts a request that is sent once more.
    pub fn count_resend(&self) {
        self.resends.inc();
    }

    /// Counts a beginning or an end of a call that is not recorded.
    pub fn count_unrecorded(&self) {
        self.unrecorded.inc();
    }

    /// Counts a call that a budget refuses.
    pub fn count_budget_refusal(&self) {
        self.over_budget.inc();
    }

    /// Counts a request to an upstream.
    pub fn count_attempt(&self, outcome: ModelAttemptOutcome) {
        self.attempts[outcome as usize].inc();
    }

    /// Counts a call as open.
    pub fn begin_call(&self) {
        self.open.inc();
    }

    /// Counts the end of a call.
    pub fn end_call(&self, outcome: ModelCallOutcome, took: Duration) {
        self.open.dec();
        self.calls[outcome as usize].inc();
        self.call.observe(took.as_secs_f64());
    }

    /// Records the answer of a call: times since its beginning, and tokens.
    pub fn record_answer(&self, first_byte: Option<Duration>, first_token: Option<Duration>, usage: &TokenUsage) {
        for (histogram, time) in [(&self.first_byte, first_byte), (&self.first_token, first_token)] {
            time.into_iter().for_each(|time| histogram.observe(time.as_secs_f64()));
        }
        for (kind, count) in [
            (TokenKind::Input, usage.input),
            (TokenKind::CachedInput, usage.cached_input),
            (TokenKind::Output, usage.output),
            (TokenKind::Reasoning, usage.reasoning),
        ] {
            self.tokens[kind as usize].inc_by(count.unwrap_or_default());
        }
    }
}

// === impl UpstreamGauge ===

impl UpstreamGauge {
    /// Sets whether the upstream is asked.
    pub fn set(&self, is_up: bool) {
        self.0.set(i64::from(is_up));
    }
}
