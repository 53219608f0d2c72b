//! The expiry of a connection's token as a timer. The deadline is recomputed from the wall time at every wake-up,
//! because the clock may step. Connections of links, agents and tool runners use it.
use std::time::Duration;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::{Millis, Mono, Now};

/// The deadline at which a connection with an expired token is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenExpiry {
    ends: Millis,
    at: Mono,
}

// === impl TokenExpiry ===

impl TokenExpiry {
    /// Starts waiting for the expiry of a token, which may lie shortly before the present.
    pub(super) fn new(now: Now, ends: Millis) -> Self {
        let mut this = Self { ends, at: now.mono };
        this.has_expired(now);
        this
    }

    /// Returns the time of the next check.
    pub(super) fn deadline(&self) -> Mono {
        self.at
    }

    /// Recomputes the deadline, and returns whether the token has expired by more than [`limits::TOKEN_GRACE`].
    pub(super) fn has_expired(&mut self, now: Now) -> bool {
        self.at = now.mono + Duration::from_millis(self.last().0.saturating_sub(now.store.0));
        self.is_over(now)
    }

    /// Returns whether the deadline has passed, by the wall time, without a change of the timer.
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.last() <= now.store
    }

    /// Returns the time at which nothing is written any more.
    fn last(&self) -> Millis {
        self.ends.after(limits::TOKEN_GRACE * if planted(Planted::TokenGraceDoubled) { 2 } else { 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-03.
    #[test]
    fn expiry_follows_a_clock_that_steps() {
        let hour = Duration::from_secs(3600);
        let day = Millis(86_400_000);
        let at = |seconds: u64, store: Millis| Now { mono: Mono(Duration::from_secs(seconds)), store };
        let mut expiry = TokenExpiry::new(at(0, day), day.after(hour));
        assert_eq!(expiry.deadline(), Mono(hour + limits::TOKEN_GRACE));
        // Clock half an hour behind: the token lasts longer. Clock two hours ahead: the token expires at once.
        assert!(!expiry.has_expired(at(25, Millis(day.0 - 1_800_000))));
        assert_eq!(expiry.deadline(), Mono(Duration::from_secs(25 + 5400) + limits::TOKEN_GRACE));
        assert!(expiry.has_expired(at(50, day.after(hour * 2))));
        assert!(!expiry.has_expired(at(51, day)));
    }
}
