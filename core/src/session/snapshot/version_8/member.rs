//! Members and their changes in snapshots of version 8.
use crate::id::{EventId, RequestId, Seq};
use crate::protocol::member::Member;
use crate::protocol::versioned::VersionedForm;
use crate::session::member_state::{MemberStep, PendingMemberChange};
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The form of a [`Member`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct MemberVersion8 {
    since_ms: Millis,
    turns: u64,
    last_seq: Seq,
}

/// The form of a [`MemberStep`].
#[derive(Serialize, Deserialize)]
enum MemberStepVersion8 {
    Adding { activate: bool },
    Removing { index: u32, active: bool, member: MemberVersion8 },
}

/// The form of a [`PendingMemberChange`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct PendingMemberChangeVersion8<'a> {
    tx_id: EventId,
    step: MemberStepVersion8,
    reason: Option<Cow<'a, str>>,
    request_id: Option<Cow<'a, RequestId>>,
    deadline: Millis,
}

impl VersionedForm<'_> for MemberVersion8 {
    type Domain = Member;

    fn borrow(member: &Member) -> Self {
        let Member { since_ms, turns, last_seq } = *member;
        Self { since_ms, turns, last_seq }
    }

    fn into_domain(self) -> Member {
        let Self { since_ms, turns, last_seq } = self;
        Member { since_ms, turns, last_seq }
    }
}

impl VersionedForm<'_> for MemberStepVersion8 {
    type Domain = MemberStep;

    fn borrow(step: &MemberStep) -> Self {
        match step {
            MemberStep::Adding { activate } => Self::Adding { activate: *activate },
            MemberStep::Removing { index, active, member } => {
                Self::Removing { index: *index, active: *active, member: MemberVersion8::borrow(member) }
            }
        }
    }

    fn into_domain(self) -> MemberStep {
        match self {
            Self::Adding { activate } => MemberStep::Adding { activate },
            Self::Removing { index, active, member } => {
                MemberStep::Removing { index, active, member: member.into_domain() }
            }
        }
    }
}

impl<'a> VersionedForm<'a> for PendingMemberChangeVersion8<'a> {
    type Domain = PendingMemberChange;

    fn borrow(change: &'a PendingMemberChange) -> Self {
        let PendingMemberChange { tx_id, step, reason, request_id, deadline } = change;
        Self {
            tx_id: *tx_id,
            step: MemberStepVersion8::borrow(step),
            reason: reason.as_deref().map(Cow::Borrowed),
            request_id: request_id.as_ref().map(Cow::Borrowed),
            deadline: *deadline,
        }
    }

    fn into_domain(self) -> PendingMemberChange {
        let Self { tx_id, step, reason, request_id, deadline } = self;
        PendingMemberChange {
            tx_id,
            step: step.into_domain(),
            reason: reason.map(Cow::into_owned),
            request_id: request_id.map(Cow::into_owned),
            deadline,
        }
    }
}
