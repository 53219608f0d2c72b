//! One direction of a call between two nodes: words that have numbers, and how much of them the other node has.
use std::collections::VecDeque;

/// What is said.
#[derive(Debug)]
pub(super) struct Outflow<T> {
    /// Said, and not known to have been heard.
    unheard: VecDeque<T>,
    /// The number of the next one.
    said: u64,
    /// Of how many it is known that they were passed on.
    taken: u64,
    /// How many were said when the last count went out, and the one before it.
    counted: [u64; 2],
}

/// What is heard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Inflow {
    /// How many, from the first on.
    pub(super) got: u64,
    /// How many of these were passed on.
    pub(super) taken: u64,
    /// Of how many that was told.
    pub(super) told: u64,
}

// === impl Outflow ===

impl<T> Default for Outflow<T> {
    fn default() -> Self {
        Self { unheard: VecDeque::new(), said: 0, taken: 0, counted: [0, 0] }
    }
}

impl<T: Clone> Outflow<T> {
    /// One more, which has this number.
    pub(super) fn say(&mut self, word: T) -> u64 {
        self.unheard.push_back(word);
        self.said += 1;
        self.said - 1
    }

    /// How many may not have been heard.
    pub(super) fn unheard(&self) -> usize {
        self.unheard.len()
    }

    /// The other node has so many; how many more of them were passed on than was known.
    pub(super) fn heard(&mut self, got: u64, taken: u64) -> u64 {
        while self.first() < got && self.unheard.pop_front().is_some() {}
        // An older count may come after a younger one, and no count is greater than what was said.
        let taken = taken.min(self.first()).max(self.taken);
        taken - std::mem::replace(&mut self.taken, taken)
    }

    /// A count goes out.
    pub(super) fn count(&mut self) {
        self.counted = [self.counted[1], self.said];
    }

    /// What must have been lost: it was said before the count before the last one, and is not there.
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
    /// Whether this is the next one; what comes twice or too early is not.
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
    fn what_is_missing_after_two_counts_is_said_again_in_order() {
        let mut out = Outflow::default();
        assert_eq!([out.say('a'), out.say('b'), out.say('c')], [0, 1, 2]);
        out.count();
        assert_eq!(out.heard(1, 0), 0);
        assert!(out.lost().is_empty(), "it may be on its way");
        out.count();
        assert_eq!(out.lost(), [(1, 'b'), (2, 'c')]);
        assert_eq!(out.heard(3, 2), 2);
        assert!(out.lost().is_empty() && out.unheard() == 0);
        // One that is older, and one of more than was said.
        assert_eq!([out.heard(1, 1), out.heard(9, 9)], [0, 1]);
    }

    #[test]
    fn only_the_next_one_is_taken() {
        let mut flow = Inflow::default();
        let taken: Vec<bool> = [0, 0, 2, 1, 3, 2].map(|n| flow.take(n)).to_vec();
        assert_eq!(taken, [true, false, false, true, false, true]);
    }
}
