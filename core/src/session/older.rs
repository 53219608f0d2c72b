//! A state as the release before wrote it: read once, after an upgrade.
use crate::id::{AgentId, Cursor, RunId, UserId};
use crate::protocol::member::Member;
use crate::session::actions::Actions;
use crate::session::handover::Handovers;
use crate::session::members::Change;
use crate::session::state::{Phase, Run, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of snapshots that knew of no actions.
pub(super) const BEFORE_ACTIONS: u8 = 5;

/// A state of that version. It has no docs of its own: [`State`] has them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Older {
    tail: Cursor,
    phase: Phase,
    user: Option<UserId>,
    agents: Vec<AgentId>,
    active: Option<AgentId>,
    running: Option<RunId>,
    waiting: Vec<RunId>,
    runs: BTreeMap<RunId, Run>,
    members: Vec<Member>,
    changes: BTreeMap<AgentId, Change>,
    handovers: Handovers,
}

impl From<Older> for State {
    fn from(older: Older) -> Self {
        let Older { tail, phase, user, agents, active, running, waiting, .. } = older;
        let Older { runs, members, changes, handovers, .. } = older;
        let actions = Actions::default();
        Self {
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Epoch, Seq};
    use crate::protocol::codec::{CodecError, Kind, encode};

    /// Covers: SR-H4.
    #[test]
    fn what_the_release_before_kept_is_read() {
        let agent = AgentId::parse("a").expect("a name");
        let older = Older {
            tail: Cursor { seq: Seq(7), epoch: Epoch(3) },
            phase: Phase::Open,
            user: Some(UserId::local()),
            agents: vec![agent.clone()],
            active: Some(agent.clone()),
            running: None,
            waiting: Vec::new(),
            runs: BTreeMap::new(),
            members: vec![Member { turns: 2, ..Member::default() }],
            changes: BTreeMap::new(),
            handovers: Handovers::default(),
        };
        let mut blob = encode(Kind::Snapshot, &older).expect("it is small");
        blob[3] = BEFORE_ACTIONS;
        let state = State::from_snapshot(&blob).expect("it is read");
        assert_eq!(state, State::from(older));
        assert_eq!((state.tail.seq, state.active), (Seq(7), Some(agent)));
        blob[3] -= 1;
        assert_eq!(State::from_snapshot(&blob), Err(CodecError::Version(4)), "one version back, no more");
    }
}
