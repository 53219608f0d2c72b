//! One direction of a call between two nodes: numbered messages, and the count that the other node has received.
use std::collections::VecDeque;

/// The sending direction.
#[derive(Debug)]
pub(super) struct CallSender<T> {
    /// Sent, and not known to have been received.
    unconfirmed: VecDeque<T>,
    /// The number of the next message.
    next_number: u64,
    /// The number of messages known to have been passed on.
    delivered: u64,
    /// The number of messages sent when the last report went out, and the one before it.
    sent_at_reports: [u64; 2],
}

/// The receiving direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallReceiver {
    /// Messages received without a gap, from the first on.
    pub(super) received: u64,
    /// Received messages that were passed on.
    pub(super) delivered: u64,
    /// Passed-on messages that were reported.
    pub(super) reported: u64,
}

// === impl CallSender ===

impl<T> Default for CallSender<T> {
    fn default() -> Self {
        Self { unconfirmed: VecDeque::new(), next_number: 0, delivered: 0, sent_at_reports: [0, 0] }
    }
}

impl<T: Clone> CallSender<T> {
    /// Adds a message and returns its number.
    pub(super) fn push(&mut self, message: T) -> u64 {
        self.unconfirmed.push_back(message);
        self.next_number += 1;
        self.next_number - 1
    }

    /// Returns the number of messages that may not have been received.
    pub(super) fn unconfirmed_count(&self) -> usize {
        self.unconfirmed.len()
    }

    /// Processes a report; returns the number of messages newly reported as passed on.
    pub(super) fn handle_report(&mut self, got: u64, delivered: u64) -> u64 {
        while self.first() < got && self.unconfirmed.pop_front().is_some() {}
        // Reports may arrive out of order, and none is greater than the number of messages sent.
        let delivered = delivered.min(self.first()).max(self.delivered);
        delivered - std::mem::replace(&mut self.delivered, delivered)
    }

    /// Records that a report goes out.
    pub(super) fn record_report(&mut self) {
        self.sent_at_reports = [self.sent_at_reports[1], self.next_number];
    }

    /// Returns the messages that must have been lost: sent before the report before the last one, and still
    /// unconfirmed.
    pub(super) fn lost_messages(&self) -> Vec<(u64, T)> {
        let first = self.first();
        if first < self.sent_at_reports[0] {
            (first..).zip(self.unconfirmed.iter().cloned()).collect()
        } else {
            Vec::new()
        }
    }

    fn first(&self) -> u64 {
        self.next_number - self.unconfirmed.len() as u64
    }
}

// === impl CallReceiver ===

impl CallReceiver {
    /// Returns whether the message with this number is the next one; counts the message if so.
    pub(super) fn accept(&mut self, n: u64) -> bool {
        let is_next = n == self.received;
        self.received += u64::from(is_next);
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_missing_after_two_reports_are_resent_in_order() {
        let mut out = CallSender::default();
        assert_eq!([out.push('a'), out.push('b'), out.push('c')], [0, 1, 2]);
        out.record_report();
        assert_eq!(out.handle_report(1, 0), 0);
        assert!(out.lost_messages().is_empty(), "it may be on its way");
        out.record_report();
        assert_eq!(out.lost_messages(), [(1, 'b'), (2, 'c')]);
        assert_eq!(out.handle_report(3, 2), 2);
        assert!(out.lost_messages().is_empty() && out.unconfirmed_count() == 0);
        // An outdated report, and one that exceeds the messages sent.
        assert_eq!([out.handle_report(1, 1), out.handle_report(9, 9)], [0, 1]);
    }

    #[test]
    fn only_the_next_sequence_number_is_accepted() {
        let mut flow = CallReceiver::default();
        let accepted: Vec<bool> = [0, 0, 2, 1, 3, 2].map(|n| flow.accept(n)).to_vec();
        assert_eq!(accepted, [true, false, false, true, false, true]);
    }
}
