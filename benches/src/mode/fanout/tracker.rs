//! Tracks how much of each turn every listener has received, and how long after the first listener.
use crate::mode::session_client::AnswerProgress;
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::wire::{RunKey, ServerMessage};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
#[derive(Debug)]
pub(super) struct ListenerProgress {
    /// Number of the listener among all listeners.
    number: usize,
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
    /// Listeners that have received the end, without those that have left.
    ended: BTreeSet<usize>,
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
        progress: &mut ListenerProgress,
        key: RunKey,
        message: &ServerMessage<'_>,
        now: Instant,
    ) {
        progress.turn_to(key);
        if progress.answer.append(message).is_err() {
            run.count(Count::Gaps, 1);
        }
        let bytes = message.text.as_deref().map_or(0, str::len) as u64;
        (self.deltas, self.bytes) = (self.deltas + 1, self.bytes + bytes);
        run.count(Count::Deltas, 1);
        run.count(Count::TextBytes, bytes);
        let turn = self.turns.entry(key).or_default();
        turn.record_progress(run, progress, self.listeners, now);
    }

    /// Records that a listener received the end of a turn. Returns whether it was the last one to do so.
    pub(super) fn record_end(
        &mut self,
        run: &Run,
        progress: &mut ListenerProgress,
        key: RunKey,
        message: &ServerMessage<'_>,
    ) -> bool {
        progress.turn_to(key);
        let is_whole =
            message.status.as_deref() != Some("completed") || message.text_bytes.unwrap_or(0) == progress.answer.bytes;
        run.count(Count::Gaps, u64::from(!is_whole));
        *progress = ListenerProgress::new(progress.number);
        self.turns.entry(key).or_default().ended.insert(progress.number);
        self.end_turns()
    }

    /// Removes a listener, so that nothing waits for it. Returns whether it was the last one that a turn waited for.
    pub(super) fn remove_listener(&mut self, run: &Run, progress: &ListenerProgress) -> bool {
        self.listeners = self.listeners.saturating_sub(1);
        for (key, turn) in &mut self.turns {
            let has_ended = turn.ended.remove(&progress.number);
            let passed = if progress.turn == Some(*key) { progress.next } else { 0 };
            turn.forget_listener(if has_ended { usize::MAX } else { passed });
        }
        if self.listeners == 0 {
            self.turns.clear();
            run.count_error("nobody_listens");
            return false;
        }
        self.end_turns()
    }

    /// Removes the turns whose end every listener has received. Returns whether there was one.
    fn end_turns(&mut self) -> bool {
        let before = self.turns.len();
        let listeners = self.listeners;
        self.turns.retain(|_, turn| turn.ended.len() < listeners);
        self.turns.len() < before
    }
}

// === impl ListenerProgress ===

impl ListenerProgress {
    /// Creates the progress of the listener with this number, which is in no turn yet.
    pub(super) fn new(number: usize) -> Self {
        Self { number, turn: None, answer: AnswerProgress::default(), next: 0 }
    }

    fn turn_to(&mut self, key: RunKey) {
        if self.turn != Some(key) {
            *self = Self { turn: Some(key), ..Self::new(self.number) };
        }
    }
}

// === impl TrackedTurn ===

impl TrackedTurn {
    /// Forgets that a listener passed the marks before the index `next`.
    fn forget_listener(&mut self, next: usize) {
        let passed = next.saturating_sub(self.forgotten);
        for mark in self.marks.iter_mut().take(passed) {
            mark.reached = mark.reached.saturating_sub(1);
        }
    }

    /// Records that a listener reached its current offset, and measures it against the listeners that were
    /// there before.
    fn record_progress(&mut self, run: &Run, progress: &mut ListenerProgress, listeners: usize, now: Instant) {
        progress.next = progress.next.max(self.forgotten);
        let reached = progress.answer.bytes;
        while let Some(mark) = self.marks.get_mut(progress.next - self.forgotten)
            && mark.end <= reached
        {
            mark.reached += 1;
            progress.next += 1;
            run.record_duration(Measure::BehindFirst, now.saturating_duration_since(mark.at));
            if mark.reached >= listeners {
                run.record_duration(Measure::LastListener, now.saturating_duration_since(mark.at));
            }
        }
        if self.marks.back().is_none_or(|last| last.end < reached) && self.marks.len() < MARKS_MAX {
            self.marks.push_back(Mark { end: reached, at: now, reached: 1 });
            progress.next = self.forgotten + self.marks.len();
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
    use std::rc::Rc;
    use std::time::Duration;

    fn turn_at(turn: &mut TrackedTurn, progress: &mut ListenerProgress, bytes: u64, run: &Run, now: Instant) {
        progress.answer.bytes = bytes;
        turn.record_progress(run, progress, 2, now);
    }

    #[test]
    fn the_last_listener_is_measured_from_the_first() {
        let run = Run::idle(Measure::BehindFirst);
        let mut turn = TrackedTurn::default();
        let mut first = ListenerProgress::new(0);
        let mut second = ListenerProgress::new(1);
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

    const TURN: &str = "s.abcdefghijklmnopqrstuvwxyz";

    /// A session with some listeners of one turn.
    struct Audience {
        run: Rc<Run>,
        tracker: FanoutTracker,
        seats: Vec<ListenerProgress>,
    }

    impl Audience {
        fn of(count: usize) -> Self {
            let run = Run::idle(Measure::BehindFirst);
            Self { run, tracker: FanoutTracker::new(count), seats: (0..count).map(ListenerProgress::new).collect() }
        }

        fn hears(&mut self, listener: usize, offset: u64, text: &str) {
            let message = ServerMessage { offset: Some(offset), text: Some(text.into()), ..ServerMessage::default() };
            let key = RunKey::of(TURN).expect("a run");
            self.tracker.record_text(&self.run, &mut self.seats[listener], key, &message, Instant::now());
        }

        fn hears_the_end(&mut self, listener: usize) -> bool {
            let message = ServerMessage { status: Some("failed".into()), ..ServerMessage::default() };
            let key = RunKey::of(TURN).expect("a run");
            self.tracker.record_end(&self.run, &mut self.seats[listener], key, &message)
        }

        fn leaves(&mut self, listener: usize) -> bool {
            self.tracker.remove_listener(&self.run, &self.seats[listener])
        }

        /// Returns how often the last listener was measured.
        fn last_measured(&self) -> u64 {
            self.run.record().borrow().histogram(Measure::LastListener).map_or(0, |measured| measured.len())
        }
    }

    #[test]
    fn a_turn_ends_when_the_last_late_listener_leaves() {
        let mut audience = Audience::of(3);
        assert!(!audience.hears_the_end(0) && !audience.hears_the_end(1));
        assert!(audience.leaves(2), "the others have the end");
        assert!(audience.tracker.turns.is_empty());
        // The two that are left decide about the next turn.
        assert!(!audience.hears_the_end(0) && audience.hears_the_end(1));
    }

    #[test]
    fn a_listener_that_left_is_not_waited_for_and_ends_no_turn() {
        let mut audience = Audience::of(3);
        assert!(!audience.hears_the_end(0));
        assert!(!audience.leaves(0), "two others have no end yet");
        assert!(!audience.hears_the_end(1), "the last one has no end yet");
        assert!(audience.hears_the_end(2));
        assert!(audience.tracker.turns.is_empty());
    }

    #[test]
    fn no_turn_begins_when_nobody_listens() {
        let mut audience = Audience::of(1);
        audience.hears(0, 0, "a word");
        assert!(!audience.leaves(0));
        assert!(audience.tracker.turns.is_empty());
        assert_eq!(audience.run.record().borrow().errors()["nobody_listens"], 1);
    }

    #[test]
    fn marks_of_a_listener_that_left_do_not_count() {
        let mut audience = Audience::of(3);
        audience.hears(0, 0, "a word");
        audience.leaves(0);
        audience.hears(1, 0, "a word");
        assert_eq!(audience.last_measured(), 0, "the third has not heard it");
        audience.hears(2, 0, "a word");
        assert_eq!(audience.last_measured(), 1);
    }
}
