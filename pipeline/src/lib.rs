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

pub use crate::builtin::BuiltinPlugin;
pub use crate::envelope::{MessageEnvelope, MessageKind};
pub use crate::failure::{HookError, PipelineStage, TurnFailure};
pub use crate::pipeline::{NoOutputPolicy, Pipeline, PipelineOutcome};
pub use crate::plugin::{Dispatcher, HookFuture, Inbound, Lifespan, Plugin, Router, TapeStore, Turn};
pub use crate::prompt::Prompt;
pub use crate::stream::{AnswerPiece, AnswerStream};
