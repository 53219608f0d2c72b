//! Keeps many who come or go in one moment from standing before everybody else.
//!
//! The scheduler runs tasks in the order in which they were woken. Ten thousand connections that break at once, and
//! come back at once, are each woken several times; whoever is not concerned has as many tasks before its own at each
//! of its own steps. So of those who come and go only a few are let through in one of the scheduler's rounds: the others
//! wait where they cost nothing, and when there is nothing else to do the next round begins at once.
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use turnway_core::limits;

/// What everybody who comes or goes passes.
#[derive(Debug)]
pub struct Turnstile(Semaphore);

// === impl Turnstile ===

impl Turnstile {
    /// Waits for one's turn: at most [`limits::TURNSTILE_MAX`] pass in one round of the scheduler. Those who
    /// came first pass first, and nothing holds anybody up but the rounds themselves.
    pub async fn pass(&self) {
        // It is never closed; if it were, all would pass.
        let _turn = self.0.acquire().await;
        yield_now().await;
    }
}

impl Default for Turnstile {
    fn default() -> Self {
        Self(Semaphore::new(limits::TURNSTILE_MAX))
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
    async fn in_one_round_so_many_pass_and_those_first_who_came_first() {
        const MANY: usize = 100;
        let (turnstile, passed) = (Arc::new(Turnstile::default()), Arc::new(AtomicUsize::new(0)));
        let mut many = JoinSet::new();
        for n in 0..MANY {
            let (turnstile, passed) = (Arc::clone(&turnstile), Arc::clone(&passed));
            many.spawn(async move {
                turnstile.pass().await;
                (n, passed.fetch_add(1, Ordering::Relaxed))
            });
        }
        let (mut before, mut rounds) = (0, 0);
        while before < MANY {
            yield_now().await;
            let now = passed.load(Ordering::Relaxed);
            assert!(now - before <= limits::TURNSTILE_MAX, "{before} and then {now}");
            (before, rounds) = (now, rounds + 1);
        }
        // They do wait, and for nothing but rounds: some more than the least, for the first turn and the last.
        assert!(
            (MANY / limits::TURNSTILE_MAX..=2 * MANY / limits::TURNSTILE_MAX).contains(&rounds),
            "{rounds}"
        );
        // Within a round they are woken in no order.
        for (came, passed) in many.join_all().await {
            assert_eq!(came / limits::TURNSTILE_MAX, passed / limits::TURNSTILE_MAX, "{came}");
        }
    }
}
