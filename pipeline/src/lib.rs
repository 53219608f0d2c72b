//! The turn pipeline: what happens between a message and its answer, in stages that plugins fill.
//!
//! One message comes in, none or several go out (TP-G1). The stages have a fixed order (TP-G3):
//!
//! | stage | of all plugins | where none answers |
//! |---|---|---|
//! | [`resolve_session`](Plugin::resolve_session) | the first answer | channel and chat |
//! | [`load_state`](Plugin::load_state) | all, the later registered wins | what the kernel knows |
//! | [`admit`](Plugin::admit) | the first refusal | it is admitted |
//! | [`build_prompt`](Plugin::build_prompt) | the first answer | the message's text |
//! | [`run_model`](Plugin::run_model), [`run_model_stream`](Plugin::run_model_stream) | the first answer | [`NoOutput`] |
//! | [`save_state`](Plugin::save_state) | all, exactly once from `load_state` on | - |
//! | [`render_outbound`](Plugin::render_outbound) | all, one list | one message of the output |
//! | [`dispatch_outbound`](Plugin::dispatch_outbound) | all, for each message | - |
//!
//! [`on_error`](Plugin::on_error) hears of what goes wrong, and cannot make it worse.
//!
//! # Layout
//! - [`pipeline`]: who is registered, and one turn through all of them.
//! - [`builtin`]: the plugin that fills every stage.
//! - [`plugin`]: what a plugin may do · [`envelope`], [`prompt`], [`stream`], [`failure`]: what it is given and gives.
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
