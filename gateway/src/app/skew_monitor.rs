//! Monitors the system's clock, and tells operators and load balancers how far it is off. Must not decide about the
//! time itself; `clock` does. Started by `app::run`.
use crate::clock::{Clock, Skew};
use crate::metrics::Metrics;
use crate::phase::{Lifecycle, UnreadyReason};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use turnway_core::limits;

/// The monitor of a node's clock skew.
pub(super) struct SkewMonitor {
    pub(super) clock: Clock,
    pub(super) life: Lifecycle,
    pub(super) metrics: Arc<Metrics>,
    /// The skew from which a node is not ready; `None` never makes it unready.
    pub(super) skew_max: Option<Duration>,
}

/// The judgement on the system's clock, compared with the node's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum SkewVerdict {
    #[default]
    Fine,
    /// Far enough off for a warning.
    Off,
    /// Too far off for the node to be ready.
    TooFar,
}

// === impl SkewMonitor ===

impl SkewMonitor {
    /// Checks the clock periodically. Never returns.
    pub(super) async fn run(self) {
        let mut looks = interval(limits::CLOCK_READ_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = SkewVerdict::default();
        loop {
            looks.tick().await;
            let skew = self.clock.check_skew();
            self.metrics.node.set_skew(skew.now_ms);
            let next = self.judge(skew, last);
            self.life.report(UnreadyReason::Clock, next >= SkewVerdict::TooFar);
            if next != last {
                log_verdict(next, skew.lasting_ms);
                last = next;
            }
        }
    }

    /// Compares the lasting skew with the limits. A clock counts as better only below half of a limit, so that a skew
    /// close to a limit is reported once.
    fn judge(&self, skew: Skew, last: SkewVerdict) -> SkewVerdict {
        let off = Duration::from_millis(skew.lasting_ms.unsigned_abs());
        let is_over = |limit: Duration, level| off > if last >= level { limit / 2 } else { limit };
        if self.skew_max.is_some_and(|most| is_over(most, SkewVerdict::TooFar)) {
            SkewVerdict::TooFar
        } else if is_over(limits::CLOCK_SKEW_WARN, SkewVerdict::Off) {
            SkewVerdict::Off
        } else {
            SkewVerdict::Fine
        }
    }
}

fn log_verdict(verdict: SkewVerdict, skew_ms: i64) {
    match verdict {
        SkewVerdict::Fine => tracing::info!(skew_ms, "the system's clock agrees with the store's again"),
        SkewVerdict::Off => {
            tracing::warn!(skew_ms, "the system's clock differs from the store's, which the node follows: check NTP");
        }
        SkewVerdict::TooFar => {
            let what = "the system's clock differs from the store's by more than store.skew: the node is not ready; \
                        check NTP here and on the store's machine";
            tracing::error!(skew_ms, "{what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;

    #[test]
    fn clock_skew_verdict_uses_lasting_skew_with_hysteresis() {
        let metrics = Arc::new(Metrics::register(&Registry::new()).expect("each family once"));
        let clock = Clock::start();
        let life = Lifecycle::default();
        let monitor = SkewMonitor { clock, life, metrics, skew_max: Some(Duration::from_secs(60)) };
        let judge =
            |monitor: &SkewMonitor, lasting_ms, last| monitor.judge(Skew { now_ms: i64::MAX, lasting_ms }, last);
        for (skew, last, expected) in [
            (5000, SkewVerdict::Fine, SkewVerdict::Fine),
            (-5001, SkewVerdict::Fine, SkewVerdict::Off),
            (2501, SkewVerdict::Off, SkewVerdict::Off),
            (2500, SkewVerdict::Off, SkewVerdict::Fine),
            (-60_001, SkewVerdict::Off, SkewVerdict::TooFar),
            (30_001, SkewVerdict::TooFar, SkewVerdict::TooFar),
            (30_001, SkewVerdict::Off, SkewVerdict::Off),
            (30_000, SkewVerdict::TooFar, SkewVerdict::Off),
            (i64::MIN, SkewVerdict::Fine, SkewVerdict::TooFar),
        ] {
            assert_eq!(judge(&monitor, skew, last), expected, "{skew} after {last:?}");
        }
        let tolerant = SkewMonitor { skew_max: None, ..monitor };
        assert_eq!(judge(&tolerant, i64::MAX, SkewVerdict::Fine), SkewVerdict::Off);
    }
}
