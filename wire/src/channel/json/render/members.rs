//! Rendering of member changes: joining, leaving and switching (scenarios B, D and E).
use super::{FactWriter, reply_frame};
use crate::channel::json::frame::{ErrorDetailPayload, ErrorPayload, EventPayload, MembersPayload, MessageFrame};
use crate::channel::notification::MembersReply;
use turnway_core::id::RequestId;
use turnway_core::protocol::entry::MemberFact;
use turnway_core::protocol::member::{MemberChangeRequested, MemberChanged};
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
pub(super) fn write_member_change<'a>(tell: &mut FactWriter<'a, '_>, fact: &'a MemberFact) {
    match fact {
        MemberFact::Switched { from, to, reason, trigger, request_id } => {
            let from = Some(from);
            let to = Some(to);
            let reason = Some(&**reason);
            let trigger = Some(&**trigger);
            let name = "ACTIVE_AGENT_CHANGED";
            let body = EventPayload { name, from, to, reason, trigger, ..EventPayload::default() };
            tell.write_final_message("event", request_id, 320, body);
        }
        MemberFact::Adding(requested) => write_change_request(tell, "ADDING_AGENT", requested),
        MemberFact::Removing(requested) => write_change_request(tell, "AGENT_REMOVING", requested),
        MemberFact::Added(changed) => write_changed(tell, "AGENT_ADDED", changed),
        MemberFact::Removed(changed) => write_changed(tell, "AGENT_REMOVED", changed),
        MemberFact::AddFailed(failed) | MemberFact::RemoveFailed(failed) => {
            let agent_id = Some(&failed.agent_id);
            let tx_id = Some(failed.tx_id);
            let detail = Some(ErrorDetailPayload { agent_id, tx_id, ..ErrorDetailPayload::default() });
            write_failed_request(tell, failed.code, &failed.message, detail, &failed.request_id);
        }
    }
}

fn write_change_request<'a>(tell: &mut FactWriter<'a, '_>, name: &'a str, requested: &'a MemberChangeRequested) {
    let agent_id = Some(&requested.agent_id);
    let reason = requested.reason.as_deref();
    let tx_id = Some(requested.tx_id);
    let deadline_ts = Some(requested.deadline_ms);
    let body = EventPayload { name, agent_id, reason, tx_id, deadline_ts, ..EventPayload::default() };
    tell.write_final_message("event", &requested.request_id, 320, body);
}

fn write_changed<'a>(tell: &mut FactWriter<'a, '_>, name: &'a str, changed: &'a MemberChanged) {
    let agent_id = Some(&changed.agent_id);
    let reason = changed.reason.as_deref();
    let tx_id = Some(changed.tx_id);
    let restored = changed.restored.then_some(true);
    let body = EventPayload { name, agent_id, reason, tx_id, restored, ..EventPayload::default() };
    tell.write_final_message("event", &changed.request_id, 320, body);
}
