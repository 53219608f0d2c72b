//! The turn pipeline: the stages between a message and its answer, which plugins fill. One message comes in, none or
//! several go out (TP-G1), and the stages have a fixed order (TP-G3): see [`Plugin`]. Gateways and other hosts call
//! [`Pipeline`].
pub mod builtin;
pub mod envelope;
pub mod failure;
pub mod limits;
pub mod pipeline;
pub mod plugin;
pub mod prompt;
pub mod stream;

pub use crate::builtin::Builtin;
pub use crate::envelope::{Envelope, Kind};
pub use crate::failure::{Failure, Stage, Trouble};
pub use crate::pipeline::{NoOutput, Outcome, Pipeline};
pub use crate::plugin::{Hook, Inbound, Lifespan, Outlet, Plugin, Router, TapeStore, Turn};
pub use crate::prompt::Prompt;
pub use crate::stream::{Piece, Pieces};
