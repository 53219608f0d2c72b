//! Reads without side effects: a session's state, a list of sessions, the position of a run.
use super::ask::refusal_of;
use super::{Purpose, Switchboard, Waiting};
use crate::channel::note::{Listed, Note};
use turnway_core::id::{LinkId, Principal, RequestId, RunId, SessionKey};
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::store::{Birth, Found, Op, Refused, Reply, StoreError, Summary};

impl Switchboard {
    /// Reads a session's present state for a link that does not subscribe.
    pub(super) fn look_at(&mut self, link: LinkId, key: &SessionKey, request_id: Option<RequestId>) {
        let asked = self.view_number(key);
        let waiting = Waiting { link, request_id, asked, purpose: Purpose::Look };
        self.views.entry(key.clone()).or_default().push(waiting);
        self.view(key);
    }

    /// Lists the user's own sessions; an operator sees all sessions of the tenant.
    pub(super) fn list(&mut self, link: LinkId, principal: Principal, before: Option<Birth>, limit: u32) {
        let user = (!principal.operator).then_some(principal.user);
        let limit = limit.min(limits::LIST_SESSIONS_MAX);
        self.store(Op::Sessions { tenant: principal.tenant, user, before, limit, link });
    }

    pub(super) fn listed(&mut self, link: LinkId, result: Result<Reply, StoreError>) {
        match result {
            Ok(Reply::Sessions { sessions, more }) => {
                let sessions = sessions.into_iter().map(listed).collect();
                self.note(link, Note::Listed { sessions, more });
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => self.unread(link, None),
        }
    }

    /// Requests a run's position in the log. The store checks the session's owner.
    pub(super) fn find(&mut self, link: LinkId, principal: Principal, run_id: RunId) {
        let key = SessionKey { tenant: principal.tenant.clone(), session: run_id.session() };
        self.store(Op::Find { key, principal, run_id, link });
    }

    pub(super) fn found(&mut self, link: LinkId, run_id: RunId, result: Result<Reply, StoreError>) {
        match result {
            Ok(Reply::Found(Found { after, ended })) => self.note(link, Note::Found { run_id, after, ended }),
            Ok(Reply::Refused(refused @ (Refused::NotFound | Refused::Damaged))) => {
                self.refuse(link, None, Some(run_id.session()), Some(run_id), refusal_of(refused));
            }
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => self.unread(link, Some(run_id)),
        }
    }

    /// Deletes a closed session.
    pub(super) fn delete(&mut self, link: LinkId, key: SessionKey, principal: Principal) {
        self.store(Op::Delete { key, principal, link });
    }

    /// Answers a deletion request; repeating the request is safe.
    pub(super) fn deleted(&mut self, link: LinkId, key: &SessionKey, result: Result<Reply, StoreError>) {
        let session = key.session.clone();
        match result {
            Ok(Reply::Done) => self.note(link, Note::Deleted { session }),
            Ok(Reply::Refused(Refused::Busy)) => {
                let refusal = Refusal::new(Code::Busy, "the session is open; close it first");
                self.refuse(link, None, Some(session), None, refusal.retry_after(limits::INBOX_RETRY_AFTER));
            }
            Ok(Reply::Refused(_)) => self.refuse(link, None, Some(session), None, Refusal::not_found()),
            Ok(_) | Err(StoreError::Unknown | StoreError::Unavailable) => self.unread(link, None),
        }
    }

    /// Reports an unavailable store. The read had no effect, so the client may repeat it.
    fn unread(&mut self, link: LinkId, run_id: Option<RunId>) {
        let refusal = Refusal::new(Code::StoreUnavailable, "the store is unavailable; try again later");
        let refusal = refusal.retry_after(limits::STORE_RETRY_AFTER);
        self.refuse(link, None, run_id.as_ref().map(RunId::session), run_id, refusal);
    }
}

fn listed(summary: Summary) -> Listed {
    let Summary { birth, user, closed, tail, pending } = summary;
    Listed { birth, user, closed, seq: tail, pending }
}
