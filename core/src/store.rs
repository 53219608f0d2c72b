//! The operations of a store and their replies, as data; every op is one atomic step and safe to repeat. [`Shelf`] is
//! the deterministic model: the embedded store and Redis must answer as the model does, and the simulator uses it as
//! its store.
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
