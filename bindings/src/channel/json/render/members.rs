//! Rendering of member changes: joining, leaving and switching (scenarios B, D and E).
use super::{FactWriter, reply_frame};
use crate::channel::json::frame::{ErrorDetailPayload, ErrorPayload, EventPayload, MembersPayload, MessageFrame};
use crate::channel::notification::MembersReply;
use turnway_core::id::RequestId;
use turnway_core::protocol::entry::{Fact, MemberFact};
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// Renders the answer to a member request, once the change is done or undone.
pub(super) fn render_members_reply(ts: Millis, members: &MembersReply) -> String {
    let body = MembersPayload { agents: &members.agents, active_agent: members.active_agent.as_ref() };
    let session_id = Some(&members.session);
    MessageFrame { session_id, ..reply_frame(ts, "members", &members.request_id, body) }.text(256)
}

/// Writes a notice, which changed no state. A notice named after an error code reports a failed request.
pub(super) fn write_notice<'a>(tell: &mut FactWriter<'a, '_>, name: &'a str, request_id: &'a Option<RequestId>) {
    match Code::ALL.iter().find(|code| code.as_str() == name) {
        Some(code) => {
            write_failed_request(tell, *code, "the session could not carry out the request", None, request_id);
        }
        None => tell.write_final_message("event", request_id, 256, EventPayload { name, ..EventPayload::default() }),
    }
}

/// Writes a failed request to every subscriber of the session.
fn write_failed_request<'a>(
    tell: &mut FactWriter<'a, '_>,
    code: Code,
    message: &str,
    detail: Option<ErrorDetailPayload<'a>>,
    request_id: &'a Option<RequestId>,
) {
    let retryable = code.retryable();
    let body = ErrorPayload { code, message, retryable, retry_after_ms: None, detail, terminal: None };
    tell.write_final_message("error", request_id, 320, body);
}

/// Writes a member change: joining, leaving or switching.
pub(super) fn write_member_change<'a>(tell: &mut FactWriter<'a, '_>, fact: &'a Fact) {
    if let Fact::Member(MemberFact::Switched { from, to, reason, trigger, request_id }) = fact {
        let from = Some(from);
        let to = Some(to);
        let reason = Some(&**reason);
        let trigger = Some(&**trigger);
        let name = "ACTIVE_AGENT_CHANGED";
        tell.write_final_message(
            "event",
            request_id,
            320,
            EventPayload { name, from, to, reason, trigger, ..EventPayload::default() },
        );
    }
    if let Fact::Member(MemberFact::Adding(asked) | MemberFact::Removing(asked)) = fact {
        let name = if matches!(fact, Fact::Member(MemberFact::Adding(_))) { "ADDING_AGENT" } else { "AGENT_REMOVING" };
        let agent_id = Some(&asked.agent_id);
        let reason = asked.reason.as_deref();
        let tx_id = Some(asked.tx_id);
        let deadline_ts = Some(asked.deadline_ms);
        let body = EventPayload { name, agent_id, reason, tx_id, deadline_ts, ..EventPayload::default() };
        tell.write_final_message("event", &asked.request_id, 320, body);
    }
    if let Fact::Member(MemberFact::Added(done) | MemberFact::Removed(done)) = fact {
        let name = if matches!(fact, Fact::Member(MemberFact::Added(_))) { "AGENT_ADDED" } else { "AGENT_REMOVED" };
        let agent_id = Some(&done.agent_id);
        let reason = done.reason.as_deref();
        let tx_id = Some(done.tx_id);
        let restored = done.restored.then_some(true);
        let body = EventPayload { name, agent_id, reason, tx_id, restored, ..EventPayload::default() };
        tell.write_final_message("event", &done.request_id, 320, body);
    }
    if let Fact::Member(MemberFact::AddFailed(told) | MemberFact::RemoveFailed(told)) = fact {
        let agent_id = Some(&told.agent_id);
        let tx_id = Some(told.tx_id);
        let detail = Some(ErrorDetailPayload { agent_id, tx_id, ..ErrorDetailPayload::default() });
        write_failed_request(tell, told.code, &told.message, detail, &told.request_id);
    }
}
