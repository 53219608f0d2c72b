//! Ops on many conversations, each of which has a number. Sixteen are bound to one session.
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{
    FenceToken, InboxPosition, MessageId, Nonce, Principal, RunId, SessionId, SessionKey, TenantId, UserId,
};
use turnway_core::protocol::binding::{ExpiryRules, Generation, TargetKind, UnbindReason};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::protocol::input::{Content, Input, Message, Role, Strategy};
use turnway_core::store::binding::{BindingAction, BindingRow, NewBinding, UnnamedFields};
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply};

/// Conversations of one session. Twice as many records of changes still fit into a control lane that nobody reads.
pub(crate) const SESSION_CONVERSATIONS: usize = 16;

fn principal() -> Principal {
    Principal { tenant: TenantId::default_tenant(), user: UserId::local(), operator: true, writes: true }
}

/// Returns the session of a conversation.
pub(crate) fn session_key(number: usize) -> SessionKey {
    let session = SessionId::parse(&format!("session-{}", number / SESSION_CONVERSATIONS)).expect("a name");
    SessionKey { tenant: TenantId::default_tenant(), session }
}

fn conversation(number: usize) -> ConversationRef {
    ConversationRef::without_parent("rooms", "main", &format!("thread-{number}")).expect("a reference")
}

/// Returns the number of a conversation.
pub(crate) fn number_of(key: &ConversationKey) -> usize {
    let number = key.conversation.as_str().strip_prefix("thread-").and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{key} is none of this test's conversations"))
}

/// Returns an op that creates the session of a conversation.
pub(crate) fn create_session(number: usize) -> Op {
    let key = session_key(number);
    let principal = principal();
    let message_id = MessageId::parse("m").expect("a name");
    let input = Input {
        run_id: RunId::derive(&key, &principal.user, &message_id),
        message_id,
        request_id: None,
        user: principal.user.clone(),
        agent_id: None,
        message: Message { role: Role::User, content: Content::Text("hello".to_owned()) },
        history: None,
        replaces: None,
        strategy: Strategy::Enqueue,
        metadata: None,
        origin: None,
        traceparent: None,
    };
    let hash = input.body_hash();
    Op::Accept { key, principal, input: Arc::new(input), hash, route: None }
}

/// Returns an op that reads the control lane of a conversation's session.
pub(crate) fn read_controls(number: usize) -> Op {
    let after = InboxPosition(0);
    Op::Inbox { key: session_key(number), token: FenceToken::default(), after, control_after: after }
}

fn change(number: usize, action: BindingAction) -> Op {
    ConversationOp::Change { key: conversation(number).key(&TenantId::default_tenant()), action }.into()
}

pub(crate) fn resolve(number: usize) -> Op {
    change(number, BindingAction::Resolve)
}

/// Returns an op that binds a conversation. Each bind of a conversation needs a nonce of its own.
pub(crate) fn bind(number: usize, expiry: ExpiryRules, nonce: u128) -> Op {
    let new = NewBinding {
        conversation: conversation(number),
        session: session_key(number).session,
        principal: principal(),
        target_kind: TargetKind::Session,
        expected: None,
        expiry,
        mirror: false,
        metadata: BTreeMap::new(),
        unnamed: UnnamedFields::default(),
        nonce: Nonce(nonce),
    };
    change(number, BindingAction::Bind(Box::new(new)))
}

pub(crate) fn unbind(number: usize, generation: Generation) -> Op {
    change(number, BindingAction::Unbind { generation, reason: UnbindReason::Manual, farewell: false })
}

/// Returns the op that takes the oldest report from a row, as if the log of its session had it.
pub(crate) fn settle(number: usize, row: &BindingRow) -> Option<Op> {
    let report = row.reports.front()?;
    let generation = report.binding.generation;
    Some(change(number, BindingAction::Settle { generation, is_end: report.ended.is_some() }))
}

/// Returns the conversation that an op changes.
pub(crate) fn changed_key(op: &Op) -> &ConversationKey {
    let Op::Conversation { op: ConversationOp::Change { key, .. }, .. } = op else { panic!("{op:?}") };
    key
}

/// Returns the row of a reply.
pub(crate) fn row_of(reply: Reply) -> BindingRow {
    let Reply::Conversation(ConversationReply::Row { row: Some(row), .. }) = reply else { panic!("{reply:?}") };
    *row
}
