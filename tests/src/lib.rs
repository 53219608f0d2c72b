//! Support code of the integration tests: real nodes and agents, a cluster simulator, model checking, store
//! scripts, simulated power cuts, and the reports on test runs.
pub mod conformance;
pub mod failures;
pub mod laws;
pub mod model;
pub mod planted;
pub mod power_cuts;
pub mod quiet_panics;
pub mod real;
pub mod script;
pub mod sim;
