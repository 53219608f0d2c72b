//! Rendering of member changes: joining, leaving and switching (scenarios B, D and E).
use super::{Teller, answer};
use crate::channel::json::frame::{Detail, Event, Frame, Membership, Trouble};
use crate::channel::note::Members;
use turnway_core::id::RequestId;
use turnway_core::protocol::entry::Fact;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// Renders the answer to a member request, once the change is done or undone.
pub(super) fn told(ts: Millis, members: &Members) -> String {
    let body = Membership { agents: &members.agents, active_agent: members.active_agent.as_ref() };
    let session_id = Some(&members.session);
    Frame { session_id, ..answer(ts, "members", &members.request_id, body) }.text(256)
}

/// Writes a notice, which changed no state. A notice named after an error code reports a failed request.
pub(super) fn notice<'a>(tell: &mut Teller<'a, '_>, name: &'a str, request_id: &'a Option<RequestId>) {
    match Code::ALL.iter().find(|code| code.as_str() == name) {
        Some(code) => failed(tell, *code, "the session could not carry out the request", None, request_id),
        None => tell.last("event", request_id, 256, Event { name, ..Event::default() }),
    }
}

/// Writes a failed request to every subscriber of the session.
fn failed<'a>(
    tell: &mut Teller<'a, '_>,
    code: Code,
    message: &str,
    detail: Option<Detail<'a>>,
    request_id: &'a Option<RequestId>,
) {
    let retryable = code.retryable();
    let body = Trouble { code, message, retryable, retry_after_ms: None, detail, terminal: None };
    tell.last("error", request_id, 320, body);
}

/// Writes a member change: joining, leaving or switching.
pub(super) fn fact<'a>(tell: &mut Teller<'a, '_>, fact: &'a Fact) {
    if let Fact::AgentSwitched { from, to, reason, trigger, request_id } = fact {
        let (from, to, reason, trigger) = (Some(from), Some(to), Some(&**reason), Some(&**trigger));
        let name = "ACTIVE_AGENT_CHANGED";
        tell.last("event", request_id, 320, Event { name, from, to, reason, trigger, ..Event::default() });
    }
    if let Fact::AgentAdding(asked) | Fact::AgentRemoving(asked) = fact {
        let name = if matches!(fact, Fact::AgentAdding(_)) { "ADDING_AGENT" } else { "AGENT_REMOVING" };
        let (agent_id, reason) = (Some(&asked.agent_id), asked.reason.as_deref());
        let (tx_id, deadline_ts) = (Some(asked.tx_id), Some(asked.deadline_ms));
        let body = Event { name, agent_id, reason, tx_id, deadline_ts, ..Event::default() };
        tell.last("event", &asked.request_id, 320, body);
    }
    if let Fact::AgentAdded(done) | Fact::AgentRemoved(done) = fact {
        let name = if matches!(fact, Fact::AgentAdded(_)) { "AGENT_ADDED" } else { "AGENT_REMOVED" };
        let (agent_id, reason) = (Some(&done.agent_id), done.reason.as_deref());
        let (tx_id, restored) = (Some(done.tx_id), done.restored.then_some(true));
        let body = Event { name, agent_id, reason, tx_id, restored, ..Event::default() };
        tell.last("event", &done.request_id, 320, body);
    }
    if let Fact::AgentAddFailed(told) | Fact::AgentRemoveFailed(told) = fact {
        let (agent_id, tx_id) = (Some(&told.agent_id), Some(told.tx_id));
        let detail = Some(Detail { agent_id, tx_id, ..Detail::default() });
        failed(tell, told.code, &told.message, detail, &told.request_id);
    }
}
