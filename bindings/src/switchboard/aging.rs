//! Sessions in which nothing was said for longer than they are kept: each node walks through all of them in small
//! steps, and has those at rest deleted. The store sees to it that each is deleted once, and none in use.
use super::{Switchboard, Timer};
use std::time::Duration;
use turnway_core::limits;
use turnway_core::store::{IdlePlace, Op, Reply, StoreError};
use turnway_core::time::{Millis, Now};

/// The walk of one node.
#[derive(Debug)]
pub(super) struct Aging {
    /// Time that a session is kept after its last fact; none: for ever.
    max_age: Option<Duration>,
    /// The place where the walk goes on; none: it begins anew.
    place: Option<IdlePlace>,
}

// === impl Aging ===

impl Aging {
    pub(super) fn new(max_age: Option<Duration>) -> Self {
        Self { max_age, place: None }
    }
}

// === impl Switchboard ===

impl Switchboard {
    /// Looks at the next sessions. Where the answer is lost, the walk begins anew after a while.
    pub(super) fn age(&mut self, now: Now) {
        let Some(max_age) = self.aging.max_age.filter(|_| self.drain.is_none()) else { return };
        // Sessions that are kept for seconds only are looked for more often.
        let wait = self.jitter(limits::IDLE_WALK.min(max_age / 8).max(limits::IDLE_STEP));
        self.timers.set(Timer::Age, now.mono + wait);
        let max_age = u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX);
        let before = Millis(now.store.0.saturating_sub(max_age));
        let (from, limit) = (self.aging.place.take(), limits::IDLE_SESSIONS_MAX);
        self.store(Op::Idle { from, before, limit });
    }

    /// Has what is at rest deleted, and goes on.
    pub(super) fn aged(&mut self, now: Now, before: Millis, result: Result<Reply, StoreError>) {
        let Ok(Reply::Idle { sessions, next }) = result else { return };
        for key in sessions {
            self.store(Op::Forget { key, before });
        }
        if next.is_some() {
            let wait = self.jitter(limits::IDLE_STEP);
            self.timers.set(Timer::Age, now.mono + wait);
        }
        self.aging.place = next;
    }

    /// Counts a session that was deleted. One that was not is found again by the next walk.
    pub(super) fn forgotten_for_age(&mut self, result: &Result<Reply, StoreError>) {
        self.stats.expired += u64::from(matches!(result, Ok(Reply::Done)));
    }
}
