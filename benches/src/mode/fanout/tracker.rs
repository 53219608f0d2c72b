//! Tracks how much of each turn every listener has received, and how long after the first listener.
use crate::mode::session_client::AnswerProgress;
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::wire::{RunKey, ServerMessage};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Maximum marks of one turn that some listener has not passed. A listener that is further behind is measured
/// again from the oldest remaining mark.
const MARKS_MAX: usize = 65_536;

/// The progress of all listeners of a session.
#[derive(Debug)]
pub(super) struct FanoutTracker {
    listeners: usize,
    turns: BTreeMap<RunKey, TrackedTurn>,
    /// Pieces of text received by all listeners together.
    pub(super) deltas: u64,
    /// Bytes of these pieces.
    pub(super) bytes: u64,
}

/// The progress of one listener in the current turn.
#[derive(Debug, Default)]
pub(super) struct ListenerProgress {
    turn: Option<RunKey>,
    answer: AnswerProgress,
    /// Index of the first mark that the listener has not passed.
    next: usize,
}

/// A turn of which some listener has received a part, and some listener not the end.
#[derive(Debug, Default)]
struct TrackedTurn {
    marks: VecDeque<Mark>,
    /// Number of marks that were removed, because all listeners have passed them.
    forgotten: usize,
    ended: usize,
}

/// An offset in the text, and the time at which a listener first reached it.
#[derive(Debug)]
struct Mark {
    end: u64,
    at: Instant,
    reached: usize,
}

// === impl FanoutTracker ===

impl FanoutTracker {
    pub(super) fn new(listeners: usize) -> Self {
        Self { listeners, turns: BTreeMap::new(), deltas: 0, bytes: 0 }
    }

    /// Records that a listener received a piece of text.
    pub(super) fn record_text(
        &mut self,
        run: &Run,
        seat: &mut ListenerProgress,
        key: RunKey,
        heard: &ServerMessage<'_>,
        now: Instant,
    ) {
        seat.turn_to(key);
        if seat.answer.append(heard).is_err() {
            run.count(Count::Gaps, 1);
        }
        let bytes = heard.text.as_deref().map_or(0, str::len) as u64;
        (self.deltas, self.bytes) = (self.deltas + 1, self.bytes + bytes);
        run.count(Count::Deltas, 1);
        run.count(Count::TextBytes, bytes);
        let turn = self.turns.entry(key).or_default();
        turn.record_progress(run, seat, self.listeners, now);
    }

    /// Records that a listener received the end of a turn. Returns whether it was the last one to do so.
    pub(super) fn record_end(
        &mut self,
        run: &Run,
        seat: &mut ListenerProgress,
        key: RunKey,
        heard: &ServerMessage<'_>,
    ) -> bool {
        seat.turn_to(key);
        let is_whole =
            heard.status.as_deref() != Some("completed") || heard.text_bytes.unwrap_or(0) == seat.answer.bytes;
        run.count(Count::Gaps, u64::from(!is_whole));
        *seat = ListenerProgress::default();
        let turn = self.turns.entry(key).or_default();
        turn.ended += 1;
        let is_last = turn.ended >= self.listeners;
        if is_last {
            self.turns.remove(&key);
        }
        is_last
    }

    /// Removes a listener, so that nothing waits for it.
    pub(super) fn remove_listener(&mut self, run: &Run) {
        self.listeners = self.listeners.saturating_sub(1);
        let listeners = self.listeners;
        self.turns.retain(|_, turn| turn.ended < listeners);
        if listeners == 0 {
            run.count_error("nobody_listens");
        }
    }
}

// === impl ListenerProgress ===

impl ListenerProgress {
    fn turn_to(&mut self, key: RunKey) {
        if self.turn != Some(key) {
            *self = Self { turn: Some(key), ..Self::default() };
        }
    }
}

// === impl Turn ===

impl TrackedTurn {
    /// Records that a listener reached its current offset, and measures it against the listeners that were
    /// there before.
    fn record_progress(&mut self, run: &Run, seat: &mut ListenerProgress, listeners: usize, now: Instant) {
        seat.next = seat.next.max(self.forgotten);
        let reached = seat.answer.bytes;
        while let Some(mark) = self.marks.get_mut(seat.next - self.forgotten)
            && mark.end <= reached
        {
            mark.reached += 1;
            seat.next += 1;
            run.record_duration(Measure::BehindFirst, now.saturating_duration_since(mark.at));
            if mark.reached >= listeners {
                run.record_duration(Measure::LastListener, now.saturating_duration_since(mark.at));
            }
        }
        if self.marks.back().is_none_or(|last| last.end < reached) && self.marks.len() < MARKS_MAX {
            self.marks.push_back(Mark { end: reached, at: now, reached: 1 });
            seat.next = self.forgotten + self.marks.len();
        }
        while self.marks.front().is_some_and(|mark| mark.reached >= listeners) {
            self.marks.pop_front();
            self.forgotten += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn turn_at(turn: &mut TrackedTurn, seat: &mut ListenerProgress, bytes: u64, run: &Run, now: Instant) {
        seat.answer.bytes = bytes;
        turn.record_progress(run, seat, 2, now);
    }

    #[test]
    fn the_last_listener_is_measured_from_the_first() {
        let run = Run::idle(Measure::BehindFirst);
        let mut turn = TrackedTurn::default();
        let mut first = ListenerProgress::default();
        let mut second = ListenerProgress::default();
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        turn_at(&mut turn, &mut first, 10, &run, after(0));
        turn_at(&mut turn, &mut first, 20, &run, after(1));
        // One larger piece passes two marks.
        turn_at(&mut turn, &mut second, 20, &run, after(5));
        assert!(turn.marks.is_empty() && turn.forgotten == 2);
        let record = run.record().borrow();
        let behind = record.histogram(Measure::BehindFirst).expect("measured");
        assert_eq!((behind.len(), behind.max() / 1_000_000), (2, 5));
        assert_eq!(record.histogram(Measure::LastListener).expect("measured").len(), 2);
    }
}
