//! Shared setup of the switchboard tests: a session, a user's input, and a node that owns nothing.
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{AgentId, MessageId, NodeId, Principal, RunId, SessionId, SessionKey, TenantId, UserId};
use turnway_core::protocol::agent::{AgentDirectory, AgentPolicy};
use turnway_core::protocol::input::{Content, Input as Said, Message, Role, Strategy};
use turnway_core::store::Op;
use turnway_node::switchboard::{Capacity, Config, Switchboard};

pub(crate) fn key(name: &str) -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse(name).expect("a name") }
}

pub(crate) fn ann() -> Principal {
    let user = UserId::parse("ann").expect("a name");
    Principal { tenant: TenantId::default_tenant(), user, operator: false, writes: true }
}

/// Returns an input of Ann with this message id, enqueued.
pub(crate) fn input(key: &SessionKey, name: &str) -> Arc<Said> {
    let message_id = MessageId::parse(name).expect("a name");
    Arc::new(Said {
        run_id: RunId::derive(key, &ann().user, &message_id),
        message_id,
        request_id: None,
        user: ann().user,
        agent_id: None,
        message: Message { role: Role::User, content: Content::Text("hi".to_owned()) },
        history: None,
        replaces: None,
        strategy: Strategy::Enqueue,
        metadata: None,
        origin: None,
        traceparent: None,
    })
}

pub(crate) fn accept(key: &SessionKey, input: &Arc<Said>) -> Op {
    Op::Accept { key: key.clone(), principal: ann(), input: Arc::clone(input), hash: input.body_hash(), route: None }
}

/// Creates a node of a fleet with one agent of this policy.
pub(crate) fn board(node: NodeId, seed: u8, policy: AgentPolicy) -> Switchboard {
    let echo = AgentId::parse("echo").expect("a name");
    let agents = BTreeMap::from([(echo.clone(), policy)]);
    let directory = Arc::new(AgentDirectory { agents, default: Some(echo), ..AgentDirectory::default() });
    Switchboard::new(Config {
        node,
        directory,
        seed: [seed; 32],
        single_node: false,
        keep_facts: None,
        max_age: None,
        capacity: Capacity::default(),
    })
}
