//! A heartbeat through the node's own channel. A subscription may look intact to both sides while no message arrives
//! over it; then other nodes think that this node receives, and no error is reported. Used by `publish` and `inbox`.
use crate::clock::Clock;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use turnway_core::time::Mono;

/// Pause between two heartbeats.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);
/// Heartbeats that the server took and that did not return within a heartbeat's time: this many are no accident.
const MISSED_MAX: usize = 2;
/// A node that has not received its own heartbeat for this long does not receive other nodes either.
const OVERDUE_AFTER: Duration = Duration::from_secs(3);
/// Heartbeats remembered: more than are in flight while a server responds at all.
const PENDING_MAX: usize = 16;

/// The heartbeats sent to oneself that have not returned.
pub(super) struct Heartbeat {
    clock: Clock,
    started_at: Mono,
    state: Mutex<HeartbeatState>,
}

#[derive(Default)]
struct HeartbeatState {
    number: u64,
    pending: VecDeque<PendingHeartbeat>,
    /// When a heartbeat last returned, and how long it had taken.
    last_return: Option<(Mono, Duration)>,
    /// True if the subscription was found dead.
    is_dead: bool,
}

struct PendingHeartbeat {
    number: u64,
    sent_at: Mono,
    /// When the server was known to have the heartbeat. Its return is due from then on, even from far away, where one
    /// direction may be slower than the other.
    published_at: Option<Mono>,
}

// === impl Heartbeat ===

impl Heartbeat {
    pub(super) fn new(clock: Clock) -> Self {
        Self { started_at: clock.mono(), clock, state: Mutex::default() }
    }

    /// Starts a heartbeat; returns its number.
    pub(super) fn begin(&self) -> u64 {
        let sent = self.clock.mono();
        let mut beats = self.state();
        beats.number += 1;
        let number = beats.number;
        beats.pending.push_back(PendingHeartbeat { number, sent_at: sent, published_at: None });
        if beats.pending.len() > PENDING_MAX {
            beats.pending.pop_front();
        }
        number
    }

    /// Records that the server has taken a heartbeat.
    pub(super) fn record_published(&self, number: u64) {
        let now = self.clock.mono();
        if let Some(beat) = self.state().pending.iter_mut().find(|beat| beat.number == number) {
            beat.published_at = Some(now);
        }
    }

    /// Records that a heartbeat returned, and drops those before it. Returns the time it took.
    pub(super) fn record_return(&self, number: u64) -> Option<Duration> {
        let now = self.clock.mono();
        let mut beats = self.state();
        let sent = beats.pending.iter().find(|beat| beat.number == number)?.sent_at;
        beats.pending.retain(|beat| beat.number > number);
        beats.last_return = Some((now, now - sent));
        Some(now - sent)
    }

    /// Returns the round trip of the last heartbeat, or the time since its return if the next one is overdue.
    pub(super) fn lag(&self) -> Option<Duration> {
        let now = self.clock.mono();
        let (at, took) = self.state().last_return?;
        let silent = now - at;
        Some(if silent > INTERVAL * 2 { silent } else { took })
    }

    /// Returns whether too many heartbeats did not return.
    pub(super) fn is_subscription_dead(&self) -> bool {
        let now = self.clock.mono();
        let beats = self.state();
        let usual = beats.last_return.map_or(INTERVAL, |(_, took)| took.max(INTERVAL));
        let missed = beats
            .pending
            .iter()
            .filter(|beat| beat.published_at.is_some_and(|published_at| published_at + usual <= now));
        missed.count() >= MISSED_MAX
    }

    /// Returns whether no heartbeat has returned for so long that this node receives no other node's messages.
    pub(super) fn is_overdue(&self) -> bool {
        let now = self.clock.mono();
        let last = self.state().last_return.map_or(self.started_at, |(at, _)| at);
        last + OVERDUE_AFTER <= now
    }

    /// Records that the subscription is given up as dead.
    pub(super) fn mark_dead(&self) {
        let mut beats = self.state();
        beats.pending.clear();
        beats.is_dead = true;
    }

    /// Drops the heartbeats in flight, because there is a new subscription. Returns whether the previous one was given
    /// up as dead.
    pub(super) fn reset(&self) -> bool {
        let mut beats = self.state();
        beats.pending.clear();
        std::mem::take(&mut beats.is_dead)
    }

    fn state(&self) -> MutexGuard<'_, HeartbeatState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
