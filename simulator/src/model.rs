//! A stateright model of the ownership protocol: one session, two nodes, a store with a replica. Explores every
//! order of events within small bounds, over the protocol alone; the simulator runs the real machines at random
//! instead. Each rule can be switched off, and then the property that depends on it must fail.
pub mod actions;
pub mod checked;
pub mod fleet;
pub mod rules;
pub mod slot;
pub mod step;
