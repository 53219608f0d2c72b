//! Support code of the integration tests: real nodes and agents, planted bugs, and the reports on test runs.
pub mod conformance;
pub mod failures;
pub mod planted;
pub mod real;
