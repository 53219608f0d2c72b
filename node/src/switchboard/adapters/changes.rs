//! Edits and deletions of messages whose turn has not ended. The turn is looked for in the sessions that the conversation
//! has had; the session's owner decides whether an edit still comes in time.
use super::inbound::{
    ConversationSession, InboundResult, InboundSession, InboundTurn, PendingInbound, conversation_input,
};
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use turnway_core::id::{LinkId, MessageId, Principal, RequestId, RunId, SessionKey, UserId};
use turnway_core::limits;
use turnway_core::protocol::delivery::AccountKey;
use turnway_core::protocol::input::Content;
use turnway_core::store::{Op, Reply, RunLocation, StoreError, StoreRefusal};
use turnway_wire::channel::adapter::{InboundCommand, InboundDisposition, InboundEvent, InboundReceipt, MessageEdit};

/// The edits and deletions whose turn is being looked for, and the latest edits of messages.
#[derive(Debug, Default)]
pub(super) struct MessageChanges {
    /// By link and by the turn that is asked for. Bounded by the requests that each link may have.
    waiting: BTreeMap<(LinkId, RunId), Vec<ChangedMessage>>,
    /// The turn of the latest edit of a message, by the turn of the message itself.
    edited: BTreeMap<RunId, RunId>,
    /// The same messages, the oldest in front; bounded by [`limits::EDITED_MESSAGES_MAX`].
    order: VecDeque<RunId>,
}

/// A message that a person has changed or deleted.
#[derive(Debug)]
pub(super) struct ChangedMessage {
    pending: PendingInbound,
    account: AccountKey,
    /// The turns that are still to be asked for, the next one last.
    candidates: Vec<Candidate>,
    /// The sessions that the conversation has had, the present one last.
    sessions: Vec<ConversationSession>,
}

/// A turn that a changed message may have.
#[derive(Debug)]
struct Candidate {
    key: SessionKey,
    session: InboundSession,
    run_id: RunId,
    /// It is the turn of this very edit, which was brought before.
    is_repeat: bool,
}

/// The end of a turn whose message was deleted.
#[derive(Debug)]
pub(in crate::switchboard) struct InboundCancel {
    pub(in crate::switchboard) link: LinkId,
    pub(in crate::switchboard) request_id: Option<RequestId>,
    pub(in crate::switchboard) key: SessionKey,
    pub(in crate::switchboard) principal: Principal,
    pub(in crate::switchboard) run_id: RunId,
    pub(in crate::switchboard) session: InboundSession,
}

/// The next step of a changed message.
#[derive(Debug)]
pub(super) enum ChangeStep {
    LookUp(Op),
    Result(Box<InboundResult>),
    /// The store cannot tell; the event is to be brought again.
    Unavailable(Option<RequestId>),
}

// === impl MessageChanges ===

impl MessageChanges {
    pub(super) fn len(&self) -> usize {
        self.waiting.values().map(Vec::len).sum()
    }

    /// Begins to look for the turn of a changed message.
    pub(super) fn begin(&mut self, mut changed: ChangedMessage) -> ChangeStep {
        for ConversationSession { id, kind: session } in std::mem::take(&mut changed.sessions) {
            let key = SessionKey { tenant: changed.account.tenant.clone(), session: id };
            let first = changed.first_run(&key);
            let latest = self.edited.get(&first).cloned();
            let repeat = changed.edit_run(&key);
            let targets = [Some(first), latest].into_iter().flatten();
            let candidates = targets.map(|run_id| (run_id, false)).chain(repeat.map(|run_id| (run_id, true)));
            let candidate = |(run_id, is_repeat)| Candidate { key: key.clone(), session, run_id, is_repeat };
            changed.candidates.extend(candidates.map(candidate));
        }
        self.look_for(changed)
    }

    /// Asks the store for the next turn that the message may have.
    fn look_for(&mut self, changed: ChangedMessage) -> ChangeStep {
        let Some(next) = changed.candidates.last() else {
            return ChangeStep::Result(Box::new(InboundResult::Done(
                changed.pending.receipt(InboundDisposition::Ignored),
            )));
        };
        let key = next.key.clone();
        let run_id = next.run_id.clone();
        let link = changed.pending.link;
        let principal = changed.principal();
        self.waiting.entry((link, run_id.clone())).or_default().push(changed);
        ChangeStep::LookUp(Op::Find { key, principal, run_id, link, fence: None })
    }

    /// Uses the store's answer about a turn; `None` if no changed message waits for it.
    pub(super) fn use_answer(
        &mut self,
        link: LinkId,
        run_id: &RunId,
        result: &Result<Reply, StoreError>,
    ) -> Option<ChangeStep> {
        let waiting = self.waiting.get_mut(&(link, run_id.clone()))?;
        let mut changed = waiting.pop()?;
        if waiting.is_empty() {
            self.waiting.remove(&(link, run_id.clone()));
        }
        let candidate = changed.candidates.pop()?;
        Some(match result {
            Ok(Reply::Found(_)) if candidate.is_repeat => {
                let receipt = changed.recorded(&candidate, true);
                ChangeStep::Result(Box::new(InboundResult::Done(receipt)))
            }
            Ok(Reply::Found(RunLocation { ended: None, .. })) => {
                ChangeStep::Result(Box::new(self.change(changed, candidate)))
            }
            Ok(Reply::Found(_) | Reply::Refused(StoreRefusal::NotFound | StoreRefusal::Damaged)) => {
                self.look_for(changed)
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => {
                ChangeStep::Unavailable(changed.pending.inbound.request_id)
            }
        })
    }

    /// Changes a turn that has not ended.
    fn change(&mut self, changed: ChangedMessage, target: Candidate) -> InboundResult {
        let Some(edit) = changed.edit().cloned() else {
            return InboundResult::Cancel(Box::new(InboundCancel {
                link: changed.pending.link,
                request_id: changed.pending.inbound.request_id.clone(),
                principal: changed.principal(),
                key: target.key,
                run_id: target.run_id,
                session: target.session,
            }));
        };
        let turn = changed.turn(edit.content, target);
        let first = changed.first_run(&turn.key);
        if self.edited.insert(first.clone(), turn.input.run_id.clone()).is_none() {
            self.order.push_back(first);
        }
        while self.order.len() > limits::EDITED_MESSAGES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            self.edited.remove(&oldest);
        }
        InboundResult::Turn(Box::new(turn), None)
    }
}

// === impl ChangedMessage ===

impl ChangedMessage {
    /// Creates a change of a message of these sessions, the present one last.
    pub(super) fn new(pending: PendingInbound, account: &AccountKey, sessions: Vec<ConversationSession>) -> Self {
        Self { pending, account: account.clone(), candidates: Vec::new(), sessions }
    }

    fn user(&self) -> UserId {
        UserId::of_account(&self.account.channel, &self.account.account)
    }

    /// Returns the authority of the conversation over its own turns, also in sessions of other users: the turn's id names
    /// the account and the message.
    fn principal(&self) -> Principal {
        Principal { tenant: self.account.tenant.clone(), user: self.user(), operator: true, writes: true }
    }

    fn edit(&self) -> Option<&MessageEdit> {
        if let InboundEvent::Edit(edit) = &self.pending.inbound.event { edit.as_deref() } else { None }
    }

    /// Returns the turn of the message itself.
    fn first_run(&self, key: &SessionKey) -> RunId {
        let InboundCommand { conversation, message_id, .. } = &self.pending.inbound;
        RunId::derive(key, &self.user(), &conversation.inbox_message_id(message_id))
    }

    /// Returns the name of the edit in the inbox.
    fn edit_id(&self) -> Option<MessageId> {
        let InboundCommand { conversation, message_id, .. } = &self.pending.inbound;
        let edit = self.edit()?;
        let name = match &edit.edit_id {
            Some(id) => format!("id {id}"),
            None => format!("content {}", json!(edit.content)),
        };
        Some(conversation.inbox_edit_id(message_id, &name))
    }

    fn edit_run(&self, key: &SessionKey) -> Option<RunId> {
        self.edit_id().map(|id| RunId::derive(key, &self.user(), &id))
    }

    fn recorded(&self, candidate: &Candidate, duplicate: bool) -> InboundReceipt {
        let session = Some(candidate.key.session.clone());
        let run_id = Some(candidate.run_id.clone());
        InboundReceipt { session, run_id, duplicate, ..self.pending.receipt(InboundDisposition::Recorded) }
    }

    /// Returns the turn that takes the place of another, with new content.
    fn turn(&self, content: Content, target: Candidate) -> InboundTurn {
        let PendingInbound { link, inbound, .. } = &self.pending;
        let user = self.user();
        let inbox_id = self.edit_id().unwrap_or_else(|| inbound.conversation.inbox_message_id(&inbound.message_id));
        let origin = self.pending.origin();
        let input = conversation_input(&target.key, user, inbox_id, content, origin, Some(target.run_id));
        let request_id = inbound.request_id.clone();
        let principal = self.principal();
        InboundTurn { link: *link, request_id, key: target.key, principal, input, session: target.session, route: None }
    }
}
