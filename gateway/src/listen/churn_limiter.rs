//! Limits how many connecting and disconnecting tasks run in one round of the scheduler, which runs tasks in wake
//! order. Ten thousand reconnects at once would otherwise queue several tasks each before every step of unaffected
//! links. The others wait without cost; when nothing else is runnable the next round begins at once.
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use turnway_core::limits;

/// A limiter of connects and disconnects, shared by all listeners.
#[derive(Debug)]
pub struct ChurnLimiter(Semaphore);

// === impl ChurnLimiter ===

impl ChurnLimiter {
    /// Waits for a turn: at most [`limits::LINK_CHANGES_PER_ROUND_MAX`] callers pass in one round of the scheduler,
    /// first come first served. Only scheduler rounds delay a caller.
    pub async fn wait_turn(&self) {
        // The semaphore is never closed; if it were, every caller would pass.
        let _turn = self.0.acquire().await;
        yield_now().await;
    }
}

impl Default for ChurnLimiter {
    fn default() -> Self {
        Self(Semaphore::new(limits::LINK_CHANGES_PER_ROUND_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::task::JoinSet;

    /// Covers: G-12.
    #[tokio::test]
    async fn each_round_admits_a_limited_number_in_order() {
        const MANY: usize = 100;
        let turnstile = Arc::new(ChurnLimiter::default());
        let passed = Arc::new(AtomicUsize::new(0));
        let mut many = JoinSet::new();
        for n in 0..MANY {
            let turnstile = Arc::clone(&turnstile);
            let passed = Arc::clone(&passed);
            many.spawn(async move {
                turnstile.wait_turn().await;
                (n, passed.fetch_add(1, Ordering::Relaxed))
            });
        }
        let mut before = 0;
        let mut rounds = 0;
        while before < MANY {
            yield_now().await;
            let now = passed.load(Ordering::Relaxed);
            assert!(now - before <= limits::LINK_CHANGES_PER_ROUND_MAX, "{before} and then {now}");
            (before, rounds) = (now, rounds + 1);
        }
        // Callers wait, and only for rounds; a few more than the minimum, for the first and the last turn.
        assert!(
            (MANY / limits::LINK_CHANGES_PER_ROUND_MAX..=2 * MANY / limits::LINK_CHANGES_PER_ROUND_MAX)
                .contains(&rounds),
            "{rounds}"
        );
        // The order within a round is not defined.
        for (came, passed) in many.join_all().await {
            assert_eq!(
                came / limits::LINK_CHANGES_PER_ROUND_MAX,
                passed / limits::LINK_CHANGES_PER_ROUND_MAX,
                "{came}"
            );
        }
    }
}
