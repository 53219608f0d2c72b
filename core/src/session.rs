//! One session: its state as a projection of its log, and the machine that owns it.
mod acting;
mod actions;
mod attempt;
mod control;
mod digest;
mod ending;
mod handing;
mod handover;
mod intake;
mod members;
mod membership;
mod older;
mod outbox;
mod runtime;
mod state;
mod steer;
mod takeover;
mod text;

pub use actions::{Action, Actions, Over};
pub use digest::TextHash;
pub use handover::{Ended as HandoverEnded, Given, Handover, Handovers, Joining, Said, Standing};
pub use members::{Change, Step};
pub use outbox::{Ended, Output, Record};
pub use runtime::{Counts, Input, SessionRuntime};
pub use state::{Phase, Resumable, Run, RunPhase, State};
pub use steer::{Rank, Steered};
