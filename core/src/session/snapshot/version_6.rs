//! Decoding of snapshots of the previous release: used once, after an upgrade.
use crate::id::{AgentId, Cursor, EventId, RunId, UserId};
use crate::private::Private;
use crate::protocol::member::Member;
use crate::session::action_state::Actions;
use crate::session::handover_state::{AnswerTail, ConfirmedHandover, Handover, HandoverEnded, Handovers, PendingJoin};
use crate::session::member_state::PendingMemberChange;
use crate::session::state::{Run, SessionPhase, State};
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of snapshots without the end of the running answer.
pub(in crate::session) const VERSION_WITHOUT_ANSWER_TAIL: u8 = 6;
/// The version of snapshots without the time of the last fact; otherwise identical to the current one.
pub(in crate::session) const VERSION_WITHOUT_TIME: u8 = 7;

/// The state in snapshots of version 6; see [`State`] for the fields.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::session) struct OlderState {
    tail: Cursor,
    phase: SessionPhase,
    user: Option<UserId>,
    agents: Vec<AgentId>,
    active: Option<AgentId>,
    running: Option<RunId>,
    waiting: Vec<RunId>,
    runs: BTreeMap<RunId, Box<Run>>,
    members: Vec<Member>,
    changes: BTreeMap<AgentId, PendingMemberChange>,
    handovers: OlderHandovers,
    actions: Actions,
}

/// The older form of [`Handovers`].
#[derive(Debug, Default, Serialize, Deserialize)]
struct OlderHandovers {
    open: Option<Box<OlderHandover>>,
    given: Option<Box<OlderConfirmedHandover>>,
    ended: Vec<HandoverEnded>,
    asked: Option<(RunId, u32)>,
}

/// The older form of [`Handover`].
#[derive(Debug, Serialize, Deserialize)]
struct OlderHandover {
    id: EventId,
    run_id: RunId,
    from: AgentId,
    to: AgentId,
    reason: Private<String>,
    summary: Private<String>,
    deadline: Millis,
    joining: Option<PendingJoin>,
}

/// The older form of [`ConfirmedHandover`].
#[derive(Debug, Serialize, Deserialize)]
struct OlderConfirmedHandover {
    id: EventId,
    run_id: RunId,
    from: AgentId,
    to: AgentId,
    reason: Private<String>,
    summary: Private<String>,
    switched: bool,
    told: Option<RunId>,
}

impl From<OlderState> for State {
    fn from(older: OlderState) -> Self {
        let OlderState { tail, phase, user, agents, active, running, waiting, .. } = older;
        let OlderState { runs, members, changes, handovers, actions, .. } = older;
        let OlderHandovers { open, given, ended, asked } = handovers;
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
            handovers: Handovers::from_older(
                open.map(Handover::from),
                given.map(ConfirmedHandover::from),
                ended,
                asked,
            ),
            actions,
            time: Millis::default(),
            has_unknown_facts: false,
        }
    }
}

impl From<Box<OlderHandover>> for Handover {
    fn from(older: Box<OlderHandover>) -> Self {
        let OlderHandover { id, run_id, from, to, reason, summary, deadline, joining } = *older;
        Self { id, run_id, from, to, reason, summary, deadline, joining, said: AnswerTail::default() }
    }
}

impl From<Box<OlderConfirmedHandover>> for ConfirmedHandover {
    fn from(older: Box<OlderConfirmedHandover>) -> Self {
        let OlderConfirmedHandover { id, run_id, from, to, reason, summary, switched, told } = *older;
        Self { id, run_id, from, to, reason, summary, switched, told, said: AnswerTail::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Epoch, MessageId, Seq, SessionId, SessionKey, TenantId};
    use crate::protocol::codec::{BlobKind, CodecError, encode};

    /// Covers: SR-H4.
    #[test]
    fn snapshot_of_the_previous_release_is_read() {
        let agent = AgentId::parse("a").expect("a name");
        let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m1").expect("a name"));
        let older = OlderState {
            tail: Cursor { seq: Seq(7), epoch: Epoch(3) },
            phase: SessionPhase::Open,
            user: Some(UserId::local()),
            agents: vec![agent.clone()],
            active: Some(agent.clone()),
            running: None,
            waiting: Vec::new(),
            runs: BTreeMap::new(),
            members: vec![Member { turns: 2, ..Member::default() }],
            changes: BTreeMap::new(),
            handovers: OlderHandovers {
                open: None,
                given: Some(Box::new(OlderConfirmedHandover {
                    id: EventId::default(),
                    run_id: run_id.clone(),
                    from: agent.clone(),
                    to: agent.clone(),
                    reason: Private("why".to_owned()),
                    summary: Private(String::new()),
                    switched: true,
                    told: None,
                })),
                ended: Vec::new(),
                asked: Some((run_id, 2)),
            },
            actions: Actions::default(),
        };
        let mut blob = encode(BlobKind::Snapshot, &older).expect("it is small");
        blob[3] = VERSION_WITHOUT_ANSWER_TAIL;
        let state = State::from_snapshot(&blob).expect("it is read");
        assert_eq!(state, State::from(older));
        assert_eq!((state.tail.seq, &state.active), (Seq(7), &Some(agent)));
        assert!(state.handovers.given.is_some_and(|given| given.reason.reveal() == "why" && given.switched));
        blob[3] -= 1;
        assert_eq!(State::from_snapshot(&blob), Err(CodecError::Version(5)), "two versions back, no more");
    }
    #[test]
    fn snapshot_without_a_last_time_is_read() {
        let state = State { agents: vec![AgentId::parse("a").expect("a name")], ..State::default() };
        let mut blob = encode(BlobKind::Snapshot, &state).expect("it is small");
        blob[3] = VERSION_WITHOUT_TIME;
        assert_eq!(State::from_snapshot(&blob), Ok(state.clone()));
        let state = State { time: Millis(17), ..state };
        let blob = state.to_snapshot().expect("it is small");
        assert_eq!(State::from_snapshot(&blob), Ok(state));
    }

    /// Snapshots of the same states, written by the code of versions 6, 7 and 8.
    const FILES: [&str; 3] = [
        include_str!("../../../tests/snapshots/version_6.txt"),
        include_str!("../../../tests/snapshots/version_7.txt"),
        include_str!("../../../tests/snapshots/version_8.txt"),
    ];

    /// Returns the snapshots of a file, by name.
    fn examples(file: &str) -> BTreeMap<&str, Vec<u8>> {
        let lines = file.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| *name != "#");
        lines.map(|(name, hex)| (name, hex.as_bytes().as_chunks::<2>().0.iter().map(byte).collect())).collect()
    }

    fn byte(hex: &[u8; 2]) -> u8 {
        u8::from_str_radix(std::str::from_utf8(hex).expect("ASCII"), 16).expect("hex")
    }

    /// Reads snapshots that earlier releases wrote, and compares the states with those of the present version.
    ///
    /// Covers: SR-H4.
    #[test]
    fn snapshots_of_earlier_versions_give_the_same_states() {
        let [of_6, of_7, of_8] = FILES.map(examples);
        assert!(of_8.len() >= 15 && of_6.keys().eq(of_8.keys()) && of_7.keys().eq(of_8.keys()));
        for (name, blob) in of_8 {
            let present = State::from_snapshot(&blob).expect("it is read");
            let without_time = State { time: Millis::default(), ..present };
            assert_eq!(State::from_snapshot(&of_7[name]).as_ref(), Ok(&without_time), "{name} of version 7");
            let mut without_answer = without_time;
            let handovers = &mut without_answer.handovers;
            handovers.said = None;
            handovers.open.iter_mut().for_each(|open| open.said = AnswerTail::default());
            handovers.given.iter_mut().for_each(|given| given.said = AnswerTail::default());
            assert_eq!(State::from_snapshot(&of_6[name]), Ok(without_answer), "{name} of version 6");
        }
    }
}
