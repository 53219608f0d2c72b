//! Upper bounds of histogram buckets. Few, because each bucket is a series for every child.

/// Seconds, for operations of microseconds and milliseconds: from a round of the driver to a failing disk.
pub(super) const SHORT: [f64; 14] =
    [0.000_01, 0.000_03, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0];

/// Seconds, for agents: from an answer that is ready at once to half an hour of work.
pub(super) const LONG: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0];

/// Items in one batch, up to the maximum size of a batch.
pub(super) const BATCH: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
