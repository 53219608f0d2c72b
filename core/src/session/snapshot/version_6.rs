//! Snapshots of version 6: version 7 without the ends of answers. They are only read, after an upgrade.
use super::version_7::StateVersion7;
use super::version_8::{
    ActionsVersion8, AnswerTailVersion8, ChangesVersion8, ConfirmedHandoverVersion8, CursorVersion8,
    EndedHandoversVersion8, HandoverVersion8, HandoversVersion8, MembersVersion8, PendingJoinVersion8, RunsVersion8,
    SessionPhaseVersion8, StateVersion8,
};
use crate::id::{AgentId, EventId, RunId, UserId};
use crate::time::Millis;
use serde::Deserialize;
use std::borrow::Cow;

/// The version in the header of these snapshots.
pub(super) const VERSION: u8 = 6;

/// The state in snapshots of version 6.
#[derive(Deserialize)]
pub(super) struct StateVersion6 {
    tail: CursorVersion8,
    phase: SessionPhaseVersion8,
    user: Option<UserId>,
    agents: Vec<AgentId>,
    active: Option<AgentId>,
    running: Option<RunId>,
    waiting: Vec<RunId>,
    runs: RunsVersion8<'static>,
    members: MembersVersion8<'static>,
    changes: ChangesVersion8<'static>,
    handovers: HandoversVersion6,
    actions: ActionsVersion8<'static>,
}

/// The handovers in snapshots of version 6.
#[derive(Deserialize)]
struct HandoversVersion6 {
    open: Option<HandoverVersion6>,
    given: Option<ConfirmedHandoverVersion6>,
    ended: EndedHandoversVersion8<'static>,
    last_request: Option<(RunId, u32)>,
}

/// The open handover in snapshots of version 6.
#[derive(Deserialize)]
struct HandoverVersion6 {
    id: EventId,
    run_id: RunId,
    from: AgentId,
    to: AgentId,
    reason: String,
    summary: String,
    deadline: Millis,
    joining: Option<PendingJoinVersion8<'static>>,
}

/// The confirmed handover in snapshots of version 6.
#[derive(Deserialize)]
struct ConfirmedHandoverVersion6 {
    id: EventId,
    run_id: RunId,
    from: AgentId,
    to: AgentId,
    reason: String,
    summary: String,
    switched: bool,
    notified_run: Option<RunId>,
}

impl StateVersion6 {
    /// Converts the state into one of version 8, without the ends of answers.
    pub(super) fn into_version_8(self) -> StateVersion8<'static> {
        let Self { tail, phase, user, agents, active, running, waiting, runs, members, changes, handovers, actions } =
            self;
        let handovers = handovers.into_version_8();
        let next = StateVersion7 {
            tail,
            phase,
            user,
            agents,
            active,
            running,
            waiting,
            runs,
            members,
            changes,
            handovers,
            actions,
        };
        next.into_version_8()
    }
}

impl HandoversVersion6 {
    fn into_version_8(self) -> HandoversVersion8<'static> {
        let Self { open, given, ended, last_request } = self;
        HandoversVersion8 {
            open: open.map(HandoverVersion6::into_version_8),
            given: given.map(ConfirmedHandoverVersion6::into_version_8),
            ended,
            last_request: last_request.map(|(run_id, times)| (Cow::Owned(run_id), times)),
            running_answer: None,
        }
    }
}

impl HandoverVersion6 {
    fn into_version_8(self) -> HandoverVersion8<'static> {
        let Self { id, run_id, from, to, reason, summary, deadline, joining } = self;
        HandoverVersion8 {
            id,
            run_id: Cow::Owned(run_id),
            from: Cow::Owned(from),
            to: Cow::Owned(to),
            reason: reason.into(),
            summary: summary.into(),
            deadline,
            joining,
            answer_tail: AnswerTailVersion8::default(),
        }
    }
}

impl ConfirmedHandoverVersion6 {
    fn into_version_8(self) -> ConfirmedHandoverVersion8<'static> {
        let Self { id, run_id, from, to, reason, summary, switched, notified_run } = self;
        ConfirmedHandoverVersion8 {
            id,
            run_id: Cow::Owned(run_id),
            from: Cow::Owned(from),
            to: Cow::Owned(to),
            reason: reason.into(),
            summary: summary.into(),
            switched,
            notified_run: notified_run.map(Cow::Owned),
            answer_tail: AnswerTailVersion8::default(),
        }
    }
}
