//! A heartbeat through one's own channel. A subscription may be there, as far as both sides know, and
//! nothing come by it any more: then nodes that are spoken to seem deaf, and nobody is told.
use crate::clock::Clock;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use turnway_core::time::Mono;

/// Between two beats.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// Beats that the server took and that were not heard a beat later: so many are no accident.
const MISSED: usize = 2;
/// A node that has not heard itself for so long does not hear others either.
const UNHEARD: Duration = Duration::from_secs(3);
/// Beats that are remembered: more than are under way while a server answers at all.
const KEPT: usize = 16;

/// What was said to oneself and not heard yet.
pub(super) struct Pulse {
    clock: Clock,
    began: Mono,
    beats: Mutex<Beats>,
}

#[derive(Default)]
struct Beats {
    number: u64,
    waiting: VecDeque<Beat>,
    /// When one last came back, and how long it had taken.
    heard: Option<(Mono, Duration)>,
    /// The subscription was found dead.
    deaf: bool,
}

struct Beat {
    number: u64,
    sent: Mono,
    /// When the server was known to have it. From then on it is about to come: also from far away, where one way may be
    /// slower than the other.
    taken: Option<Mono>,
}

// === impl Pulse ===

impl Pulse {
    pub(super) fn new(clock: Clock) -> Self {
        Self { began: clock.mono(), clock, beats: Mutex::default() }
    }

    /// Another beat: its number.
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

    /// The server has taken this one.
    pub(super) fn taken(&self, number: u64) {
        let now = self.clock.mono();
        if let Some(beat) = self.beats().waiting.iter_mut().find(|beat| beat.number == number) {
            beat.taken = Some(now);
        }
    }

    /// This one came back; after how long. Those before it will not.
    pub(super) fn heard(&self, number: u64) -> Option<Duration> {
        let (now, mut beats) = (self.clock.mono(), self.beats());
        let sent = beats.waiting.iter().find(|beat| beat.number == number)?.sent;
        beats.waiting.retain(|beat| beat.number > number);
        beats.heard = Some((now, now - sent));
        Some(now - sent)
    }

    /// How long the last one took; where the next one is overdue, the time since then.
    pub(super) fn lag(&self) -> Option<Duration> {
        let now = self.clock.mono();
        let (at, took) = self.beats().heard?;
        let silent = now - at;
        Some(if silent > BEAT * 2 { silent } else { took })
    }

    /// Whether too many did not come back.
    pub(super) fn is_deaf(&self) -> bool {
        let now = self.clock.mono();
        let beats = self.beats();
        let usual = beats.heard.map_or(BEAT, |(_, took)| took.max(BEAT));
        let missed = beats.waiting.iter().filter(|beat| beat.taken.is_some_and(|taken| taken + usual <= now));
        missed.count() >= MISSED
    }

    /// Whether nothing has come back for so long that this node hears nobody.
    pub(super) fn is_unheard(&self) -> bool {
        let now = self.clock.mono();
        let last = self.beats().heard.map_or(self.began, |(at, _)| at);
        last + UNHEARD <= now
    }

    /// The subscription is given up.
    pub(super) fn fell_silent(&self) {
        let mut beats = self.beats();
        beats.waiting.clear();
        beats.deaf = true;
    }

    /// What was said until now does not count: the subscription is another. Whether the last one was
    /// given up.
    pub(super) fn forget(&self) -> bool {
        let mut beats = self.beats();
        beats.waiting.clear();
        std::mem::take(&mut beats.deaf)
    }

    fn beats(&self) -> MutexGuard<'_, Beats> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
