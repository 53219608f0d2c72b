//! One direction of a call between two nodes: numbered messages, and the count that the other node has received.
use std::collections::VecDeque;

/// The sending direction.
#[derive(Debug)]
pub(super) struct Outflow<T> {
    /// Sent, and not known to have been received.
    unheard: VecDeque<T>,
    /// The number of the next message.
    said: u64,
    /// The number of messages known to have been passed on.
    taken: u64,
    /// The number of messages sent when the last report went out, and the one before it.
    counted: [u64; 2],
}

/// The receiving direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Inflow {
    /// Messages received without a gap, from the first on.
    pub(super) got: u64,
    /// Received messages that were passed on.
    pub(super) taken: u64,
    /// Passed-on messages that were reported.
    pub(super) told: u64,
}

// === impl Outflow ===

impl<T> Default for Outflow<T> {
    fn default() -> Self {
        Self { unheard: VecDeque::new(), said: 0, taken: 0, counted: [0, 0] }
    }
}

impl<T: Clone> Outflow<T> {
    /// Adds a message and returns its number.
    pub(super) fn say(&mut self, word: T) -> u64 {
        self.unheard.push_back(word);
        self.said += 1;
        self.said - 1
    }

    /// Returns the number of messages that may not have been received.
    pub(super) fn unheard(&self) -> usize {
        self.unheard.len()
    }

    /// Processes a report; returns the number of messages newly reported as passed on.
    pub(super) fn heard(&mut self, got: u64, taken: u64) -> u64 {
        while self.first() < got && self.unheard.pop_front().is_some() {}
        // Reports may arrive out of order, and none is greater than the number of messages sent.
        let taken = taken.min(self.first()).max(self.taken);
        taken - std::mem::replace(&mut self.taken, taken)
    }

    /// Records that a report goes out.
    pub(super) fn count(&mut self) {
        self.counted = [self.counted[1], self.said];
    }

    /// Returns the messages that must have been lost: sent before the report before the last one, and still
    /// unconfirmed.
    pub(super) fn lost(&self) -> Vec<(u64, T)> {
        let first = self.first();
        if first < self.counted[0] {
            (first..).zip(self.unheard.iter().cloned()).collect()
        } else {
            Vec::new()
        }
    }

    fn first(&self) -> u64 {
        self.said - self.unheard.len() as u64
    }
}

// === impl Inflow ===

impl Inflow {
    /// Returns whether the message with this number is the next one; counts the message if so.
    pub(super) fn take(&mut self, n: u64) -> bool {
        let is_next = n == self.got;
        self.got += u64::from(is_next);
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_missing_after_two_reports_are_resent_in_order() {
        let mut out = Outflow::default();
        assert_eq!([out.say('a'), out.say('b'), out.say('c')], [0, 1, 2]);
        out.count();
        assert_eq!(out.heard(1, 0), 0);
        assert!(out.lost().is_empty(), "it may be on its way");
        out.count();
        assert_eq!(out.lost(), [(1, 'b'), (2, 'c')]);
        assert_eq!(out.heard(3, 2), 2);
        assert!(out.lost().is_empty() && out.unheard() == 0);
        // An outdated report, and one that exceeds the messages sent.
        assert_eq!([out.heard(1, 1), out.heard(9, 9)], [0, 1]);
    }

    #[test]
    fn only_the_next_sequence_number_is_accepted() {
        let mut flow = Inflow::default();
        let taken: Vec<bool> = [0, 0, 2, 1, 3, 2].map(|n| flow.take(n)).to_vec();
        assert_eq!(taken, [true, false, false, true, false, true]);
    }
}
