//! Links that wait for a session's present state, and their answers.
use super::subscription::session_snapshot;
use crate::switchboard::sink::EffectSink;
use std::collections::BTreeMap;
use turnway_core::id::{EventId, LinkId, RequestId, SessionKey};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::session::{SessionPhase, State};
use turnway_core::store::SessionView;
use turnway_wire::channel::authority::{ClientOperation, authorize};
use turnway_wire::channel::notification::{CommandReply, HandoverReply, MembersReply, Notification};

/// The links that wait for states, by session.
#[derive(Debug, Default)]
pub(in crate::switchboard) struct SnapshotWaiters(BTreeMap<SessionKey, Vec<SnapshotWaiter>>);

/// A link that waits for a session's present state.
#[derive(Debug)]
struct SnapshotWaiter {
    link: LinkId,
    request_id: Option<RequestId>,
    /// Number of the view, see [`super::state_reads::StateReads::number`].
    view_number: u64,
    purpose: SnapshotPurpose,
}

/// The reason for waiting for a session's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switchboard) enum SnapshotPurpose {
    /// The link has opened the session.
    Open,
    /// The link reads the state without side effects.
    Get,
    /// The link has changed the members.
    Members,
    Handover(EventId),
}

impl SnapshotWaiters {
    /// Adds a link that waits for a state that is read after the view with this number.
    pub(in crate::switchboard) fn add(
        &mut self,
        key: &SessionKey,
        link: LinkId,
        request_id: Option<RequestId>,
        purpose: SnapshotPurpose,
        view_number: u64,
    ) {
        let waiter = SnapshotWaiter { link, request_id, view_number, purpose };
        self.0.entry(key.clone()).or_default().push(waiter);
    }

    /// Refuses every link that waits for a session.
    pub(in crate::switchboard) fn refuse_all(&mut self, key: &SessionKey, refusal: &Refusal, sink: &mut EffectSink) {
        for SnapshotWaiter { link, request_id, .. } in self.0.remove(key).unwrap_or_default() {
            sink.refuse(link, request_id, Some(key.session.clone()), None, refusal.clone());
        }
    }

    /// Answers the links that wait for the session's state since before the read with this number.
    pub(in crate::switchboard) fn answer(
        &mut self,
        key: &SessionKey,
        view: &SessionView,
        state: &State,
        number: u64,
        sink: &mut EffectSink,
    ) {
        let waiting = self.0.remove(key).unwrap_or_default();
        let (ready, early): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|waiting| waiting.view_number < number);
        if !early.is_empty() {
            self.0.insert(key.clone(), early);
        }
        for SnapshotWaiter { link, request_id, purpose, .. } in ready {
            let Some(there) = sink.links.get(link) else { continue };
            let verdict = authorize(&there.principal, ClientOperation::Read, view.user.as_ref());
            let opened = verdict.and_then(|()| match (state.phase, purpose) {
                (SessionPhase::New, SnapshotPurpose::Open) => {
                    Err(Refusal::new(Code::SessionOpenFailed, "no agent is configured"))
                }
                (_, SnapshotPurpose::Handover(id)) if state.handovers.status(id).is_none() => Err(Refusal::not_found()),
                (SessionPhase::New, SnapshotPurpose::Get | SnapshotPurpose::Members | SnapshotPurpose::Handover(_))
                | (SessionPhase::Open | SessionPhase::Closing | SessionPhase::Closed, _) => Ok(()),
            });
            let status = match purpose {
                SnapshotPurpose::Handover(id) => state.handovers.status(id).map(|status| (id, status)),
                SnapshotPurpose::Open | SnapshotPurpose::Get | SnapshotPurpose::Members => None,
            };
            match (opened, status) {
                (Ok(()), Some((handover_id, status))) => {
                    let session = key.session.clone();
                    let decided = HandoverReply { request_id, session, handover_id, standing: status };
                    sink.notify(link, Notification::Reply(CommandReply::Handover(Box::new(decided))));
                }
                (Ok(()), None) if purpose == SnapshotPurpose::Members => {
                    let agents = state.agents.clone();
                    let active_agent = state.active.clone();
                    let members = MembersReply { request_id, session: key.session.clone(), agents, active_agent };
                    sink.notify(link, Notification::Reply(CommandReply::Members(Box::new(members))));
                }
                (Ok(()), None) => {
                    sink.notify(
                        link,
                        Notification::Reply(CommandReply::Opened {
                            request_id,
                            snapshot: session_snapshot(key, state),
                        }),
                    );
                }
                (Err(refusal), _) => sink.refuse(link, request_id, Some(key.session.clone()), None, refusal),
            }
        }
    }
}
