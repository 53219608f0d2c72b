//! Deletes sessions without facts for longer than the configured age. Every node walks through all sessions in
//! small steps; the store guarantees that each session is deleted once, and none that is in use.
use crate::switchboard::sink::{EffectSink, Timer};
use std::time::Duration;
use turnway_core::limits;
use turnway_core::store::{IdleCursor, Op, Reply, StoreError};
use turnway_core::time::{Millis, Now};

/// The walk of one node.
#[derive(Debug)]
pub(in crate::switchboard) struct IdleWalk {
    /// Time that a session is kept after its last fact; `None`: forever.
    max_age: Option<Duration>,
    /// Position at which the walk continues; `None`: from the start.
    cursor: Option<IdleCursor>,
}

impl IdleWalk {
    pub(in crate::switchboard) fn new(max_age: Option<Duration>) -> Self {
        Self { max_age, cursor: None }
    }

    /// Requests the next sessions. If the reply is lost, the walk starts anew later.
    pub(in crate::switchboard) fn start_step(&mut self, now: Now, sink: &mut EffectSink) {
        let Some(max_age) = self.max_age else { return };
        // With an age of seconds, the walk runs more often.
        let wait = sink.jitter(limits::IDLE_SCAN_WAIT.min(max_age / 8).max(limits::IDLE_SCAN_STEP_WAIT));
        sink.timers.set(Timer::Idle, now.mono + wait);
        let max_age = u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX);
        let before = Millis(now.store.0.saturating_sub(max_age));
        let from = self.cursor.take();
        let limit = limits::IDLE_SCAN_SESSIONS_MAX;
        sink.store(Op::ScanIdle { from, before, limit });
    }

    /// Deletes the idle sessions and continues the walk.
    pub(in crate::switchboard) fn handle_idle(
        &mut self,
        now: Now,
        before: Millis,
        result: Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) {
        let Ok(Reply::Idle { sessions, next }) = result else { return };
        for key in sessions {
            sink.store(Op::DeleteIdle { key, before });
        }
        if next.is_some() {
            let wait = sink.jitter(limits::IDLE_SCAN_STEP_WAIT);
            sink.timers.set(Timer::Idle, now.mono + wait);
        }
        self.cursor = next;
    }
}
