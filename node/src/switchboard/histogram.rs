//! A histogram of durations with fixed buckets; recording costs a few comparisons.
use std::time::Duration;

/// Counts of durations by bucket, and their sum. Allocates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    /// The number of durations in each bucket: at most the bound with the same index, and above the previous bound;
    /// the last bucket holds durations above every bound.
    pub buckets: [u64; Self::BOUNDS.len() + 1],
    pub sum: Duration,
}

impl DurationHistogram {
    /// From a commit on a fast disk to [`turnway_core::limits::RUN_TIMEOUT`], in milliseconds.
    const MILLIS: [f64; 18] =
        [0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 10e3, 30e3, 60e3, 300e3, 1800e3];

    /// Inclusive upper bounds of the buckets.
    pub const BOUNDS: [Duration; 18] = {
        let mut bounds = [Duration::ZERO; 18];
        let mut n = 0;
        while n < bounds.len() {
            bounds[n] = Duration::from_micros((Self::MILLIS[n] * 1e3) as u64);
            n += 1;
        }
        bounds
    };

    /// Records one duration.
    pub fn record(&mut self, took: Duration) {
        let bucket = Self::BOUNDS.partition_point(|bound| *bound < took);
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(took);
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_counted_in_its_first_matching_bucket() {
        let mut spread = DurationHistogram::default();
        let took = [0, 500, 501, 1_000, 1_800_000_000, 1_800_000_001].map(Duration::from_micros);
        took.into_iter().for_each(|took| spread.record(took));
        assert_eq!(spread.buckets[..3], [2, 2, 0]);
        assert_eq!(spread.buckets[17..], [1, 1]);
        assert_eq!((spread.count(), spread.sum), (6, took.iter().sum()));
        assert!(DurationHistogram::BOUNDS.is_sorted());
    }
}
