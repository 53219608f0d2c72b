//! The whole language of the store, as data. Every op is one atomic step, and safe to repeat.
//!
//! [`Shelf`] is its deterministic model: the reference that the embedded store and Redis must answer
//! like, and the simulator's store.
mod meter;
mod op;
pub mod quota;
mod register;
mod reply;
mod shelf;
mod slot;

pub use op::{Append, Keep, Op};
pub use reply::{
    Accepted, Birth, Claimed, Found, Heard, IdlePlace, Inputs, Refused, Reply, Snapshot, StoreError, Summary,
    View,
};
pub use shelf::Shelf;
pub use slot::Slot;
