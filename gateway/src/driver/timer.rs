//! The timer that wakes the driver at the next deadline. Used by `driver`.
use std::pin::Pin;
use tokio::time::{Instant, Sleep, sleep_until};
use turnway_core::time::Mono;

/// A tokio timer that stays set from round to round as long as it is early enough: an occasional wake-up without need
/// costs less than resetting the timer each round, which may wake another thread.
#[derive(Debug, Default)]
pub(super) struct DriverTimer {
    sleep: Option<Pin<Box<Sleep>>>,
    /// When the timer fires; `None` means never.
    at: Option<Mono>,
}

// === impl DriverTimer ===

impl DriverTimer {
    /// Sets the timer to fire at `latest` or earlier.
    pub(super) fn set(&mut self, now: Mono, latest: Option<Mono>) {
        let Some(latest) = latest else { return };
        // A timer that should have fired is late, because it does not count time in which the machine was suspended.
        if self.at.is_some_and(|at| now < at && at <= latest) {
            return;
        }
        let at = Instant::now() + (latest - now);
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.sleep = Some(Box::pin(sleep_until(at))),
        }
        self.at = Some(latest);
    }

    /// Waits until the timer fires. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        match (&mut self.sleep, self.at) {
            (Some(sleep), Some(_)) => sleep.as_mut().await,
            (Some(_) | None, _) => std::future::pending().await,
        }
        self.at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::time::Duration;

    fn at(ms: u64) -> Mono {
        Mono(Duration::from_millis(ms))
    }

    /// So late that no test waits for it.
    const LATE: u64 = 3_600_000;

    #[tokio::test]
    async fn alarm_fires_on_time_and_only_moves_earlier() {
        let mut alarm = DriverTimer::default();
        let begun = Instant::now();
        alarm.set(at(0), None);
        assert!(alarm.wait().now_or_never().is_none());
        alarm.set(at(0), Some(at(LATE)));
        alarm.set(at(0), Some(at(20)));
        alarm.set(at(0), Some(at(LATE)));
        alarm.wait().await;
        assert!(begun.elapsed() >= Duration::from_millis(20), "the earlier one, if in vain");
        assert!(alarm.wait().now_or_never().is_none(), "it rings once");
        alarm.set(at(20), Some(at(40)));
        alarm.wait().await;
        assert!(begun.elapsed() >= Duration::from_millis(40));
    }

    #[tokio::test]
    async fn alarm_is_reset_after_system_suspend() {
        let mut alarm = DriverTimer::default();
        alarm.set(at(0), Some(at(LATE)));
        // More time has passed than the runtime noticed.
        alarm.set(at(2 * LATE), Some(at(2 * LATE + 20)));
        alarm.wait().await;
    }
}
