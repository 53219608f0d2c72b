//! What the tests stand on: real nodes and agents, scripts for stores, power cuts; and what they prove.
pub mod conformance;
pub mod failures;
pub mod hush;
pub mod laws;
pub mod model;
pub mod planted;
pub mod real;
pub mod script;
pub mod sim;
pub mod torn;
