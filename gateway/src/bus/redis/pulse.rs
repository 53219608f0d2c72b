//! A heartbeat through the node's own channel. A subscription may look intact to both sides while no message arrives
//! over it; then other nodes think that this node receives, and no error is reported. Used by `publish` and `inbox`.
use crate::clock::Clock;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use turnway_core::time::Mono;

/// Pause between two heartbeats.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// Heartbeats that the server took and that did not return within a heartbeat's time: this many are no accident.
const MISSED: usize = 2;
/// A node that has not received its own heartbeat for this long does not receive other nodes either.
const UNHEARD: Duration = Duration::from_secs(3);
/// Heartbeats remembered: more than are in flight while a server responds at all.
const KEPT: usize = 16;

/// The heartbeats sent to oneself that have not returned.
pub(super) struct Pulse {
    clock: Clock,
    began: Mono,
    beats: Mutex<Beats>,
}

#[derive(Default)]
struct Beats {
    number: u64,
    waiting: VecDeque<Beat>,
    /// When a heartbeat last returned, and how long it had taken.
    heard: Option<(Mono, Duration)>,
    /// True if the subscription was found dead.
    deaf: bool,
}

struct Beat {
    number: u64,
    sent: Mono,
    /// When the server was known to have the heartbeat. Its return is due from then on, even from far away, where one
    /// direction may be slower than the other.
    taken: Option<Mono>,
}

// === impl Pulse ===

impl Pulse {
    pub(super) fn new(clock: Clock) -> Self {
        Self { began: clock.mono(), clock, beats: Mutex::default() }
    }

    /// Starts a heartbeat; returns its number.
    pub(super) fn begin(&self) -> u64 {
        let (sent, mut beats) = (self.clock.mono(), self.beats());
        beats.number += 1;
        let number = beats.number;
        beats.waiting.push_back(Beat { number, sent, taken: None });
        if beats.waiting.len() > KEPT {
            beats.waiting.pop_front();
        }
        number
    }

    /// Records that the server has taken a heartbeat.
    pub(super) fn taken(&self, number: u64) {
        let now = self.clock.mono();
        if let Some(beat) = self.beats().waiting.iter_mut().find(|beat| beat.number == number) {
            beat.taken = Some(now);
        }
    }

    /// Records that a heartbeat returned, and drops those before it. Returns the time it took.
    pub(super) fn heard(&self, number: u64) -> Option<Duration> {
        let (now, mut beats) = (self.clock.mono(), self.beats());
        let sent = beats.waiting.iter().find(|beat| beat.number == number)?.sent;
        beats.waiting.retain(|beat| beat.number > number);
        beats.heard = Some((now, now - sent));
        Some(now - sent)
    }

    /// Returns the round trip of the last heartbeat, or the time since its return if the next one is overdue.
    pub(super) fn lag(&self) -> Option<Duration> {
        let now = self.clock.mono();
        let (at, took) = self.beats().heard?;
        let silent = now - at;
        Some(if silent > BEAT * 2 { silent } else { took })
    }

    /// Returns whether too many heartbeats did not return.
    pub(super) fn is_deaf(&self) -> bool {
        let now = self.clock.mono();
        let beats = self.beats();
        let usual = beats.heard.map_or(BEAT, |(_, took)| took.max(BEAT));
        let missed = beats.waiting.iter().filter(|beat| beat.taken.is_some_and(|taken| taken + usual <= now));
        missed.count() >= MISSED
    }

    /// Returns whether no heartbeat has returned for so long that this node receives no other node's messages.
    pub(super) fn is_unheard(&self) -> bool {
        let now = self.clock.mono();
        let last = self.beats().heard.map_or(self.began, |(at, _)| at);
        last + UNHEARD <= now
    }

    /// Records that the subscription is given up as dead.
    pub(super) fn fell_silent(&self) {
        let mut beats = self.beats();
        beats.waiting.clear();
        beats.deaf = true;
    }

    /// Drops the heartbeats in flight, because there is a new subscription. Returns whether the previous one was given
    /// up as dead.
    pub(super) fn forget(&self) -> bool {
        let mut beats = self.beats();
        beats.waiting.clear();
        std::mem::take(&mut beats.deaf)
    }

    fn beats(&self) -> MutexGuard<'_, Beats> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
