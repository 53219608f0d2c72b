//! Monitors the system's clock, and tells operators and load balancers how far it is off. Must not decide about the
//! time itself; `clock` does. Started by `app::run`.
use crate::clock::{Clock, Skew};
use crate::metrics::Metrics;
use crate::phase::{Life, Reason};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use turnway_core::limits;

/// The monitor of a node's clock skew.
pub(super) struct Timekeeper {
    pub(super) clock: Clock,
    pub(super) life: Life,
    pub(super) metrics: Arc<Metrics>,
    /// The skew from which a node is not ready; `None` never makes it unready.
    pub(super) skew_max: Option<Duration>,
}

/// The judgement on the system's clock, compared with the node's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    #[default]
    Fine,
    /// Far enough off for a warning.
    Off,
    /// Too far off for the node to be ready.
    TooFar,
}

// === impl Timekeeper ===

impl Timekeeper {
    /// Checks the clock periodically. Never returns.
    pub(super) async fn run(self) {
        let mut looks = interval(limits::CLOCK_LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Verdict::default();
        loop {
            looks.tick().await;
            let skew = self.clock.look();
            self.metrics.node.skewed(skew.now_ms);
            let next = self.judge(skew, last);
            self.life.report(Reason::Clock, next >= Verdict::TooFar);
            if next != last {
                tell(next, skew.lasting_ms);
                last = next;
            }
        }
    }

    /// Compares the lasting skew with the limits. A clock counts as better only below half of a limit, so that a skew
    /// close to a limit is reported once.
    fn judge(&self, skew: Skew, last: Verdict) -> Verdict {
        let off = Duration::from_millis(skew.lasting_ms.unsigned_abs());
        let is_over = |limit: Duration, level| off > if last >= level { limit / 2 } else { limit };
        if self.skew_max.is_some_and(|most| is_over(most, Verdict::TooFar)) {
            Verdict::TooFar
        } else if is_over(limits::CLOCK_SKEW_WARN, Verdict::Off) {
            Verdict::Off
        } else {
            Verdict::Fine
        }
    }
}

fn tell(verdict: Verdict, skew_ms: i64) {
    match verdict {
        Verdict::Fine => tracing::info!(skew_ms, "the system's clock agrees with the store's again"),
        Verdict::Off => {
            tracing::warn!(skew_ms, "the system's clock differs from the store's, which the node follows: check NTP");
        }
        Verdict::TooFar => {
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
        let (clock, life) = (Clock::start(), Life::default());
        let keeper = Timekeeper { clock, life, metrics, skew_max: Some(Duration::from_secs(60)) };
        let judge =
            |keeper: &Timekeeper, lasting_ms, last| keeper.judge(Skew { now_ms: i64::MAX, lasting_ms }, last);
        for (skew, last, expected) in [
            (5000, Verdict::Fine, Verdict::Fine),
            (-5001, Verdict::Fine, Verdict::Off),
            (2501, Verdict::Off, Verdict::Off),
            (2500, Verdict::Off, Verdict::Fine),
            (-60_001, Verdict::Off, Verdict::TooFar),
            (30_001, Verdict::TooFar, Verdict::TooFar),
            (30_001, Verdict::Off, Verdict::Off),
            (30_000, Verdict::TooFar, Verdict::Off),
            (i64::MIN, Verdict::Fine, Verdict::TooFar),
        ] {
            assert_eq!(judge(&keeper, skew, last), expected, "{skew} after {last:?}");
        }
        let tolerant = Timekeeper { skew_max: None, ..keeper };
        assert_eq!(judge(&tolerant, i64::MAX, Verdict::Fine), Verdict::Off);
    }
}
