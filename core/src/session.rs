//! One session: its state as a projection of its log, and the state machine that its owner runs.
mod action_apply;
mod action_decide;
mod action_state;
mod apply;
mod attempt;
mod binding_decide;
mod command;
mod context;
mod control_lane;
mod delivery_apply;
mod delivery_decide;
mod delivery_route;
mod delivery_state;
mod delivery_unasked;
mod ending;
mod handover_apply;
mod handover_decide;
mod handover_state;
mod input_apply;
mod input_decide;
mod input_state;
mod input_steer;
mod member_apply;
mod member_decide;
mod member_state;
mod message_decide;

mod outbox;
mod plan;
mod run_apply;
mod run_decide;
mod run_end;
mod run_gather;
mod run_permit;
mod run_report;
mod run_start;
mod runtime;
mod session_apply;
mod session_decide;
mod snapshot;
mod state;
mod task_decide;
mod text;
mod text_hash;

pub use action_state::{Action, Actions, FinishedAction};
pub use context::SessionCounts;
pub use delivery_state::{Deliveries, DeliveryPhase, OpenDelivery, OpenOrigin, OriginEnd, RecentDelivery};
pub use handover_state::{
    AnswerTail, ConfirmedHandover, Handover, HandoverEnded, HandoverStatus, Handovers, PendingJoin,
};
pub use input_state::{Rank, SteeredInput};
pub use member_state::{MemberStep, PendingMemberChange};
pub use outbox::{EndedInput, FactRecord, Output};
pub use run_permit::{AttemptPermit, PermitRequest};
pub use runtime::{Input, SessionRuntime};
pub use state::{ResumeState, Run, RunPhase, SessionPhase, State};
pub use text_hash::TextHash;
