//! What a link makes of what the door says, where it is not a welcome.
use super::{Link, Phase, last_moment};
use crate::channel::json::render;
use crate::link::Renewal;
use turnway_core::id::RequestId;
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::time::Now;

impl Link {
    pub(super) fn handle_denied(&mut self, now: Now) {
        match self.phase {
            Phase::Asking(_) => self.unauthorized(now, None, "not admitted".into()),
            Phase::Fresh(_) | Phase::Open | Phase::Closed => {}
        }
    }

    pub(super) fn handle_forbidden(&mut self, now: Now) {
        match self.phase {
            Phase::Asking(_) => {
                let why = "no such agent dials in here, or not with this credential";
                self.refuse(now, &None, Refusal::new(Code::Forbidden, why));
                self.close(4403, why);
            }
            Phase::Fresh(_) | Phase::Open | Phase::Closed => {}
        }
    }

    pub(super) fn handle_refreshed(&mut self, now: Now, request_id: Option<RequestId>, renewal: Renewal) {
        match (&self.phase, renewal) {
            (Phase::Open, Renewal::Until(expires)) => {
                self.expires_at = Some(last_moment(now, expires));
                self.write(now, render::refreshed(now.store, &request_id, expires));
            }
            (Phase::Open, Renewal::Needless) => {
                let why = "what this connection has shown does not end by itself";
                self.refuse(now, &request_id, Refusal::new(Code::InvalidMessage, why));
            }
            (Phase::Open, Renewal::Denied) => {
                let why = "expected a good token of the same user with the same rights";
                self.unauthorized(now, request_id, why.into());
            }
            (Phase::Open, Renewal::Late) => {
                let refusal = Refusal::new(Code::RateLimited, "too many requests on this connection");
                self.refuse(now, &request_id, refusal.retry_after(limits::STORE_RETRY_AFTER));
            }
            (Phase::Fresh(_) | Phase::Asking(_) | Phase::Closed, _) => {}
        }
    }
}
