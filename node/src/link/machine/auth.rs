//! Handles results of the authentication other than an admission.
use super::{Link, LinkPhase};
use crate::connection::{RefreshOutcome, TokenExpiry};
use crate::link::ServiceRefusal;
use turnway_core::id::RequestId;
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Now;
use turnway_wire::channel::json::render;

impl Link {
    pub(super) fn handle_denied(&mut self, now: Now) {
        match self.phase {
            LinkPhase::Authenticating(_) => self.unauthorized(now, None, "authentication failed".into()),
            LinkPhase::AwaitingHello(_) | LinkPhase::Open | LinkPhase::Closed => {}
        }
    }

    pub(super) fn handle_not_serving(&mut self, now: Now, why: ServiceRefusal) {
        match self.phase {
            LinkPhase::Authenticating(_) => {
                let (refusal, close) = refusal_and_close_code(why);
                let reason = match why {
                    ServiceRefusal::Forbidden => "this credential may not serve the requested role",
                    ServiceRefusal::IdInUse => "this runner_id is in use",
                    ServiceRefusal::LimitReached => "too many serving connections",
                };
                self.refuse(now, &None, refusal);
                self.close(close, reason);
            }
            LinkPhase::AwaitingHello(_) | LinkPhase::Open | LinkPhase::Closed => {}
        }
    }

    pub(super) fn handle_refreshed(&mut self, now: Now, request_id: Option<RequestId>, renewal: RefreshOutcome) {
        match (&self.phase, renewal) {
            (LinkPhase::Open, RefreshOutcome::Until(expires)) => {
                self.expires = Some(Box::new(TokenExpiry::new(now, expires)));
                self.write(now, render::refreshed(now.store, &request_id, expires));
            }
            (LinkPhase::Open, RefreshOutcome::NotRequired) => {
                let why = "this connection's credential does not expire and cannot be refreshed";
                self.refuse(now, &request_id, Refusal::new(Code::InvalidMessage, why));
            }
            (LinkPhase::Open, RefreshOutcome::Denied) => {
                let why = "expected a valid token of the same user with the same rights";
                self.unauthorized(now, request_id, why.into());
            }
            (LinkPhase::Open, RefreshOutcome::RateLimited) => {
                let refusal = Refusal::new(Code::RateLimited, "too many requests on this connection");
                self.refuse(now, &request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
            (LinkPhase::AwaitingHello(_) | LinkPhase::Authenticating(_) | LinkPhase::Closed, _) => {}
        }
    }
}

/// Returns the error and the close code for a connection that may not serve.
fn refusal_and_close_code(why: ServiceRefusal) -> (Refusal, u16) {
    match why {
        ServiceRefusal::Forbidden => {
            let why = "no such agent dials in here, or this credential may not serve it: a key must be made with \
                       `--serves agent:NAME` or `--serves tools:NAME`, or its user named by `served_by`";
            (Refusal::new(Code::Forbidden, why), 4403)
        }
        ServiceRefusal::IdInUse => {
            let why = "this runner_id is in use by another credential, or results of it are still expected; choose \
                       another runner_id, or connect with the credential that has it";
            (Refusal::new(Code::RunnerIdInUse, why).retry_after(limits::RUNNER_WAIT), 4409)
        }
        ServiceRefusal::LimitReached => {
            let why = "the limit of serving connections at this node or for this tenant is reached";
            (Refusal::new(Code::RateLimited, why).retry_after(limits::RUNNER_WAIT), 4429)
        }
    }
}
