//! Handles results of the authentication other than an admission.
use super::{Link, LinkPhase};
use crate::connection::RefreshOutcome;
use crate::link::ServiceRefusal;
use turnway_core::id::RequestId;
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Now;
use turnway_wire::channel::close_code;

/// The reason of the close where a limit of serving connections is reached.
pub(super) const TOO_MANY_CONNECTIONS: &str = "too many serving connections";

impl Link {
    pub(super) fn handle_denied(&mut self, now: Now) {
        match self.phase {
            LinkPhase::Authenticating(_) => self.connection.unauthorized(now, &None, "authentication failed"),
            LinkPhase::AwaitingHello(_) | LinkPhase::Open => {}
        }
    }

    pub(super) fn handle_not_serving(&mut self, now: Now, why: ServiceRefusal) {
        match self.phase {
            LinkPhase::Authenticating(_) => {
                let (refusal, close) = refusal_and_close_code(why);
                let reason = match why {
                    ServiceRefusal::Forbidden => "this credential may not serve the requested role",
                    ServiceRefusal::IdInUse => "this runner_id is in use",
                    ServiceRefusal::LimitReached => TOO_MANY_CONNECTIONS,
                };
                self.connection.refuse(now, &None, refusal);
                self.connection.close(close, reason);
            }
            LinkPhase::AwaitingHello(_) | LinkPhase::Open => {}
        }
    }

    pub(super) fn handle_refreshed(&mut self, now: Now, request_id: Option<RequestId>, renewal: RefreshOutcome) {
        match self.phase {
            LinkPhase::Open => {
                let denied = "expected a valid token of the same user with the same rights";
                self.connection.handle_refreshed(now, &request_id, renewal, denied);
            }
            LinkPhase::AwaitingHello(_) | LinkPhase::Authenticating(_) => {}
        }
    }
}

/// Returns the error and the close code for a connection that may not serve.
fn refusal_and_close_code(why: ServiceRefusal) -> (Refusal, u16) {
    match why {
        ServiceRefusal::Forbidden => {
            let why = "no such agent dials in here, or this credential may not serve the role: a key must be made with \
                       `--serves agent:NAME`, `--serves tools:NAME` or `--serves adapter:CHANNEL/ACCOUNT`, or its user named by \
                       `served_by`";
            (Refusal::new(Code::Forbidden, why), close_code::FORBIDDEN)
        }
        ServiceRefusal::IdInUse => {
            let why = "this runner_id is in use by another credential, or results of it are still expected; choose \
                       another runner_id, or connect with the credential that has it";
            (Refusal::new(Code::RunnerIdInUse, why).retry_after(limits::RUNNER_WAIT), close_code::REPLACED)
        }
        ServiceRefusal::LimitReached => {
            let why = "the limit of serving connections at this node or for this tenant is reached";
            (Refusal::new(Code::RateLimited, why).retry_after(limits::RUNNER_WAIT), close_code::RATE_LIMITED)
        }
    }
}
