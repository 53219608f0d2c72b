//! The wall time of a node as a pure state machine: readings of an unreliable clock go in, a time that moves evenly
//! comes out. It reads no clock; the gateway and the simulator pass the readings in.
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::time::{Millis, Mono};
use std::time::Duration;

/// A reading of a clock. Reading takes time, so the moment of the reading is only known to lie between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The time that the clock gave.
    pub time: Millis,
    /// Monotonic time before the clock was read.
    pub after: Mono,
    /// Monotonic time after the clock had answered.
    pub before: Mono,
}

/// An event worth reporting to operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEvent {
    /// The clock stepped by this many milliseconds; the node's time does not follow yet.
    StepDetected(i64),
    /// The clock agreed with itself for long enough: the node's time jumped by this many milliseconds.
    StepAccepted(i64),
    /// The clock is back at the expected time.
    Recovered,
}

/// A segment of the node's time: wall time as a function of monotonic time, until the next correction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSegment {
    /// Start of the segment, in microseconds of the monotonic clock.
    from_us: i64,
    /// Wall time minus monotonic time at the start, in microseconds.
    offset_us: i64,
    /// The part of the correction to that offset which is still to be applied, gradually.
    remaining_us: i64,
}

/// The wall time of a node.
///
/// The time is anchored once and then advanced by the monotonic clock. A clock that differs by little is followed
/// smoothly, and the time never goes back. A clock that differs by more than [`limits::CLOCK_STEP`] has stepped: the
/// step is accepted only after the clock has agreed with itself for [`limits::CLOCK_STEP_CONFIRM`], and the time then
/// jumps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    segment: TimeSegment,
    /// True while the anchor is a guess; the first reading replaces the guess.
    is_provisional: bool,
    pending_step: Option<PendingStep>,
    jumps: u32,
}

/// A step of the clock that is not accepted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingStep {
    offset_us: i64,
    since: Mono,
    /// Time of the last reading that agreed.
    last_agreed: Mono,
}

// === impl TimeSegment ===

impl TimeSegment {
    /// Returns the wall time at a monotonic time; never decreasing.
    pub fn at(&self, mono: Mono) -> Millis {
        let now = micros(mono.0);
        let time = now.saturating_add(self.offset_at(now));
        Millis(u64::try_from(time).unwrap_or(0) / 1000)
    }

    fn offset_at(&self, now_us: i64) -> i64 {
        let elapsed = now_us.saturating_sub(self.from_us).max(0);
        let most = elapsed / limits::CLOCK_SLEW_PARTS;
        self.offset_us.saturating_add(self.remaining_us.clamp(-most, most))
    }

    /// Returns the offset after the whole correction.
    fn target_us(&self) -> i64 {
        self.offset_us.saturating_add(self.remaining_us)
    }
}

// === impl WallClock ===

impl WallClock {
    /// Creates a clock that is anchored at a reading.
    pub fn anchored(reading: ClockReading) -> Self {
        let (low, high) = reading.offsets();
        let segment =
            TimeSegment { from_us: micros(reading.before.0), offset_us: midpoint(low, high), remaining_us: 0 };
        Self { segment, ..Self::default() }
    }

    /// Creates a clock that is anchored at a guess, which the first reading of the right clock replaces, whatever the
    /// difference.
    pub fn provisional(reading: ClockReading) -> Self {
        Self { is_provisional: true, ..Self::anchored(reading) }
    }

    /// Returns whether the time rests on a guess.
    pub fn is_provisional(&self) -> bool {
        self.is_provisional
    }

    /// Returns the current segment of the time.
    pub fn segment(&self) -> TimeSegment {
        self.segment
    }

    /// Returns the wall time at a monotonic time.
    pub fn at(&self, mono: Mono) -> Millis {
        self.segment.at(mono)
    }

    /// Returns the number of jumps so far; a value computed before a jump may be stale.
    pub fn jumps(&self) -> u32 {
        self.jumps
    }

    /// Handles a reading of the clock that this time follows.
    pub fn observe(&mut self, reading: ClockReading) -> Option<ClockEvent> {
        if self.is_provisional && !planted(Mutant::ClockKeepsGuess) {
            *self = Self { jumps: self.jumps, ..Self::anchored(reading) };
            return None;
        }
        let ((low, high), target) = (reading.offsets(), self.segment.target_us());
        let nearest = target.clamp(low, high);
        let by = nearest.saturating_sub(target);
        if by.unsigned_abs() <= micros(limits::CLOCK_STEP).unsigned_abs() {
            if by != 0 {
                self.start_slew(reading.before, nearest);
            }
            return self.pending_step.take().map(|_| ClockEvent::Recovered);
        }
        self.handle_step(reading.before, (low, high), by)
    }

    /// Starts a gradual correction to another offset.
    fn start_slew(&mut self, now: Mono, target_us: i64) {
        let from_us = micros(now.0);
        let offset_us = self.segment.offset_at(from_us);
        let change_us = target_us.saturating_sub(offset_us);
        self.segment = if planted(Mutant::ClockFallsBack) {
            TimeSegment { from_us, offset_us: target_us, remaining_us: 0 }
        } else {
            TimeSegment { from_us, offset_us, remaining_us: change_us }
        };
    }

    /// Records that the clock stepped; the time jumps once the step has lasted for [`limits::CLOCK_STEP_CONFIRM`].
    fn handle_step(&mut self, now: Mono, (low, high): (i64, i64), by: i64) -> Option<ClockEvent> {
        let agreed = self.pending_step.filter(|step| {
            let off = step.offset_us.clamp(low, high).saturating_sub(step.offset_us);
            off.unsigned_abs() <= micros(limits::CLOCK_AGREEMENT).unsigned_abs()
                && now - step.last_agreed <= limits::CLOCK_READING_GAP_MAX
        });
        let Some(step) = agreed else {
            self.pending_step = Some(PendingStep { offset_us: midpoint(low, high), since: now, last_agreed: now });
            if !planted(Mutant::ClockStepsAtOnce) {
                return Some(ClockEvent::StepDetected(millis(by)));
            }
            return self.jump(now, (low, high));
        };
        self.pending_step = Some(PendingStep { last_agreed: now, ..step });
        if now - step.since < limits::CLOCK_STEP_CONFIRM { None } else { self.jump(now, (low, high)) }
    }

    fn jump(&mut self, now: Mono, (low, high): (i64, i64)) -> Option<ClockEvent> {
        let from_us = micros(now.0);
        let offset_us = midpoint(low, high);
        let by = offset_us.saturating_sub(self.segment.offset_at(from_us));
        self.segment = TimeSegment { from_us, offset_us, remaining_us: 0 };
        self.pending_step = None;
        self.jumps = self.jumps.wrapping_add(1);
        Some(ClockEvent::StepAccepted(millis(by)))
    }
}

// === impl ClockReading ===

impl ClockReading {
    /// Returns the least and the greatest offset of wall time from monotonic time that fit the reading, whose time is
    /// in whole milliseconds.
    fn offsets(&self) -> (i64, i64) {
        let time = i64::try_from(self.time.0.saturating_mul(1000)).unwrap_or(i64::MAX);
        let after = micros(self.after.0);
        let before = micros(self.before.0).max(micros(self.after.0));
        (time.saturating_sub(before), time.saturating_sub(after).saturating_add(999))
    }
}

fn midpoint(low: i64, high: i64) -> i64 {
    low.saturating_add(high.saturating_sub(low) / 2)
}

/// Rounds to whole milliseconds.
fn millis(us: i64) -> i64 {
    us.saturating_add(499).div_euclid(1000)
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
