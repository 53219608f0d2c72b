//! The ownership protocol as a model for stateright: one session, two nodes, a store with a replica.
//!
//! Where the simulator throws dice over the real machines, this visits every order of events there is, over
//! the protocol alone and within small bounds. Each rule can be broken by itself, and then the property that
//! leans on it must fail.
//!
//! # Layout (each line leans only on those below it)
//! - [`checked`]: the properties, and how many states were visited.
//! - [`step`]: what may happen, and what follows from it.
//! - [`duty`]: what nodes do of their own accord, and whether all comes to rest.
//! - [`fleet`]: everything there is.
//! - [`slot`]: what the store keeps of the session, and its atomic steps.
//! - [`rules`]: the design and its twins, and how much harm is done.
pub mod checked;
pub mod duty;
pub mod fleet;
pub mod rules;
pub mod slot;
pub mod step;
