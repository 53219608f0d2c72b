//! Snapshots of version 7: version 8 without the time of the last fact. They are only read, after an upgrade.
use super::version_8::{
    ActionsVersion8, ChangesVersion8, CursorVersion8, HandoversVersion8, MembersVersion8, RunsVersion8,
    SessionPhaseVersion8, StateVersion8,
};
use crate::id::{AgentId, RunId, UserId};
use crate::time::Millis;
use serde::Deserialize;
use std::borrow::Cow;

/// The version in the header of these snapshots.
pub(super) const VERSION: u8 = 7;

/// The state in snapshots of version 7.
#[derive(Deserialize)]
pub(super) struct StateVersion7 {
    pub(super) tail: CursorVersion8,
    pub(super) phase: SessionPhaseVersion8,
    pub(super) user: Option<UserId>,
    pub(super) agents: Vec<AgentId>,
    pub(super) active: Option<AgentId>,
    pub(super) running: Option<RunId>,
    pub(super) waiting: Vec<RunId>,
    pub(super) runs: RunsVersion8<'static>,
    pub(super) members: MembersVersion8<'static>,
    pub(super) changes: ChangesVersion8<'static>,
    pub(super) handovers: HandoversVersion8<'static>,
    pub(super) actions: ActionsVersion8<'static>,
}

impl StateVersion7 {
    /// Converts the state into one of version 8, whose time is unknown: the beginning of time.
    pub(super) fn into_version_8(self) -> StateVersion8<'static> {
        let Self { tail, phase, user, agents, active, running, waiting, runs, members, changes, handovers, actions } =
            self;
        StateVersion8 {
            tail,
            phase,
            user: user.map(Cow::Owned),
            agents: agents.into(),
            active: active.map(Cow::Owned),
            running: running.map(Cow::Owned),
            waiting: waiting.into(),
            runs,
            members,
            changes,
            handovers,
            actions,
            time: Millis::default(),
        }
    }
}
