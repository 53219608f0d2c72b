//! Events of conversations, on their way to a session: the session of the conversation's binding, or the
//! conversation's own. The adapter is answered once what follows is durable.
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{LinkId, Principal, RequestId, RunId, SessionKey, UserId};
use turnway_core::protocol::binding::{Binding, UnbindReason};
use turnway_core::protocol::delivery::{AccountKey, InputOrigin, TextLimit};
use turnway_core::protocol::input::{Content, Input, Message, Role, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::store::ConversationOp;
use turnway_core::store::binding::BindingAction;
use turnway_core::time::Now;
use turnway_wire::channel::adapter::{InboundCommand, InboundDisposition, InboundEvent, InboundReceipt};
use turnway_wire::channel::binding::{BindingCommand, BindingScope, BindingTarget};

/// Events whose binding is being looked up, by a number of this node. Bounded by the requests that each link may have.
#[derive(Debug, Default)]
pub(super) struct InboundEvents {
    waiting: BTreeMap<u64, PendingInbound>,
    last: u64,
}

/// An event whose binding is being looked up.
#[derive(Debug)]
pub(super) struct PendingInbound {
    pub(super) link: LinkId,
    pub(super) inbound: InboundCommand,
    pub(super) text_limit: TextLimit,
    pub(super) stage: InboundStage,
}

/// The next step of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InboundStage {
    /// The binding of its conversation.
    Lookup,
    /// The end of that binding.
    Unbind,
}

/// A message that becomes a turn of a session.
#[derive(Debug)]
pub(in crate::switchboard) struct InboundTurn {
    pub(in crate::switchboard) link: LinkId,
    pub(in crate::switchboard) request_id: Option<RequestId>,
    pub(in crate::switchboard) key: SessionKey,
    pub(in crate::switchboard) principal: Principal,
    pub(in crate::switchboard) input: Arc<Input>,
    pub(in crate::switchboard) session: InboundSession,
}

/// The session that a message of a conversation goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switchboard) enum InboundSession {
    /// The session that the conversation has while nobody has bound it.
    Own,
    /// The session that the conversation is bound to.
    Bound,
}

/// The result of an event.
#[derive(Debug)]
pub(super) enum InboundResult {
    Turn(Box<InboundTurn>, Option<ConversationOp>),
    /// The binding ends; then the event is answered.
    Unbind(PendingInbound, BindingCommand),
    Done(InboundReceipt),
}

impl InboundEvents {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds an event; returns its number.
    pub(super) fn add(&mut self, pending: PendingInbound) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, pending);
        self.last
    }

    pub(super) fn take(&mut self, number: u64) -> Option<PendingInbound> {
        self.waiting.remove(&number)
    }
}

impl PendingInbound {
    /// Decides what follows, now that the conversation's binding is known.
    pub(super) fn decide(self, now: Now, account: &AccountKey, binding: Option<&Binding>) -> InboundResult {
        if self.stage == InboundStage::Unbind {
            return InboundResult::Done(self.receipt(InboundDisposition::Recorded));
        }
        match (&self.inbound.event, binding) {
            (InboundEvent::Message(content), binding) => {
                let content = content.clone();
                let touched = binding.map(|binding| {
                    let key = binding.conversation.key(&account.tenant);
                    let action = BindingAction::Touch { generation: binding.generation, at: now.store };
                    ConversationOp::Change { key, action }
                });
                InboundResult::Turn(Box::new(self.turn(account, binding, content)), touched)
            }
            (InboundEvent::Closed, Some(binding)) => {
                let scope = BindingScope { channel: account.channel.clone(), account: account.account.clone() };
                let target = BindingTarget::Binding { scope, id: binding.id() };
                let command = BindingCommand::Unbind { target, reason: UnbindReason::ConversationArchived };
                InboundResult::Unbind(Self { stage: InboundStage::Unbind, ..self }, command)
            }
            (
                InboundEvent::Closed
                | InboundEvent::Moved(_)
                | InboundEvent::Edit
                | InboundEvent::Delete
                | InboundEvent::Reaction,
                _,
            ) => InboundResult::Done(self.receipt(InboundDisposition::Ignored)),
        }
    }

    fn receipt(&self, disposition: InboundDisposition) -> InboundReceipt {
        let request_id = self.inbound.request_id.clone();
        InboundReceipt { request_id, disposition, session: None, run_id: None, duplicate: false }
    }

    fn turn(self, account: &AccountKey, binding: Option<&Binding>, content: Content) -> InboundTurn {
        let InboundCommand { request_id, conversation, sender, message_id, platform_time, event: _ } = self.inbound;
        let (kind, session) = match binding {
            Some(binding) => (InboundSession::Bound, binding.session.clone()),
            None => (InboundSession::Own, conversation.own_session(&account.tenant)),
        };
        let session = SessionKey { tenant: account.tenant.clone(), session };
        let user = UserId::of_account(&account.channel, &account.account);
        // The binding lets the conversation write to its session.
        let principal =
            Principal { tenant: account.tenant.clone(), user: user.clone(), operator: binding.is_some(), writes: true };
        let inbox_id = conversation.inbox_message_id(&message_id);
        let metadata = json!({"conversation": conversation, "message_id": message_id, "sender": sender});
        let origin = InputOrigin { conversation, message_id, sender, platform_time, text_limit: self.text_limit };
        let input = Arc::new(Input {
            run_id: RunId::derive(&session, &user, &inbox_id),
            message_id: inbox_id,
            request_id: None,
            user,
            agent_id: None,
            message: Message { role: Role::User, content },
            history: None,
            // Each message has an answer of its own, at its place.
            strategy: Strategy::Enqueue,
            replaces: None,
            metadata: Some(Json(metadata)),
            origin: Some(Box::new(origin)),
            traceparent: None,
        });
        InboundTurn { link: self.link, request_id, key: session, principal, input, session: kind }
    }
}
