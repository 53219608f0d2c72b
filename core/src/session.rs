//! One session: its state as a projection of its log, and the state machine that its owner runs.
mod action_apply;
mod action_decide;
mod attempt;
mod control;
mod ending;
mod handover_apply;
mod handover_decide;
mod intake;
mod member_apply;
mod member_decide;
mod older_snapshot;
mod outbox;
mod permit;
mod runtime;
mod state;
mod steer;
mod takeover;
mod text;
mod text_hash;

pub use action_apply::{Action, Actions, FinishedAction};
pub use handover_apply::{
    AnswerTail, ConfirmedHandover, Handover, HandoverEnded, HandoverStatus, Handovers, PendingJoin,
};
pub use member_apply::{MemberStep, PendingMemberChange};
pub use outbox::{EndedInput, FactRecord, Output};
pub use permit::{AttemptPermit, PermitRequest};
pub use runtime::{Input, SessionCounts, SessionRuntime};
pub use state::{ResumeState, Run, RunPhase, SessionPhase, State};
pub use steer::{Rank, SteeredInput};
pub use text_hash::TextHash;
