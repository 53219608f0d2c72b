//! Decides whether a failing upstream is asked: after several failures in a row it is left alone for a while, then one call
//! tries it. Does no IO and reads no clock.
use turnway_core::limits;
use turnway_core::time::Mono;

/// The circuit breaker of one upstream.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Failures in a row.
    failures: u32,
    /// The time from which one call may try the upstream; none while the breaker is closed.
    retry_at: Option<Mono>,
}

// === impl Breaker ===

impl Breaker {
    /// Returns whether a call may be sent now. In an open breaker the call becomes the trial, and further calls wait for the
    /// next period: a trial that is given up without a result must not keep the breaker open for ever.
    pub(super) fn admit(&mut self, now: Mono) -> bool {
        match self.retry_at {
            None => true,
            Some(at) if now >= at => {
                self.retry_at = Some(now + limits::MODEL_BREAKER_OPEN);
                true
            }
            Some(_) => false,
        }
    }

    /// Records a call that the upstream answered; returns whether this closed the breaker.
    pub(super) fn record_success(&mut self) -> bool {
        self.failures = 0;
        self.retry_at.take().is_some()
    }

    /// Records a failure of the upstream; returns whether this opened the breaker.
    pub(super) fn record_failure(&mut self, now: Mono) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < limits::MODEL_BREAKER_FAILURES {
            return false;
        }
        self.retry_at.replace(now + limits::MODEL_BREAKER_OPEN).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    /// Covers: PR-7.
    #[test]
    fn breaker_opens_after_failures_in_a_row_and_admits_one_trial() {
        let mut breaker = Breaker::default();
        for _ in 1..limits::MODEL_BREAKER_FAILURES {
            assert!(!breaker.record_failure(at(1)) && breaker.admit(at(1)));
        }
        assert!(breaker.record_failure(at(1)), "opened");
        assert!(!breaker.admit(at(1)) && !breaker.admit(at(10)));
        assert!(breaker.admit(at(11)), "the trial");
        assert!(!breaker.admit(at(11)), "one trial at a time");
        assert!(!breaker.record_failure(at(12)), "it was open");
        assert!(!breaker.admit(at(21)) && breaker.admit(at(22)));
        assert!(breaker.record_success() && breaker.admit(at(22)) && breaker.admit(at(22)));
    }

    #[test]
    fn success_between_failures_keeps_the_breaker_closed() {
        let mut breaker = Breaker::default();
        for _ in 0..3 * limits::MODEL_BREAKER_FAILURES {
            assert!(!breaker.record_failure(at(1)));
            assert!(!breaker.record_success());
        }
    }
}
