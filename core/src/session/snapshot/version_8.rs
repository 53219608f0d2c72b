//! Snapshots of version 8, which this release writes. The order of fields and variants is their order in the bytes.
//! A changed struct is a new version: copy what changes, and convert this version into the new one when it is read.
mod action;
mod handover;
mod member;
mod run;

use crate::id::{AgentId, Cursor, Epoch, EventId, RunId, Seq, UserId};
use crate::protocol::member::Member;
use crate::protocol::versioned::{FormList, FormMap, VersionedForm};
use crate::session::action_state::{Action, FinishedAction};
use crate::session::delivery_state::Deliveries;
use crate::session::member_state::PendingMemberChange;
use crate::session::model_state::ModelCalls;
use crate::session::state::{Run, SessionPhase, State};
use crate::time::Millis;
pub(super) use action::ActionsVersion8;
use action::{ActionVersion8, FinishedActionVersion8};
pub(super) use handover::{
    AnswerTailVersion8, ConfirmedHandoverVersion8, EndedHandoversVersion8, HandoverVersion8, HandoversVersion8,
    PendingJoinVersion8,
};
use member::{MemberVersion8, PendingMemberChangeVersion8};
use run::RunVersion8;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The open turns of a session.
pub(super) type RunsVersion8<'a> = FormMap<'a, RunId, Box<Run>, RunVersion8<'a>>;
/// The records of a session's members.
pub(super) type MembersVersion8<'a> = FormList<'a, Member, MemberVersion8>;
/// The open changes of members.
pub(super) type ChangesVersion8<'a> = FormMap<'a, AgentId, PendingMemberChange, PendingMemberChangeVersion8<'a>>;
/// The open actions of a session.
type OpenActionsVersion8<'a> = FormMap<'a, EventId, Action, ActionVersion8<'a>>;
/// The ended actions of a session.
type EndedActionsVersion8<'a> = FormList<'a, FinishedAction, FinishedActionVersion8<'a>>;

/// The form of a [`State`].
#[derive(Serialize, Deserialize)]
pub(super) struct StateVersion8<'a> {
    pub(super) tail: CursorVersion8,
    pub(super) phase: SessionPhaseVersion8,
    pub(super) user: Option<Cow<'a, UserId>>,
    pub(super) agents: Cow<'a, [AgentId]>,
    pub(super) active: Option<Cow<'a, AgentId>>,
    pub(super) running: Option<Cow<'a, RunId>>,
    pub(super) waiting: Cow<'a, [RunId]>,
    pub(super) runs: RunsVersion8<'a>,
    pub(super) members: MembersVersion8<'a>,
    pub(super) changes: ChangesVersion8<'a>,
    pub(super) handovers: HandoversVersion8<'a>,
    pub(super) actions: ActionsVersion8<'a>,
    pub(super) time: Millis,
}

/// The form of a [`Cursor`].
#[derive(Serialize, Deserialize)]
pub(super) struct CursorVersion8 {
    seq: Seq,
    epoch: Epoch,
}

/// The form of a [`SessionPhase`].
#[derive(Serialize, Deserialize)]
pub(super) enum SessionPhaseVersion8 {
    New,
    Open,
    Closing,
    Closed,
}

impl<'a> VersionedForm<'a> for StateVersion8<'a> {
    type Domain = State;

    fn borrow(state: &'a State) -> Self {
        let State {
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
            deliveries: _,
            model_calls: _,
            time,
            has_unknown_facts: _,
        } = state;
        Self {
            tail: CursorVersion8::borrow(tail),
            phase: SessionPhaseVersion8::borrow(phase),
            user: user.as_ref().map(Cow::Borrowed),
            agents: Cow::Borrowed(agents),
            active: active.as_ref().map(Cow::Borrowed),
            running: running.as_ref().map(Cow::Borrowed),
            waiting: Cow::Borrowed(waiting),
            runs: FormMap::Borrowed(runs),
            members: FormList::Borrowed(members),
            changes: FormMap::Borrowed(changes),
            handovers: HandoversVersion8::borrow(handovers),
            actions: ActionsVersion8::borrow(actions),
            time: *time,
        }
    }

    fn into_domain(self) -> State {
        let Self {
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
            time,
        } = self;
        State {
            tail: tail.into_domain(),
            phase: phase.into_domain(),
            user: user.map(Cow::into_owned),
            agents: agents.into_owned(),
            active: active.map(Cow::into_owned),
            running: running.map(Cow::into_owned),
            waiting: waiting.into_owned(),
            runs: runs.into_domain(),
            members: members.into_domain(),
            changes: changes.into_domain(),
            handovers: handovers.into_domain(),
            actions: actions.into_domain(),
            deliveries: Deliveries::default(),
            model_calls: ModelCalls::default(),
            time,
            has_unknown_facts: false,
        }
    }
}

impl VersionedForm<'_> for CursorVersion8 {
    type Domain = Cursor;

    fn borrow(cursor: &Cursor) -> Self {
        let Cursor { seq, epoch } = *cursor;
        Self { seq, epoch }
    }

    fn into_domain(self) -> Cursor {
        let Self { seq, epoch } = self;
        Cursor { seq, epoch }
    }
}

impl VersionedForm<'_> for SessionPhaseVersion8 {
    type Domain = SessionPhase;

    fn borrow(phase: &SessionPhase) -> Self {
        match phase {
            SessionPhase::New => Self::New,
            SessionPhase::Open => Self::Open,
            SessionPhase::Closing => Self::Closing,
            SessionPhase::Closed => Self::Closed,
        }
    }

    fn into_domain(self) -> SessionPhase {
        match self {
            Self::New => SessionPhase::New,
            Self::Open => SessionPhase::Open,
            Self::Closing => SessionPhase::Closing,
            Self::Closed => SessionPhase::Closed,
        }
    }
}
