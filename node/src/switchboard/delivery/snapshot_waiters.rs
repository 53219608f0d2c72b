//! Links that wait for a session's present state, and their answers.
use super::subscription::session_snapshot;
use crate::switchboard::adapters::presses::answers_with_buttons;
use crate::switchboard::effect::AdaptersCommand;
use crate::switchboard::sink::EffectSink;
use std::collections::BTreeMap;
use turnway_core::id::{EventId, LinkId, RequestId, SessionKey};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::session::{SessionPhase, State};
use turnway_core::store::SessionView;
use turnway_wire::channel::authority::{ClientOperation, authorize};
use turnway_wire::channel::notification::{
    CommandReply, DeliveryListEntry, DeliveryListReply, HandoverReply, MembersReply, Notification,
};

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
    /// The link reads the list of deliveries that are not sent.
    Deliveries,
    /// The link has changed the members.
    Members,
    Handover(EventId),
    /// The part for adapters looks for the answer below which somebody has pressed a button; not the link is answered.
    Press(u64),
    /// The part for adapters looks whether the session takes files; not the link is answered.
    Files(u64),
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
        for SnapshotWaiter { link, request_id, purpose, .. } in self.0.remove(key).unwrap_or_default() {
            if let Some(command) = command_of_refusal(purpose, refusal) {
                sink.push(command);
                continue;
            }
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
            if let Some(command) = command_of_state(purpose, state) {
                sink.push(command);
                continue;
            }
            let Some(there) = sink.links.get(link) else { continue };
            let verdict = authorize(&there.principal, ClientOperation::Read, view.user.as_ref());
            match verdict.and_then(|()| reply_of(key, state, request_id.clone(), purpose)) {
                Ok(reply) => sink.notify(link, Notification::Reply(reply)),
                Err(refusal) => sink.refuse(link, request_id, Some(key.session.clone()), None, refusal),
            }
        }
    }
}

/// Returns what the part for adapters is told of a session's state, if it has asked.
fn command_of_state(purpose: SnapshotPurpose, state: &State) -> Option<AdaptersCommand> {
    match purpose {
        // A conversation may ask any session: only answers that went to it count.
        SnapshotPurpose::Press(number) => {
            Some(AdaptersCommand::UseAnswers { number, answers: Ok(answers_with_buttons(state)) })
        }
        SnapshotPurpose::Files(number) => Some(AdaptersCommand::UsePhase { number, phase: Ok(state.phase) }),
        SnapshotPurpose::Open
        | SnapshotPurpose::Get
        | SnapshotPurpose::Deliveries
        | SnapshotPurpose::Members
        | SnapshotPurpose::Handover(_) => None,
    }
}

/// Returns what the part for adapters is told if the state cannot be read, if it has asked.
fn command_of_refusal(purpose: SnapshotPurpose, refusal: &Refusal) -> Option<AdaptersCommand> {
    match purpose {
        SnapshotPurpose::Press(number) => Some(AdaptersCommand::UseAnswers { number, answers: Err(refusal.clone()) }),
        SnapshotPurpose::Files(number) => Some(AdaptersCommand::UsePhase { number, phase: Err(refusal.clone()) }),
        SnapshotPurpose::Open
        | SnapshotPurpose::Get
        | SnapshotPurpose::Deliveries
        | SnapshotPurpose::Members
        | SnapshotPurpose::Handover(_) => None,
    }
}

/// Returns the part of a session's state that a link has asked for.
fn reply_of(
    key: &SessionKey,
    state: &State,
    request_id: Option<RequestId>,
    purpose: SnapshotPurpose,
) -> Result<CommandReply, Refusal> {
    let session = key.session.clone();
    Ok(match purpose {
        SnapshotPurpose::Open if state.phase == SessionPhase::New => {
            return Err(Refusal::new(Code::SessionOpenFailed, "no agent is configured"));
        }
        SnapshotPurpose::Open | SnapshotPurpose::Get => {
            CommandReply::Opened { request_id, snapshot: session_snapshot(key, state) }
        }
        SnapshotPurpose::Members => {
            let agents = state.agents.clone();
            let active_agent = state.active.clone();
            CommandReply::Members(Box::new(MembersReply { request_id, session, agents, active_agent }))
        }
        SnapshotPurpose::Handover(handover_id) => {
            let standing = state.handovers.status(handover_id).ok_or_else(Refusal::not_found)?;
            CommandReply::Handover(Box::new(HandoverReply { request_id, session, handover_id, standing }))
        }
        // Answered above.
        SnapshotPurpose::Press(_) | SnapshotPurpose::Files(_) => return Err(Refusal::not_found()),
        SnapshotPurpose::Deliveries => {
            let open = state.deliveries.open.iter();
            let mut deliveries: Vec<DeliveryListEntry> = open
                .map(|(id, delivery)| DeliveryListEntry { delivery_id: id.clone(), delivery: delivery.clone() })
                .collect();
            deliveries.sort_by_key(|entry| entry.delivery.seq);
            CommandReply::DeliveryList(Box::new(DeliveryListReply { request_id, session, deliveries }))
        }
    })
}
