//! Keyed timers: set, move, clear and fire in O(log n). Machines use them to compute their next deadline.
use crate::time::{Deadline, Mono};
use std::collections::{BTreeMap, BTreeSet};

/// A set of timers, at most one per name.
#[derive(Clone, Debug)]
pub struct Timers<K> {
    by_time: BTreeSet<(Mono, K)>,
    by_name: BTreeMap<K, Mono>,
}

impl<K: Ord + Clone> Default for Timers<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), by_name: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Timers<K> {
    /// Sets a timer, moving it if it is already set.
    pub fn set(&mut self, name: K, at: Mono) {
        match self.by_name.get_mut(&name) {
            Some(was) if *was == at => {}
            Some(was) => {
                let mut entry = (std::mem::replace(was, at), name);
                self.by_time.remove(&entry);
                entry.0 = at;
                self.by_time.insert(entry);
            }
            None => {
                self.by_name.insert(name.clone(), at);
                self.by_time.insert((at, name));
            }
        }
    }
    /// Sets a timer unless an earlier or equal one is set.
    pub fn set_earlier(&mut self, name: K, at: Mono) {
        if self.due_at(&name).is_none_or(|was| was > at) {
            self.set(name, at);
        }
    }
    /// Sets the timer, or clears the timer when `at` is `None`.
    pub fn set_or_clear(&mut self, name: K, at: Option<Mono>) {
        match at {
            Some(at) => self.set(name, at),
            None => self.clear(&name),
        }
    }
    /// Removes a timer.
    pub fn clear(&mut self, name: &K) {
        if let Some(was) = self.by_name.remove(name) {
            self.by_time.remove(&(was, name.clone()));
        }
    }
    /// Returns the time at which a timer is due.
    pub fn due_at(&self, name: &K) -> Option<Mono> {
        self.by_name.get(name).copied()
    }
    /// Removes and returns the earliest timer that is due.
    pub fn pop_due(&mut self, now: Mono) -> Option<K> {
        let (at, _) = self.by_time.first().filter(|(at, _)| *at <= now)?;
        let first = (*at, self.by_time.first()?.1.clone());
        self.by_time.remove(&first);
        self.by_name.remove(&first.1);
        Some(first.1)
    }
    /// Returns the earliest deadline, with the label `why`.
    pub fn next_deadline(&self, why: &'static str) -> Option<Deadline> {
        self.by_time.first().map(|(at, _)| Deadline { at: *at, label: why })
    }
    /// Returns the number of timers that are set.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }
    /// Returns whether no timer is set.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Mono {
        Mono(Duration::from_millis(ms))
    }

    #[test]
    fn fires_in_order_of_time_and_only_once() {
        let mut timers = Timers::default();
        timers.set("b", at(20));
        timers.set("a", at(10));
        timers.set("b", at(5));
        timers.set_earlier("a", at(30));
        assert_eq!(timers.next_deadline("t").map(|d| d.at), Some(at(5)));
        assert_eq!(timers.pop_due(at(10)), Some("b"));
        assert_eq!(timers.pop_due(at(10)), Some("a"));
        assert_eq!(timers.pop_due(at(99)), None);
        timers.set_or_clear("c", Some(at(1)));
        timers.set_or_clear("c", None);
        assert!(timers.is_empty());
    }
}
