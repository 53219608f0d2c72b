//! Reads without side effects: a session's state, a list of sessions, the position of a run.
use super::requests::refusal_of;
use crate::switchboard::delivery::snapshot_waiters::SnapshotPurpose;
use crate::switchboard::effect::DeliveryCommand;
use crate::switchboard::sink::EffectSink;
use turnway_core::id::{LinkId, Principal, RequestId, RunId, SessionKey};
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::{CreationKey, Op, Reply, RunLocation, SessionSummary, StoreError, StoreRefusal};
use turnway_wire::channel::notification::{CommandReply, Notification, SessionListEntry};

/// Reads a session's present state for a link that does not subscribe.
pub(in crate::switchboard) fn read_state(
    link: LinkId,
    key: SessionKey,
    request_id: Option<RequestId>,
    purpose: SnapshotPurpose,
    sink: &mut EffectSink,
) {
    sink.push(DeliveryCommand::AwaitState { key, link, request_id, purpose });
}

/// Lists the user's own sessions; an operator sees all sessions of the tenant.
pub(in crate::switchboard) fn list_sessions(
    link: LinkId,
    principal: Principal,
    before: Option<CreationKey>,
    limit: u32,
    sink: &mut EffectSink,
) {
    let user = (!principal.operator).then_some(principal.user);
    let limit = limit.min(limits::LIST_SESSIONS_MAX);
    sink.store(Op::ListSessions { tenant: principal.tenant, user, before, limit, link });
}

/// Answers a request for a list of sessions.
pub(in crate::switchboard) fn handle_listed(link: LinkId, result: Result<Reply, StoreError>, sink: &mut EffectSink) {
    match result {
        Ok(Reply::Sessions { sessions, more }) => {
            let sessions = sessions.into_iter().map(list_entry).collect();
            sink.notify(link, Notification::Reply(CommandReply::SessionList { sessions, more }));
        }
        Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => refuse_unavailable(sink, link, None),
    }
}

/// Requests a run's position in the log. The store checks the session's owner.
pub(in crate::switchboard) fn find_run(link: LinkId, principal: Principal, run_id: RunId, sink: &mut EffectSink) {
    let key = SessionKey { tenant: principal.tenant.clone(), session: run_id.session() };
    sink.store(Op::Find { key, principal, run_id, link, fence: None });
}

/// Answers a request for a run's position.
pub(in crate::switchboard) fn handle_found(
    link: LinkId,
    run_id: RunId,
    result: Result<Reply, StoreError>,
    sink: &mut EffectSink,
) {
    match result {
        Ok(Reply::Found(RunLocation { after, ended })) => {
            sink.notify(link, Notification::Reply(CommandReply::RunLocation { run_id, after, ended }))
        }
        Ok(Reply::Refused(refused @ (StoreRefusal::NotFound | StoreRefusal::Damaged))) => {
            sink.refuse(link, None, Some(run_id.session()), Some(run_id), refusal_of(refused));
        }
        Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => refuse_unavailable(sink, link, Some(run_id)),
    }
}

/// Answers a deletion request; repeating the request is safe.
pub(in crate::switchboard) fn handle_deleted(
    link: LinkId,
    key: &SessionKey,
    result: Result<Reply, StoreError>,
    sink: &mut EffectSink,
) {
    let session = key.session.clone();
    match result {
        Ok(Reply::Done) => sink.notify(link, Notification::Reply(CommandReply::Deleted { session })),
        Ok(Reply::Refused(StoreRefusal::Busy)) => {
            let refusal = Refusal::new(Code::Busy, "the session is open; close it first");
            sink.refuse(link, None, Some(session), None, refusal.retry_after(limits::INBOX_RETRY_AFTER));
        }
        Ok(Reply::Refused(refused)) => sink.refuse(link, None, Some(session), None, refusal_of(refused)),
        Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => refuse_unavailable(sink, link, None),
    }
}

/// Reports an unavailable store. The read had no effect, so the client may repeat it.
fn refuse_unavailable(sink: &mut EffectSink, link: LinkId, run_id: Option<RunId>) {
    sink.refuse(link, None, run_id.as_ref().map(RunId::session), run_id, unavailable());
}

/// Returns the refusal of a request that needs the store while it is away.
pub(in crate::switchboard) fn unavailable() -> Refusal {
    let refusal = Refusal::new(Code::StoreUnavailable, "the store is unavailable; try again later");
    refusal.retry_after(limits::STORE_RETRY_AFTER)
}

fn list_entry(summary: SessionSummary) -> SessionListEntry {
    let SessionSummary { birth, user, closed, tail, pending, annotations } = summary;
    SessionListEntry { birth, user, closed, seq: tail, pending, annotations }
}
